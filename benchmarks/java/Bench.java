import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The other side of the benchmarks: the store classes of Apache RocketMQ 5.5, timed in the same work.
 *
 * <pre>
 * Bench read        STORE WARMUPS PASSES               every message of every queue, decoded with its body
 * Bench read-nobody STORE WARMUPS PASSES               the same without the bodies
 * Bench read-crc    STORE WARMUPS PASSES               the same with the bodies and their CRC checked
 * Bench put         STORE WARMUPS PASSES COUNT LENGTH  COUNT messages of LENGTH bytes, until all are in queues and index
 * Bench put-mixed   STORE WARMUPS PASSES COUNT LENGTH  the same with LAYOUTS sets of properties and values of random lengths
 * Bench redispatch  STORE WARMUPS PASSES               DELETES queues, index and checkpoint and rebuilds them
 * Bench redispatch-paced STORE WARMUPS PASSES          the same, one record a millisecond: no two index files share a name
 * </pre>
 *
 * -DbatchTopics=NAME,... declares topics with a BatchConsumeQueue. One JSON line for each timed pass. Any setting of
 * a broker's store can be given as -Dstore.NAME=VALUE; the sizes must be those that an existing store was written with.
 */
public class Bench {

    private static final OperatingSystemMXBean OS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final int BATCH = 1024;
    private static final int TOPICS = 4;
    private static final int QUEUES = 4;
    private static final int TAGS = 5;
    private static final int LAYOUTS = 20;
    // What clients and brokers add beside keys and tags.
    private static final List<String> NAMES = List.of(
        "TRACE_ON", "MSG_REGION", "CLUSTER", "WAIT", "PGROUP", "traceparent", "tracestate", "user", "tenant", "source",
        "orderType", "BORN_TIMESTAMP", "shard", "version", "schema", "__SHARDINGKEY");
    private static final int LONGEST_VALUE = 64;
    private static final String LONGEST_WORD = "abcdefgh".repeat(LONGEST_VALUE / 8);
    // The checkpoint too: it would tell the store that all but the newest file has been dispatched.
    private static final List<String> DERIVED = List.of("consumequeue", "batchconsumequeue", "index", "checkpoint");
    private static final String SETTING_PREFIX = "store.";

    private final PrintStream out;
    private final String verb;
    private final File folder;
    private final Random chance = new Random(20);
    private final List<List<String>> layouts = layouts(chance);

