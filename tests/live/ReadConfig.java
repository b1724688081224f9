import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Has the classes of an Apache RocketMQ broker read files of config/, as their managers do in decode().
 *
 * Standard input: a line for each, with the name of the file and its text in Base64, separated by a tab. Standard
 * output: a JSON line for each with what was read, or null if the broker refuses the text, which leaves the .bak. A
 * release without a class for that file answers "none".
 */
public class ReadConfig {

    private static final String BROKER = "org.apache.rocketmq.broker.";

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            byte[] raw = Base64.getDecoder().decode(words[1]);
            out.println(answer(words[0], new String(raw, StandardCharsets.UTF_8)));
        }
        Runtime.getRuntime().halt(0);
    }

    private static String answer(String file, String text) {
        try {
            return json(read(file, text));
        } catch (InvocationTargetException | RuntimeException refused) {
            return "null";
        } catch (ReflectiveOperationException missing) {
            return "\"none\"";
        }
    }

    private static Object read(String file, String text) throws ReflectiveOperationException {
        switch (file) {
            case "consumerOffset.json":
                return table(managed("offset.ConsumerOffsetManager", text), "offsetTable");
            case "lmqConsumerOffset.json":
                return table(managed("offset.LmqConsumerOffsetManager", text), "lmqOffsetTable");
            case "delayOffset.json":
                return wrapped(text, "getOffsetTable", BROKER + "schedule.DelayOffsetSerializeWrapper",
                    "org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper");
            case "topics.json":
                return wrapped(text, "getTopicConfigTable",
                    "org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper",
                    "org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper");
            default:
                Class<?> orders = first(BROKER + "pop.orderly.QueueLevelConsumerManager",
                    BROKER + "offset.ConsumerOrderInfoManager");
                return table(RemotingSerializable.fromJson(text, orders), "table");
        }
    }

    private static Object managed(String name, String text) throws ReflectiveOperationException {
        Class<?> type = Class.forName(BROKER + name);
        Object manager = type.getDeclaredConstructor().newInstance();
        type.getMethod("decode", String.class).invoke(manager, text);
        return manager;
    }

    private static Object wrapped(String text, String getter, String... names) throws ReflectiveOperationException {
        Class<?> type = first(names);
        Object wrapper = RemotingSerializable.fromJson(text, type);
        Map<Object, Object> loaded = new ConcurrentHashMap<>((Map<?, ?>) type.getMethod(getter).invoke(wrapper));
        if (getter.equals("getTopicConfigTable")) {
            type.getMethod("getDataVersion").invoke(wrapper).hashCode(); // assignNewOne refuses null
        }
        return loaded;
    }

    private static Class<?> first(String... names) throws ClassNotFoundException {
        try {
            return Class.forName(names[0]);
        } catch (ClassNotFoundException other) {
            return Class.forName(names[1]);
        }
    }

    private static Object table(Object manager, String name) throws ReflectiveOperationException {
        for (Class<?> type = manager.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return ((Map<?, ?>) field.get(manager)).isEmpty() ? new TreeMap<>() : field.get(manager);
                }
            }
        }
        throw new NoSuchFieldException(name);
    }

    private static String json(Object value) throws ReflectiveOperationException {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Map) {
            Map<String, String> sorted = new TreeMap<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                sorted.put(json(String.valueOf(entry.getKey())), json(entry.getValue()));
            }
            StringBuilder built = new StringBuilder();
            sorted.forEach((key, one) -> built.append(built.length() == 0 ? "" : ", ").append(key + ": " + one));
            return "{" + built + "}";
        }
        if (value instanceof Collection) {
            StringBuilder built = new StringBuilder();
            for (Object one : (Collection<?>) value) {
                built.append(built.length() == 0 ? "" : ", ").append(json(one));
            }
            return "[" + built + "]";
        }
        if (value instanceof CharSequence) {
            StringBuilder built = new StringBuilder("\"");
            for (char one : value.toString().toCharArray()) {
                boolean plain = one >= ' ' && one < 127 && one != '"' && one != '\\';
                built.append(plain ? String.valueOf(one) : String.format("\\u%04x", (int) one));
            }
            return built + "\"";
        }
        return json(parts(value));
    }

    /** Of a TopicConfig the settings that shape queues; of an OrderInfo the offsets. */
    private static Object parts(Object value) throws ReflectiveOperationException {
        if (value.getClass().getSimpleName().equals("OrderInfo")) {
            return value.getClass().getMethod("getOffsetList").invoke(value);
        }
        Map<String, Object> found = new TreeMap<>();
        for (String name : new String[] {"readQueueNums", "writeQueueNums", "perm", "attributes"}) {
            try {
                Field field = value.getClass().getDeclaredField(name);
                field.setAccessible(true);
                found.put(name, field.get(value));
            } catch (NoSuchFieldException older) {
                continue;
            }
        }
        return found;
    }
}
