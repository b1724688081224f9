import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Has the store classes of Apache RocketMQ 5.5 recover stores, many in one JVM.
 *
 * Standard input: a line for each store, its folder and the names of its BatchCQ topics, separated by tabs. Standard
 * output: a JSON line for each, with the ends of log and queues as the classes have them in memory after their load().
 * Settings of a broker's store are given as -Dstore.NAME=VALUE.
 */
public class Recover {

    private static final String SETTING_PREFIX = "store.";

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // the classes log to standard output
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(recover(line.split("\t")));
            out.flush();
        }
        Runtime.getRuntime().halt(0); // threads of the stores go on otherwise
    }

    private static String recover(String[] words) {
        StringBuilder json = new StringBuilder("{\"store\":\"" + words[0] + "\"");
        try {
            DefaultMessageStore store = new DefaultMessageStore(
                config(words[0]), new BrokerStatsManager("recover", false), null, new BrokerConfig(), batchTopics(words));
            boolean loaded = store.load();
            json.append(",\"loaded\":").append(loaded);
            if (loaded) {
                describe(store, json);
            }
            store.getMessageRocksDBStorage().shutdown();
        } catch (Throwable refused) {
            json.append(",\"error\":\"").append(refused.getClass().getSimpleName()).append("\"");
        }
        return json.append("}").toString();
    }

    private static MessageStoreConfig config(String root) {
        MessageStoreConfig config = new MessageStoreConfig();
        Properties settings = new Properties();
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith(SETTING_PREFIX)) {
                settings.setProperty(name.substring(SETTING_PREFIX.length()), System.getProperty(name));
            }
        }
        MixAll.properties2Object(settings, config);
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        return config;
    }

    private static ConcurrentMap<String, TopicConfig> batchTopics(String[] words) {
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (int i = 1; i < words.length; i++) {
            TopicConfig topic = new TopicConfig(words[i]);
            topic.getAttributes().put("queue.type", "BatchCQ");
            topics.put(words[i], topic);
        }
        return topics;
    }

    private static void describe(DefaultMessageStore store, StringBuilder json) {
        json.append(",\"start\":").append(store.getMinPhyOffset());
        json.append(",\"end\":").append(store.getMaxPhyOffset());
        json.append(",\"queues\":{");
        String comma = "";
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topic
            : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            for (Map.Entry<Integer, ConsumeQueueInterface> queue : new TreeMap<>(topic.getValue()).entrySet()) {
                json.append(comma).append("\"").append(escaped(topic.getKey())).append("@").append(queue.getKey());
                json.append("\":[").append(queue.getValue().getMinOffsetInQueue()).append(",");
                json.append(queue.getValue().getMaxOffsetInQueue()).append("]");
                comma = ",";
            }
        }
        json.append("}");
    }

    private static String escaped(String text) {
        StringBuilder plain = new StringBuilder();
        for (char one : text.toCharArray()) {
            plain.append(one < ' ' || one > '~' || one == '"' || one == '\\' ? String.format("\\u%04x", (int) one) : one);
        }
        return plain.toString();
    }
}
