// The Java client: the basics of AMQP 0-9-1, with its automatic recovery switched on as it comes.
import com.rabbitmq.client.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

public class JavaClient {
    interface Work { boolean done() throws Exception; }

    static void check(String name, Work work) {
        boolean worked = false;
        try {
            worked = work.done();
        } catch (Throwable error) {
            System.err.println(name + ": " + error + ", " + error.getCause());
        }
        System.out.println((worked ? "ok - " : "not ok - ") + name);
    }

    static byte[] bytes(String text) { return text.getBytes(StandardCharsets.UTF_8); }

    static String text(GetResponse response) { return response == null ? null : new String(response.getBody(), StandardCharsets.UTF_8); }

    static boolean closedWith(Throwable error, int code, String start) {
        ShutdownSignalException signal = (ShutdownSignalException) (error instanceof ShutdownSignalException ? error : error.getCause());
        AMQP.Channel.Close close = (AMQP.Channel.Close) signal.getReason();
        return close.getReplyCode() == code && close.getReplyText().startsWith(start);
    }

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://guest:guest@localhost:5672/%2F");
        Connection connection = factory.newConnection();
        Channel channel = connection.createChannel();
        Map<String, Object> dead = new HashMap<>();
        dead.put("x-dead-letter-exchange", "");
        dead.put("x-dead-letter-routing-key", "java.dead");
        channel.queueDeclare("java", true, false, false, dead);
        channel.queueDeclare("java.dead", true, false, false, null);
        check("confirms", () -> {
            channel.confirmSelect();
            for (int i = 0; i < 100; i++) {
                channel.basicPublish("", "java", MessageProperties.PERSISTENT_TEXT_PLAIN, bytes("message " + i));
            }
            channel.waitForConfirmsOrDie(10000);
            return channel.messageCount("java") == 100;
        });
        check("get", () -> {
            GetResponse response = channel.basicGet("java", false);
            channel.basicAck(response.getEnvelope().getDeliveryTag(), false);
            return text(response).equals("message 0") && response.getMessageCount() == 99 && !response.getEnvelope().isRedeliver();
        });
        check("consume, with a prefetch count and acks of many", () -> {
            channel.basicQos(10);
            BlockingQueue<String> got = new LinkedBlockingQueue<>();
            String tag = channel.basicConsume("java", false, new DefaultConsumer(channel) {
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) throws java.io.IOException {
                    got.add(new String(body, StandardCharsets.UTF_8));
                    if (got.size() % 10 == 0 || got.size() == 99) {
                        channel.basicAck(envelope.getDeliveryTag(), true);
                    }
                }
            });
            while (got.size() < 99) {
                Thread.sleep(10);
            }
            channel.basicCancel(tag);
            List<String> expected = new ArrayList<>();
            for (int i = 1; i < 100; i++) {
                expected.add("message " + i);
            }
            return new ArrayList<>(got).equals(expected);
        });
        check("a rejected message is dead-lettered, with where it died", () -> {
            channel.basicPublish("", "java", null, bytes("bad"));
            channel.waitForConfirmsOrDie(10000);
            channel.basicReject(channel.basicGet("java", false).getEnvelope().getDeliveryTag(), false);
            GetResponse response = null;
            for (int i = 0; i < 500 && response == null; i++) {
                response = channel.basicGet("java.dead", true);
                Thread.sleep(10);
            }
            Map<?, ?> death = (Map<?, ?>) ((List<?>) response.getProps().getHeaders().get("x-death")).get(0);
            return text(response).equals("bad") && death.get("reason").toString().equals("rejected") && death.get("queue").toString().equals("java");
        });
        check("exchanges bound to exchanges", () -> {
            channel.exchangeDeclare("java.from", BuiltinExchangeType.TOPIC, false, true, null);
            channel.exchangeDeclare("java.to", BuiltinExchangeType.FANOUT, false, true, null);
            String own = channel.queueDeclare().getQueue();
            channel.queueBind(own, "java.to", "");
            channel.exchangeBind("java.to", "java.from", "a.#");
            channel.basicPublish("java.from", "a.b", null, bytes("through"));
            channel.basicPublish("java.from", "b", null, bytes("not through"));
            channel.waitForConfirmsOrDie(10000);
            return text(channel.basicGet(own, true)).equals("through") && channel.basicGet(own, true) == null;
        });
        check("an unroutable message is returned", () -> {
            BlockingQueue<String> returned = new LinkedBlockingQueue<>();
            channel.addReturnListener((code, text, exchange, key, properties, body) -> returned.add(code + " " + text + " " + key));
            channel.basicPublish("", "nowhere", true, null, bytes("x"));
            return "312 NO_ROUTE nowhere".equals(returned.poll(10, TimeUnit.SECONDS));
        });
        check("direct reply-to", () -> {
            BlockingQueue<String> replies = new LinkedBlockingQueue<>();
            Channel rpc = connection.createChannel();
            rpc.basicConsume("amq.rabbitmq.reply-to", true, new DefaultConsumer(rpc) {
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                    replies.add(new String(body, StandardCharsets.UTF_8));
                }
            });
            rpc.basicPublish("", "java.dead", new AMQP.BasicProperties.Builder().replyTo("amq.rabbitmq.reply-to").build(), bytes("ask"));
            GetResponse request = null;
            for (int i = 0; i < 500 && request == null; i++) {
                request = channel.basicGet("java.dead", true);
                Thread.sleep(10);
            }
            channel.basicPublish("", request.getProps().getReplyTo(), null, bytes("answer"));
            return "answer".equals(replies.poll(10, TimeUnit.SECONDS));
        });
        check("a missing queue closes the channel", () -> {
            try {
                connection.createChannel().queueDeclarePassive("missing");
                return false;
            } catch (java.io.IOException error) {
                return closedWith(error, 404, "NOT_FOUND - no queue 'missing' in vhost '/'");
            }
        });
        check("an unknown delivery tag closes the channel", () -> {
            Channel other = connection.createChannel();
            BlockingQueue<ShutdownSignalException> closed = new LinkedBlockingQueue<>();
            other.addShutdownListener(closed::add);
            other.basicAck(42, false);
            return closedWith(closed.poll(10, TimeUnit.SECONDS), 406, "PRECONDITION_FAILED - unknown delivery tag 42");
        });
        check("a consumer hears that its queue is gone", () -> {
            CountDownLatch told = new CountDownLatch(1);
            channel.basicConsume("java", new DefaultConsumer(channel) {
                public void handleCancel(String tag) { told.countDown(); }
            });
            connection.createChannel().queueDelete("java");
            return told.await(10, TimeUnit.SECONDS);
        });
        check("a wrong password is refused", () -> {
            ConnectionFactory wrong = new ConnectionFactory();
            wrong.setPassword("wrong");
            try {
                wrong.newConnection().close();
                return false;
            } catch (AuthenticationFailureException error) {
                return error.getMessage().startsWith("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN");
            }
        });
        check("delete, and the connection closes", () -> {
            channel.queueDelete("java.dead");
            connection.close();
            return !connection.isOpen();
        });
        System.exit(0);
    }
}
