import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of a group, which says for which messages a broker asks it: a line ASKED and their keys.
 *
 * Arguments: name server, group, topic. It never knows the answer, and ends when its input does.
 */
public class Checked {
    public static void main(String[] args) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                System.out.println("ASKED " + message.getKeys());
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        client.updateTopicRouteInfoFromNameServer(args[2]);  // so that it knows the broker
        client.sendHeartbeatToAllBrokerWithLock();
        while (System.in.read() >= 0) {
        }
        Runtime.getRuntime().halt(0);
    }
}
