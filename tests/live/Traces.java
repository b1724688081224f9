import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageType;

/**
 * Trace messages as the client of a release encodes them, and as it decodes them.
 *
 * Arguments: a seed and a number. A line for each message: TRACE, its text in base64, then each report with its
 * fields separated by commas, in base64 too.
 */
public class Traces {
    static final Base64.Encoder BASE64 = Base64.getEncoder();

    public static void main(String[] args) throws Exception {
        Random random = new Random(Long.parseLong(args[0]));
        for (int n = Integer.parseInt(args[1]); n > 0; n--) {
            StringBuilder text = new StringBuilder();
            for (int reports = 1 + random.nextInt(3); reports > 0; reports--) {
                TraceType[] types = TraceType.values();
                text.append(TraceDataEncoder.encoderFromContextBean(
                    context(random, types[random.nextInt(types.length)])).getTransData());
            }
            StringBuilder line = new StringBuilder(base64(text.toString()));
            for (TraceContext found : TraceDataEncoder.decoderFromTraceDataString(text.toString())) {
                line.append(' ').append(decoded(found));
            }
            System.out.println("TRACE " + line);
        }
    }

    static TraceContext context(Random random, TraceType type) {
        TraceContext context = new TraceContext();
        context.setTraceType(type);
        context.setTimeStamp(1795000000000L + random.nextInt(1000000));
        context.setRegionId("DefaultRegion");
        context.setGroupName("group-" + random.nextInt(5));
        context.setRequestId("request" + random.nextInt(1000));
        context.setCostTime(random.nextInt(3000));
        context.setSuccess(random.nextBoolean());
        context.setContextCode(random.nextInt(5));
        context.setAccessChannel(AccessChannel.LOCAL);
        List<TraceBean> beans = new ArrayList<>();
        int several = type == TraceType.SubBefore || type == TraceType.SubAfter ? 1 + random.nextInt(3) : 1;
        for (int n = several; n > 0; n--) {
            TraceBean bean = new TraceBean();
            bean.setTopic("orders");
            bean.setMsgId("7F00000100002A9F" + String.format("%016X", random.nextInt(1 << 30)));
            bean.setOffsetMsgId("7F00000100002A9F" + String.format("%016X", random.nextInt(1 << 30)));
            bean.setTags(random.nextInt(3) == 0 ? null : "Tag\u00e4" + random.nextInt(3));
            bean.setKeys(random.nextInt(3) == 0 ? null : "ORDER_" + random.nextInt(99) + " \u5ba2");
            bean.setStoreHost("127.0.0.1:10911");
            bean.setBodyLength(random.nextInt(100000));
            bean.setRetryTimes(random.nextInt(16));
            bean.setMsgType(MessageType.values()[random.nextInt(MessageType.values().length)]);
            bean.setTransactionId("T" + random.nextInt(1000));
            bean.setTransactionState(
                LocalTransactionState.values()[random.nextInt(LocalTransactionState.values().length)]);
            bean.setFromTransactionCheck(random.nextBoolean());
            beans.add(bean);
        }
        context.setTraceBeans(beans);
        return context;
    }

    static String decoded(TraceContext context) {
        TraceBean bean = context.getTraceBeans().get(0);
        String[] fields = {
            context.getTraceType().name(), Long.toString(context.getTimeStamp()), context.getRegionId(),
            context.getGroupName(), context.getRequestId(), Integer.toString(context.getCostTime()),
            Boolean.toString(context.isSuccess()), Integer.toString(context.getContextCode()),
            bean.getTopic(), bean.getMsgId(), bean.getTags(), bean.getKeys(), bean.getStoreHost(),
            Integer.toString(bean.getBodyLength()), bean.getMsgType() == null ? null : bean.getMsgType().name(),
            bean.getOffsetMsgId(), Integer.toString(bean.getRetryTimes()), bean.getTransactionId(),
            bean.getTransactionState() == null ? null : bean.getTransactionState().name(),
            Boolean.toString(bean.isFromTransactionCheck()),
        };
        List<String> shown = new ArrayList<>();
        for (String field : fields) {
            shown.add(base64(field == null ? "null" : field));
        }
        return String.join(",", shown);
    }

    static String base64(String text) {
        return BASE64.encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
