import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * A thin client: reads one command a line from standard input, does it with the official RocketMQ client, and prints what happened.
 *
 * <p>Commands and events are JSON objects. Each command runs in a thread of its own; its events carry its {@code id}, and the last
 * one is {@code {"id":…,"done":true}} with {@code error} and {@code code} if it failed. The process ends with its standard input.
 */
public final class Interop {
    public static void main(String[] args) throws Exception {
        PrintStream events = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);

        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            Command command = new Command(line, events);
            new Thread(() -> run(command), "command " + command.text("do")).start();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(Command command) {
        try {
            switch (command.text("do")) {
                case "createTopic": Requests.createTopic(command); break;
                case "request": Requests.request(command); break;
                case "send": Producing.send(command); break;
                case "batch": Producing.batch(command); break;
                case "half": Producing.half(command); break;
                case "query": Producing.query(command); break;
                case "view": Producing.view(command); break;
                case "consume": Consuming.consume(command); break;
                case "stop": Consuming.stop(command); break;
                case "pull": Consuming.pull(command); break;
                case "litePull": Consuming.litePull(command); break;
                default: throw new IllegalArgumentException("unknown command " + command.text("do"));
            }
            command.print("done", true);
        } catch (Throwable failure) {
            command.print("done", true, "error", failure.toString(), "code", Command.codeOf(failure));
        }
    }
}
