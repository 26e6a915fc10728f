import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What consumers do. */
final class Consuming {
    private static final Map<String, DefaultMQPushConsumer> RUNNING = new ConcurrentHashMap<>();

    /**
     * Starts a push consumer, which prints each message it gets until `stop` names it. A message fails as long as it was retried fewer
     * than `failures` times.
     */
    static void consume(Command command) throws Exception {
        String name = command.text("name");
        int failures = command.number("failures", 0);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("namesrv"));
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setMaxReconsumeTimes(command.number("maxReconsumeTimes", -1));
        consumer.setSuspendCurrentQueueTimeMillis(command.number("suspendMillis", 1000));
        if (command.flag("broadcast")) {
            broadcast(consumer);
        }
        for (Object topic : command.list("topic")) {
            consumer.subscribe(topic.toString(), command.has("tags") ? command.text("tags") : "*");
        }
        if (command.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> consumed(command, messages, failures)
                ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consumed(command, messages, failures)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        RUNNING.put(name, consumer);
    }

    private static boolean consumed(Command command, List<MessageExt> messages, int failures) {
        messages.forEach(command::printMessage);
        return messages.get(0).getReconsumeTimes() >= failures;
    }

    /** Sets the message model by its name, since its class moved to another package between 4.9 and 5. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcast(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        Class model = DefaultMQPushConsumer.class.getMethod("getMessageModel").getReturnType();
        DefaultMQPushConsumer.class.getMethod("setMessageModel", model).invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
    }

    /** Stops a push consumer, if it runs. */
    static void stop(Command command) {
        DefaultMQPushConsumer consumer = RUNNING.remove(command.text("name"));
        if (consumer != null) {
            consumer.shutdown();
        }
    }

    /** Prints everything in a topic now, queue by queue. */
    @SuppressWarnings("deprecation")
    static void pull(Command command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("namesrv"));
        consumer.setInstanceName("pull-" + command.text("id") + "-" + command.text("namesrv").replaceAll(".*:", ""));
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(command.text("topic"))) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    PullResult result = consumer.pull(queue, command.has("tags") ? command.text("tags") : "*", offset, 32);
                    if (result.getNextBeginOffset() <= offset) {
                        throw new IllegalStateException(queue + " does not move on from " + offset + ": " + result);
                    }
                    if (result.getMsgFoundList() != null) {
                        result.getMsgFoundList().forEach(command::printMessage);
                    }
                    offset = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** Polls with a lite pull consumer until `count` messages came or `millis` passed, prints them and commits. */
    static void litePull(Command command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("namesrv"));
        consumer.setInstanceName("lite-" + command.text("id") + "-" + command.text("namesrv").replaceAll(".*:", ""));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(command.text("topic"), "*");
        consumer.start();
        try {
            long end = System.nanoTime() + command.number("millis", 0) * 1_000_000L;
            for (int missing = command.number("count", 1); missing > 0 && System.nanoTime() < end; ) {
                List<MessageExt> messages = consumer.poll(500);
                messages.forEach(command::printMessage);
                missing -= messages.size();
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }
}