    private Bench(PrintStream out, String verb, File folder) {
        this.out = out;
        this.verb = verb;
        this.folder = folder;
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            Bench bench = new Bench(System.out, args[0], new File(args[1]).getAbsoluteFile());
            // The store's logging may write to standard output, which is for results.
            System.setOut(System.err);
            bench.run(Integer.parseInt(args[2]), Integer.parseInt(args[3]), args);
            status = 0;
        } catch (Throwable problem) {
            problem.printStackTrace();
        }
        Runtime.getRuntime().halt(status);
    }

    private void run(int warmups, int passes, String[] args) throws Exception {
        switch (verb) {
            case "read":
            case "read-nobody":
            case "read-crc":
                read(warmups, passes);
                break;
            case "put":
            case "put-mixed":
                put(warmups, passes, Integer.parseInt(args[4]), Integer.parseInt(args[5]));
                break;
            case "redispatch":
            case "redispatch-paced":
                redispatch(warmups, passes);
                break;
            default:
                throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    // --- read ---

    private void read(int warmups, int passes) throws Exception {
        DefaultMessageStore store = open();
        store.start();
        for (int pass = -warmups; pass < passes; pass++) {
            long start = System.nanoTime();
            long cpu = OS.getProcessCpuTime();
            Totals totals = new Totals();
            for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topic : queues(store).entrySet()) {
                for (Integer queue : new TreeMap<>(topic.getValue()).keySet()) {
                    readQueue(store, topic.getKey(), queue, totals);
                }
            }
            report(pass, totals, System.nanoTime() - start, cpu, "");
        }
    }

    private void readQueue(DefaultMessageStore store, String topic, int queue, Totals totals) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queue);
        long end = store.getMaxOffsetInQueue(topic, queue);
        while (offset < end) {
            GetMessageResult result = store.getMessage("bench", topic, queue, offset, BATCH, null);
            for (SelectMappedBufferResult record : result.getMessageMapedList()) {
                MessageExt message = decode(record.getByteBuffer());
                if (message == null) {
                    throw new IllegalStateException("not decodable: the record at " + record.getStartOffset());
                }
                totals.add(message);
            }
            result.release();
            if (result.getNextBeginOffset() <= offset) {
                String place = topic + "@" + queue + " at " + offset;
                throw new IllegalStateException("stuck in " + place + ": " + result.getStatus());
            }
            offset = result.getNextBeginOffset();
        }
    }

    /** Bodies stay as they are stored: inflating them is not what is measured. */
    private MessageExt decode(ByteBuffer record) {
        switch (verb) {
            case "read-nobody":
                return MessageDecoder.decode(record, false, false);
            case "read-crc":
                return MessageDecoder.decode(record, true, false, false, false, true);
            default:
                return MessageDecoder.decode(record, true, false);
        }
    }

    // --- put ---

    private void put(int warmups, int passes, int count, int length) throws Exception {
        DefaultMessageStore store = open();
        store.start();
        byte[] body = new byte[length];
        new Random(1).nextBytes(body);
        for (int pass = -warmups; pass < passes; pass++) {
            long before = store.getMaxPhyOffset();
            long start = System.nanoTime();
            long cpu = OS.getProcessCpuTime();
            for (int i = 0; i < count; i++) {
                PutMessageResult result = store.putMessage(message(i, body));
                if (!result.isOk()) {
                    throw new IllegalStateException("refused: " + result.getPutMessageStatus());
                }
            }
            long appended = System.nanoTime() - start;
            awaitDispatch(store);
            long dispatched = System.nanoTime() - start;
            Totals totals = new Totals();
            totals.messages = count;
            totals.bytes = store.getMaxPhyOffset() - before;
            report(pass, totals, dispatched, cpu, ",\"appendSeconds\":" + seconds(appended));
        }
        store.shutdown();
    }

    private MessageExtBrokerInner message(int i, byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("order-topic-" + i % TOPICS);
        message.setQueueId(i / TOPICS % QUEUES);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress(InetAddress.getLoopbackAddress(), 1));
        message.setStoreHost(message.getBornHost());
        MessageAccessor.setProperties(message, new HashMap<>());
        if (verb.equals("put-mixed")) {
            setMixedProperties(message, i);
        } else {
            message.setTags("Tag" + i % TAGS);
            message.setKeys("ORDER_" + i);
        }
        String uniqueId = String.format("7F000001%024X", i);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniqueId);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** One to eight properties of a layout, keys of random lengths, and tags in three layouts of four. */
    private void setMixedProperties(MessageExtBrokerInner message, int i) {
        int layout = chance.nextInt(LAYOUTS);
        for (String name : layouts.get(layout)) {
            MessageAccessor.putProperty(message, name, word());
        }
        message.setKeys("ORDER_" + i + " " + word());
        if (layout % 4 != 0) {
            message.setTags("Tag" + i % TAGS);
        }
    }

    private static List<List<String>> layouts(Random chance) {
        List<List<String>> layouts = new ArrayList<>();
        for (int i = 0; i < LAYOUTS; i++) {
            List<String> names = new ArrayList<>(NAMES);
            Collections.shuffle(names, chance);
            layouts.add(names.subList(0, 1 + chance.nextInt(8)));
        }
        return layouts;
    }

    private String word() {
        return LONGEST_WORD.substring(0, 1 + chance.nextInt(LONGEST_VALUE));
    }

    // --- redispatch ---

    /**
     * From load, which recovers the log and dispatches what no queue has, until all is dispatched. So a pass also reads
     * the whole log once and checks its bodies, as a broker does (-Dstore.checkCRCOnRecover=false leaves that out).
     */
    private void redispatch(int warmups, int passes) throws Exception {
        for (int pass = -warmups; pass < passes; pass++) {
            for (String name : DERIVED) {
                UtilAll.deleteFile(new File(folder, name));
            }
            long start = System.nanoTime();
            long cpu = OS.getProcessCpuTime();
            DefaultMessageStore store = open();
            store.start();
            awaitDispatch(store);
            long taken = System.nanoTime() - start;
            report(pass, dispatched(store), taken, cpu, "");
            store.shutdown();
        }
    }

    private Totals dispatched(DefaultMessageStore store) {
        Totals totals = new Totals();
        totals.bytes = store.getMaxPhyOffset() - store.getMinPhyOffset();
        for (ConcurrentMap<Integer, ConsumeQueueInterface> topic : queues(store).values()) {
            for (ConsumeQueueInterface queue : topic.values()) {
                totals.messages += queue.getMaxOffsetInQueue() - queue.getMinOffsetInQueue();
            }
        }
        return totals;
    }

    // --- common ---

    private DefaultMessageStore open() throws IOException {
        BrokerStatsManager statistics = new BrokerStatsManager("bench", false);
        DefaultMessageStore store =
            new DefaultMessageStore(config(), statistics, null, new BrokerConfig(), batchTopics());
        if (verb.equals("redispatch-paced")) {
            store.addDispatcher(Bench::awaitNextMillisecond);
        }
        if (!store.load()) {
            throw new IllegalStateException("the store does not load: " + folder);
        }
        return store;
    }

    private static ConcurrentMap<String, TopicConfig> batchTopics() {
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String name : System.getProperty("batchTopics", "").split(",")) {
            TopicConfig topic = new TopicConfig(name);
            topic.getAttributes().put("queue.type", "BatchCQ");
            topics.put(name, topic);
        }
        return topics;
    }

    /**
     * An index file is named after the millisecond in which it begins, and IndexService opens the file that has the name
     * if there is one. So after each record this waits for the next millisecond.
     */
    private static void awaitNextMillisecond(DispatchRequest record) {
        long now = System.currentTimeMillis();
        while (System.currentTimeMillis() == now) {
            Thread.onSpinWait();
        }
    }

    private MessageStoreConfig config() {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder.getPath());
        config.setStorePathCommitLog(new File(folder, "commitlog").getPath());
        config.setHaListenPort(0);
        // Large batches, whether or not the records count as being in memory: per-call costs are not what is measured.
        config.setMaxTransferCountOnMessageInMemory(BATCH);
        config.setMaxTransferBytesOnMessageInMemory(1 << 24);
        config.setMaxTransferCountOnMessageInDisk(BATCH);
        config.setMaxTransferBytesOnMessageInDisk(1 << 24);
        // Otherwise only the last ten files would be dispatched again.
        config.setCommitLogRecoverMaxNum(Integer.MAX_VALUE);
        // No file is deleted for its age or for lack of space.
        config.setCleanFileForciblyEnable(false);
        config.setFileReservedTime(100_000);
        config.setDiskMaxUsedSpaceRatio(95);
        MixAll.properties2Object(settings(), config);
        return config;
    }

    private static Properties settings() {
        Properties settings = new Properties();
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith(SETTING_PREFIX)) {
                settings.setProperty(name.substring(SETTING_PREFIX.length()), System.getProperty(name));
            }
        }
        return settings;
    }

    private static Map<String, ConcurrentMap<Integer, ConsumeQueueInterface>> queues(DefaultMessageStore store) {
        return new TreeMap<>(store.getConsumeQueueTable());
    }

    private static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    private void report(int pass, Totals totals, long nanos, long cpuBefore, String more) {
        long cpu = OS.getProcessCpuTime() - cpuBefore;
        if (pass < 0) {
            return;
        }
        out.println("{\"verb\":\"" + verb + "\",\"pass\":" + pass + ",\"messages\":" + totals.messages
            + ",\"seconds\":" + seconds(nanos) + ",\"cpuSeconds\":" + seconds(cpu) + ",\"bytes\":" + totals.bytes + more + "}");
        out.flush();
    }

    private static String seconds(long nanos) {
        return String.format("%.6f", nanos / 1e9);
    }

    /** What a pass went through: bytes of whole records, and a use of each part that was decoded. */
    private static final class Totals {

        private long messages;
        private long bytes;
        private long used;

        private void add(MessageExt message) {
            messages++;
            bytes += message.getStoreSize();
            used += message.getProperties().size() + (message.getBody() == null ? 0 : message.getBody().length);
        }
    }
}
