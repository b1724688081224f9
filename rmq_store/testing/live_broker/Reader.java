import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Asks a running broker for messages with the real client and prints them as JSON, one message a line.
 *
 * <pre>
 * Reader NAMESRV all          topics from standard input: every message of every queue, by offset
 * Reader NAMESRV key TOPIC    keys from standard input: what the client finds by each of them
 * </pre>
 *
 * The last line is {"done":COUNT}: without it the answer is not whole.
 */
public class Reader {

    private static final int PULL_BATCH = 1024;
    private static final int MAX_PER_KEY = 1024;

    private final PrintStream out;
    private final DefaultMQPullConsumer client;
    private long count;

    private Reader(String namesrv, PrintStream out) throws MQClientException {
        this.out = out;
        client = new DefaultMQPullConsumer("rmqstore-reader");
        client.setNamesrvAddr(namesrv);
        client.setInstanceName("reader-" + System.nanoTime());
        client.start();
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, "US-ASCII");
            System.setOut(System.err);
            Reader reader = new Reader(args[0], out);
            reader.run(args);
            out.println("{\"done\":" + reader.count + "}");
            out.flush();
            status = 0;
        } catch (Throwable problem) {
            problem.printStackTrace();
        }
        // A clean shutdown of the client takes seconds and nothing is left to lose.
        Runtime.getRuntime().halt(status);
    }

    private void run(String[] args) throws Exception {
        for (String line : standardInput()) {
            switch (args[1]) {
                case "all":
                    printTopic(line);
                    break;
                case "key":
                    printKey(args[2], line);
                    break;
                default:
                    throw new IllegalArgumentException("all or key, not " + args[1]);
            }
        }
    }

    private static List<String> standardInput() {
        InputStreamReader utf8 = new InputStreamReader(System.in, StandardCharsets.UTF_8);
        return new BufferedReader(utf8).lines().collect(Collectors.toList());
    }

    private void printTopic(String topic) throws Exception {
        for (MessageQueue queue : new TreeSet<>(client.fetchSubscribeMessageQueues(topic))) {
            printQueue(queue);
        }
    }

    private void printQueue(MessageQueue queue) throws Exception {
        long offset = client.minOffset(queue);
        long end = client.maxOffset(queue);
        while (offset < end) {
            PullResult result = client.pull(queue, "*", offset, PULL_BATCH);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    print(message, null);
                }
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(queue + " stuck at " + offset + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
    }

    private void printKey(String topic, String key) throws Exception {
        try {
            QueryResult found = client.queryMessage(topic, key, MAX_PER_KEY, 0, Long.MAX_VALUE);
            for (MessageExt message : found.getMessageList()) {
                print(message, key);
            }
        } catch (MQClientException problem) {
            if (!isNothingFound(problem)) {
                throw problem;
            }
        }
    }

    /** The client has no other way to say that a key is unknown; old releases say it without the code. */
    private static boolean isNothingFound(MQClientException problem) {
        return problem.getResponseCode() == 208 || String.valueOf(problem.getMessage()).contains("no message");
    }

    private void print(MessageExt message, String key) {
        StringBuilder line = new StringBuilder("{");
        field(line, "topic", quote(message.getTopic()));
        field(line, "queueId", message.getQueueId());
        field(line, "queueOffset", message.getQueueOffset());
        field(line, "commitLogOffset", message.getCommitLogOffset());
        field(line, "storeSize", message.getStoreSize());
        field(line, "bodyCrc", message.getBodyCRC());
        field(line, "flag", message.getFlag());
        field(line, "sysFlag", message.getSysFlag());
        field(line, "bornTimestamp", message.getBornTimestamp());
        field(line, "bornHost", quote(host(message.getBornHost())));
        field(line, "storeTimestamp", message.getStoreTimestamp());
        field(line, "storeHost", quote(host(message.getStoreHost())));
        field(line, "reconsumeTimes", message.getReconsumeTimes());
        field(line, "preparedTransactionOffset", message.getPreparedTransactionOffset());
        field(line, "msgId", quote(message.getMsgId()));
        field(line, "offsetMsgId", quote(offsetMessageId(message)));
        field(line, "foundBy", quote(key));
        field(line, "properties", properties(message));
        field(line, "body", quote(body(message)));
        line.setCharAt(line.length() - 1, '}');
        out.println(line);
        count++;
    }

    private static void field(StringBuilder line, String name, Object json) {
        line.append('"').append(name).append("\":").append(json).append(',');
    }

    private static String offsetMessageId(MessageExt message) {
        if (message instanceof MessageClientExt) {
            return ((MessageClientExt) message).getOffsetMsgId();
        }
        return message.getMsgId();
    }

    private static String body(MessageExt message) {
        byte[] body = message.getBody();
        return Base64.getEncoder().encodeToString(body == null ? new byte[0] : body);
    }

    /** Without the two that the client itself adds to what it pulls: they are not in the record. */
    private static String properties(MessageExt message) {
        Map<String, String> sorted = new TreeMap<>(message.getProperties());
        sorted.remove(MessageConst.PROPERTY_MIN_OFFSET);
        sorted.remove(MessageConst.PROPERTY_MAX_OFFSET);
        return sorted.entrySet().stream()
            .map(entry -> quote(entry.getKey()) + ":" + quote(entry.getValue()))
            .collect(Collectors.joining(",", "{", "}"));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        String ip = inet.getAddress().getHostAddress();
        return (ip.contains(":") ? "[" + ip + "]" : ip) + ":" + inet.getPort();
    }

    private static String quote(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }
}
