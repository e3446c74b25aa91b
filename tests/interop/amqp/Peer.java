// A peer by RabbitMQ's Java client: `java -cp JARS Peer.java PORT`. It says "ready" when all but the last case have
// passed, waits for a line while the gateway is killed and starts again, and ends with one line of JSON.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.Return;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Peer {
    static final long PATIENCE_S = 60;
    static final int COUNT = 200;
    static final Map<String, Object> found = new LinkedHashMap<>();

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(arguments[0]));
        factory.setNetworkRecoveryInterval(50);
        factory.setRequestedHeartbeat(10);
        try (Connection connection = factory.newConnection("java-peer")) {
            confirmed(connection);
            consumed(connection);
            returned(connection);
            transacted(connection);
            mistaken(connection);
            recovered(connection);
        }
        List<String> pairs = new ArrayList<>();
        found.forEach((name, value) -> pairs.add("\"" + name + "\": " + value));
        System.out.println("{" + String.join(", ", pairs) + "}");
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Publishes with confirms, in batches and one by one, by an exchange that is bound to another one. */
    static void confirmed(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        channel.exchangeDeclare("java.in", BuiltinExchangeType.TOPIC, true);
        channel.exchangeDeclare("java.out", "fanout", true, false, Map.of());
        channel.exchangeBind("java.out", "java.in", "eu.#");
        channel.queueDeclare("java.work", true, false, false, Map.of("x-max-length", 10_000));
        channel.queueBind("java.work", "java.out", "");
        channel.confirmSelect();
        CountDownLatch late = new CountDownLatch(1);
        channel.addConfirmListener(
            (tag, multiple) -> { if (tag == COUNT) late.countDown(); },
            (tag, multiple) -> found.put("nacked", tag));
        for (int n = 0; n < COUNT; n++) {
            channel.basicPublish("java.in", "eu.new", MessageProperties.PERSISTENT_TEXT_PLAIN, bytes("" + n));
        }
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        found.put("confirmed", late.await(PATIENCE_S, TimeUnit.SECONDS));
        found.put("waiting", channel.messageCount("java.work"));
        channel.close();
    }

    /** Consumes with acknowledgements of several at once; what is given back comes again at its place. */
    static void consumed(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        channel.basicQos(20);
        BlockingQueue<Delivery> came = new LinkedBlockingQueue<>();
        String tag = channel.basicConsume("java.work", false, (name, one) -> came.add(one), name -> { });
        List<String> order = new ArrayList<>();
        boolean again = false;
        while (order.size() < COUNT) {
            Delivery one = came.poll(PATIENCE_S, TimeUnit.SECONDS);
            if (one == null) throw new IOException(order.size() + " of " + COUNT + " came");
            if (order.size() == 5 && !one.getEnvelope().isRedeliver()) {
                channel.basicNack(one.getEnvelope().getDeliveryTag(), false, true);
                again = true;
                continue;
            }
            if (again && !one.getEnvelope().isRedeliver()) {  // were on their way before it came again
                channel.basicReject(one.getEnvelope().getDeliveryTag(), true);
                continue;
            }
            again = again && order.size() < 25;
            order.add(text(one.getBody()));
            channel.basicAck(one.getEnvelope().getDeliveryTag(), false);
        }
        channel.basicCancel(tag);
        List<String> sorted = new ArrayList<>(order);
        sorted.sort((one, other) -> Integer.parseInt(one) - Integer.parseInt(other));
        found.put("all", sorted.size() == COUNT && sorted.stream().distinct().count() == COUNT);
        found.put("left", channel.messageCount("java.work"));
        channel.close();
    }

    /** A mandatory message that no queue takes is returned before its confirm, and a header of each type comes back. */
    static void returned(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        BlockingQueue<Return> back = new LinkedBlockingQueue<>();
        channel.addReturnListener(back::add);
        channel.basicPublish("java.in", "us.new", true, MessageProperties.MINIMAL_BASIC, bytes("back"));
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        Return one = back.poll();
        found.put("returned", one == null ? null : one.getReplyCode());
        Map<String, Object> headers = new LinkedHashMap<>();
        headers.put("text", "x");
        headers.put("long", 1L << 40);
        headers.put("list", List.of(1, "two"));
        headers.put("nested", Map.of("flag", true));
        AMQP.BasicProperties said = new AMQP.BasicProperties.Builder().headers(headers).priority(3).build();
        channel.basicPublish("", "java.work", said, bytes("typed"));
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        GetResponse got = channel.basicGet("java.work", true);
        Map<String, Object> read = got.getProps().getHeaders();
        boolean same = read.get("text").toString().equals("x") && read.get("long").equals(1L << 40)
            && read.get("list").toString().equals("[1, two]") && read.get("nested").toString().equals("{flag=true}")
            && got.getProps().getPriority() == 3;
        found.put("typed", same);
        channel.close();
    }

    /** A transaction publishes and acknowledges as one; what is rolled back was never there. */
    static void transacted(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        channel.queueDeclare("java.tx", true, false, false, Map.of());
        channel.txSelect();
        channel.basicPublish("", "java.tx", MessageProperties.PERSISTENT_BASIC, bytes("never"));
        channel.txRollback();
        channel.basicPublish("", "java.tx", MessageProperties.PERSISTENT_BASIC, bytes("once"));
        long before = channel.messageCount("java.tx");
        channel.txCommit();
        GetResponse one = channel.basicGet("java.tx", false);
        channel.basicAck(one.getEnvelope().getDeliveryTag(), false);
        channel.txCommit();
        found.put("committed", before == 0 && text(one.getBody()).equals("once"));
        found.put("settled", channel.messageCount("java.tx"));
        channel.close();
    }

    /** A mistake ends its channel, with the code that it has; the connection lives on. */
    static void mistaken(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        try {
            channel.queueDeclarePassive("java.none");
        } catch (IOException error) {
            ShutdownSignalException signal = (ShutdownSignalException) error.getCause();
            found.put("mistake", ((AMQP.Channel.Close) signal.getReason()).getReplyCode());
        }
        found.put("alive", connection.isOpen() && !channel.isOpen());
    }

    /** After a crash of the gateway the client declares, binds and consumes again by itself. */
    static void recovered(Connection connection) throws Exception {
        Channel channel = connection.createChannel();
        channel.exchangeDeclare("java.brief", "fanout");  // not durable: made again by the client
        String queue = channel.queueDeclare().getQueue();  // the server names it, anew after the crash
        channel.queueBind(queue, "java.brief", "");
        BlockingQueue<String> came = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, true, (name, one) -> came.add(text(one.getBody())), name -> { });
        CountDownLatch recovered = new CountDownLatch(1);
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable of) {
                recovered.countDown();
            }

            @Override
            public void handleRecoveryStarted(Recoverable of) { }
        });
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        found.put("recovered", recovered.await(PATIENCE_S, TimeUnit.SECONDS));
        String heard = null;
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (heard == null && System.nanoTime() < until) {
            try {
                channel.basicPublish("java.brief", "", MessageProperties.MINIMAL_BASIC, bytes("after"));
            } catch (AlreadyClosedException stillClosed) {  // the channel follows its connection a moment later
            }
            heard = came.poll(100, TimeUnit.MILLISECONDS);
        }
        found.put("heard", "after".equals(heard));
    }
}
