import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** One command: its arguments, and the events that answer it. */
final class Command {
    private final Map<String, Object> arguments;
    private final PrintStream events;

    @SuppressWarnings("unchecked")
    Command(String line, PrintStream events) {
        this.arguments = RemotingSerializable.fromJson(line, Map.class);
        this.events = events;
    }

    boolean has(String name) {
        return arguments.get(name) != null;
    }

    /** The argument, or null. */
    String text(String name) {
        return has(name) ? arguments.get(name).toString() : null;
    }

    int number(String name, int otherwise) {
        return has(name) ? ((Number) arguments.get(name)).intValue() : otherwise;
    }

    boolean flag(String name) {
        return Boolean.TRUE.equals(arguments.get(name));
    }

    /** The argument as a list; a single value is a list of one, an absent one is empty. */
    List<?> list(String name) {
        Object value = arguments.get(name);
        return value == null ? List.of() : value instanceof List ? (List<?>) value : List.of(value);
    }

    @SuppressWarnings("unchecked")
    Map<String, Object> map(String name) {
        return has(name) ? (Map<String, Object>) arguments.get(name) : Map.of();
    }

    /** Prints an event of this command, from alternating names and values. */
    void print(Object... pairs) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("id", arguments.get("id"));
        for (int i = 0; i < pairs.length; i += 2) {
            event.put((String) pairs[i], pairs[i + 1]);
        }
        String line = RemotingSerializable.toJson(event, false);
        synchronized (events) {
            events.println(line);
        }
    }

    /** Prints a message as a consumer got it. */
    void printMessage(MessageExt message) {
        long received = System.currentTimeMillis();
        print(
            "topic", message.getTopic(),
            "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(),
            "key", message.getKeys(),
            "tag", message.getTags(),
            "bytes", message.getBody().length,
            "crc", crc(message.getBody()),
            "properties", message.getProperties(),
            "reconsumeTimes", message.getReconsumeTimes(),
            "born", message.getBornTimestamp(),
            "stored", message.getStoreTimestamp(),
            "received", received,
            "uniqueKey", MessageClientIDSetter.getUniqID(message),
            "offsetMsgId", message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
    }

    static long crc(byte[] body) {
        CRC32 crc = new CRC32();
        crc.update(body);
        return crc.getValue();
    }

    /** The response code behind a failure, or null if no broker refused anything. */
    static Integer codeOf(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                return ((MQBrokerException) cause).getResponseCode();
            }
            if (cause instanceof MQClientException && ((MQClientException) cause).getResponseCode() >= 0) {
                return ((MQClientException) cause).getResponseCode();
            }
        }
        return null;
    }
}
