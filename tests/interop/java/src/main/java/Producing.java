import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageBatch;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/** What producers do: sends of every kind, and queries. One producer serves all commands for a name server. */
final class Producing {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    static synchronized DefaultMQProducer producer(String nameServer) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(nameServer);
        if (producer == null) {
            producer = configured(new DefaultMQProducer("interop"), nameServer);
            producer.start();
            PRODUCERS.put(nameServer, producer);
        }
        return producer;
    }

    private static <P extends DefaultMQProducer> P configured(P producer, String nameServer) {
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer-" + nameServer.replaceAll(".*:", "") + "-" + producer.getProducerGroup());
        // What the broker refuses is to be seen, so the client must not refuse it, compress it or try it again.
        producer.setMaxMessageSize(16 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        return producer;
    }

    /** Sends `count` messages, or as many as it can in `millis`; lists of topics and levels are taken in turn. Prints each result. */
    static void send(Command command) throws Exception {
        long end = System.nanoTime() + command.number("millis", 3_600_000) * 1_000_000L;
        DefaultMQProducer producer = producer(command.text("namesrv"));
        int count = command.number("count", 1);
        String mode = command.has("mode") ? command.text("mode") : "sync";
        CountDownLatch answers = new CountDownLatch(mode.equals("async") ? count : 0);
        for (int i = 0; i < count && System.nanoTime() < end; i++) {
            Message message = message(command, i);
            switch (mode) {
                case "sync":
                    try {
                        printSent(command, message, command.has("queue")
                            ? producer.send(message, (queues, m, queue) -> queues.get((int) queue), command.number("queue", 0))
                            : producer.send(message));
                    } catch (Exception failure) {
                        printRefused(command, message, failure);
                        Thread.sleep(10); // The broker may be about to come back.
                    }
                    break;
                case "async":
                    producer.send(message, new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            printSent(command, message, result);
                            answers.countDown();
                        }

                        @Override
                        public void onException(Throwable failure) {
                            printRefused(command, message, failure);
                            answers.countDown();
                        }
                    });
                    break;
                case "oneway": producer.sendOneway(message); break;
                default: throw new IllegalArgumentException("unknown mode " + mode);
            }
        }
        if (!answers.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answers.getCount() + " sends were not answered");
        }
    }

    /** Sends one batch of `count` messages; `delay` puts a delay where the client itself would refuse it: inside or outside. */
    static void batch(Command command) throws Exception {
        String delay = command.has("delay") ? command.text("delay") : "";
        List<Message> members = new ArrayList<>();
        for (int i = 0; i < command.number("count", 1); i++) {
            Message message = message(command, i);
            MessageClientIDSetter.setUniqID(message);
            members.add(message);
        }
        MessageBatch batch = MessageBatch.generateFromList(members);
        if (delay.equals("inside")) {
            members.get(members.size() / 2).setDelayTimeLevel(1);
        }
        if (delay.equals("outside")) {
            MessageAccessor.putProperty(batch, "DELAY", "1");
        }
        MessageClientIDSetter.setUniqID(batch);
        batch.setBody(batch.encode());
        printSent(command, batch, producer(command.text("namesrv")).send(batch));
    }

    /** Sends a half message, the first part of a transaction. */
    static void half(Command command) throws Exception {
        TransactionMQProducer producer = configured(new TransactionMQProducer("interop_half"), command.text("namesrv"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            Message message = message(command, 0);
            printSent(command, message, producer.sendMessageInTransaction(message, null));
        } finally {
            producer.shutdown();
        }
    }

    /** Prints the messages of a topic that have this key. */
    static void query(Command command) throws Exception {
        producer(command.text("namesrv"))
            .queryMessage(command.text("topic"), command.text("key"), command.number("count", 32), 0, Long.MAX_VALUE)
            .getMessageList()
            .forEach(command::printMessage);
    }

    /** Prints the message with this offset id or unique key. */
    static void view(Command command) throws Exception {
        command.printMessage(producer(command.text("namesrv")).viewMessage(command.text("topic"), command.text("msgId")));
    }

    private static Message message(Command command, int i) {
        List<?> topics = command.list("topic");
        List<?> levels = command.list("level");
        String key = command.number("count", 1) == 1 ? command.text("key") : command.text("key") + "-" + i;
        byte[] body = ("body of " + key).getBytes(StandardCharsets.UTF_8);
        if (command.has("bytes")) {
            body = new byte[command.number("bytes", 0)];
            new Random(i).nextBytes(body);
        }
        Message message = new Message(topics.get(i % topics.size()).toString(), command.text("tag"), key, body);
        if (!levels.isEmpty()) {
            message.setDelayTimeLevel(((Number) levels.get(i % levels.size())).intValue());
        }
        command.map("properties").forEach((name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
        return message;
    }

    private static void printSent(Command command, Message message, SendResult result) {
        command.print(
            "status", result.getSendStatus().name(),
            "key", message.getKeys(),
            "queueId", result.getMessageQueue().getQueueId(),
            "queueOffset", result.getQueueOffset(),
            "offsetMsgId", result.getOffsetMsgId(),
            "uniqueKey", result.getMsgId(),
            "crc", Command.crc(message.getBody()));
    }

    private static void printRefused(Command command, Message message, Throwable failure) {
        command.print("status", "REFUSED", "key", message.getKeys(), "code", Command.codeOf(failure), "error", failure.toString());
    }
}
