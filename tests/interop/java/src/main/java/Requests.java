import java.util.Map;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Single requests over the client's own remoting layer, for what the client's higher layers would never send. */
final class Requests {
    private static final int UPDATE_AND_CREATE_TOPIC = 17;
    private static NettyRemotingClient remoting;

    private static synchronized NettyRemotingClient remoting() {
        if (remoting == null) {
            remoting = new NettyRemotingClient(new NettyClientConfig());
            remoting.start();
        }
        return remoting;
    }

    /** Sends any request and prints its answer. */
    static void request(Command command) throws Exception {
        RemotingCommand answer = invoke(command.text("broker"), command.number("code", 0), command.map("ext"), command.text("body"));
        command.print("code", answer.getCode(), "remark", answer.getRemark(), "ext", answer.getExtFields());
    }

    /** Creates a topic, as an operator's tool does. */
    static void createTopic(Command command) throws Exception {
        String queues = String.valueOf(command.number("queues", 4));
        RemotingCommand answer = invoke(command.text("broker"), UPDATE_AND_CREATE_TOPIC, Map.of(
            "topic", command.text("topic"), "defaultTopic", "TBW102", "readQueueNums", queues, "writeQueueNums", queues,
            "perm", "6", "topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"), null);
        if (answer.getCode() != 0) {
            throw new IllegalStateException("answered with " + answer.getCode() + " " + answer.getRemark());
        }
    }

    private static RemotingCommand invoke(String broker, int code, Map<String, Object> ext, String body) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        request.setVersion(Integer.getInteger("rocketmq.remoting.version", 401));
        ext.forEach((name, value) -> request.addExtField(name, value.toString()));
        if (body != null) {
            request.setBody(body.getBytes(java.nio.charset.StandardCharsets.UTF_8));
        }
        return remoting().invokeSync(broker, request, 5_000);
    }
}
