import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends messages with the real client until its input ends, whatever becomes of the broker meanwhile.
 *
 * <pre>
 * Sender NAMESRV RATE TOPIC...   about RATE messages a second in all, a thread for each topic
 * </pre>
 *
 * Prints what the broker acknowledged, one message a line: TOPIC QUEUE_ID QUEUE_OFFSET KEY. A message that
 * it did not acknowledge is sent again with the same key, so a key may be stored more than once. The last
 * line is {"done":COUNT}.
 */
public class Sender {

    private static volatile boolean stopped;
    private static long acknowledged;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "US-ASCII");
        System.setOut(System.err);
        DefaultMQProducer producer = new DefaultMQProducer("rmqstore-sender");
        producer.setNamesrvAddr(args[0]);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(2000);
        producer.start();
        int topics = args.length - 2;
        long pause = TimeUnit.SECONDS.toNanos(1) * topics / Integer.parseInt(args[1]);
        List<Thread> threads = new ArrayList<>();
        for (int i = 2; i < args.length; i++) {
            String topic = args[i];
            Thread thread = new Thread(() -> send(producer, topic, pause, out));
            thread.start();
            threads.add(thread);
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) {
            // The end of the input is what counts.
        }
        stopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
        out.println("{\"done\":" + acknowledged + "}");
        out.flush();
        // The client waits long for brokers that it has known.
        Runtime.getRuntime().halt(0);
    }

    private static void send(DefaultMQProducer producer, String topic, long pause, PrintStream out) {
        long next = System.nanoTime();
        for (int number = 0; !stopped; number++) {
            String key = topic + "-" + number;
            byte[] body = String.format("%06d ", number).repeat(100).getBytes(StandardCharsets.US_ASCII);
            SendResult result = null;
            while (!stopped && (result == null || result.getSendStatus() != SendStatus.SEND_OK)) {
                try {
                    result = producer.send(new Message(topic, "", key, body));
                } catch (Exception down) {
                    LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(100));
                }
            }
            if (result != null && result.getSendStatus() == SendStatus.SEND_OK) {
                int queue = result.getMessageQueue().getQueueId();
                synchronized (out) {
                    out.println(topic + " " + queue + " " + result.getQueueOffset() + " " + key);
                    acknowledged++;
                }
            }
            next += pause;
            long left = next - System.nanoTime();
            if (left > 0) {
                LockSupport.parkNanos(left);
            } else {
                next = System.nanoTime();
            }
        }
    }
}
