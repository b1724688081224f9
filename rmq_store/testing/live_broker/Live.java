import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.remoting.RemotingClient;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Name server and broker, or name server and gRPC proxy with its broker, in one JVM. Any release from 4.3 on.
 *
 * <pre>
 * Live NAMESRV_CONF NAMESRV_ADDRESS BROKER_ADDRESS MAIN_CLASS MAIN_ARGUMENT...
 * </pre>
 *
 * Prints LIVE-READY once a client that asks the name server finds the broker. Ends when standard input ends,
 * so it never outlives the process that started it.
 */
public class Live {

    private static final int UPDATE_BROKER_CONFIG = 25;
    private static final int GET_BROKER_CLUSTER_INFO = 106;
    private static final long REQUEST_TIMEOUT_MS = 3000;
    private static final long PAUSE_MS = 50;

    public static void main(String[] args) {
        try {
            endWithStandardInput();
            NamesrvStartup.main(new String[] {"-c", args[0]});
            startBroker(args);
            awaitRegistration(args[1], args[2]);
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void endWithStandardInput() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException closed) {
                // As good as the end of the stream.
            }
            Runtime.getRuntime().halt(2);
        }, "parent-watcher");
        watcher.setDaemon(true);
        watcher.start();
    }

    /** By reflection, because old releases have no proxy to compile against. */
    private static void startBroker(String[] args) throws ReflectiveOperationException {
        String[] rest = new String[args.length - 4];
        System.arraycopy(args, 4, rest, 0, rest.length);
        Class.forName(args[3]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }

    /**
     * A 5.x broker skips its first registration when that comes before its first look at the name server (a race),
     * and repeats it 10 s later. Changing brokerPermission makes it register at once. An answer may come late on a
     * machine that has much to do: who waits for this program decides when it is too late.
     */
    private static void awaitRegistration(String namesrv, String broker) throws Exception {
        RemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        while (!isRegistered(client, namesrv, broker)) {
            Thread.sleep(PAUSE_MS);
        }
        System.out.println("LIVE-READY");
        client.shutdown();
    }

    private static boolean isRegistered(RemotingClient client, String namesrv, String broker) throws Exception {
        try {
            if (clusterInfo(client, namesrv).contains('"' + broker + '"')) {
                return true;
            }
            RemotingCommand request = RemotingCommand.createRequestCommand(UPDATE_BROKER_CONFIG, null);
            request.setBody("brokerPermission=6".getBytes(StandardCharsets.UTF_8));
            client.invokeSync(broker, request, REQUEST_TIMEOUT_MS);
        } catch (RemotingException late) {
            System.out.println(late);
        }
        return false;
    }

    private static String clusterInfo(RemotingClient client, String namesrv) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(GET_BROKER_CLUSTER_INFO, null);
        byte[] body = client.invokeSync(namesrv, request, REQUEST_TIMEOUT_MS).getBody();
        return body == null ? "" : new String(body, StandardCharsets.UTF_8);
    }
}
