// The CloudEvents SDK for Java as a sender and as a sink: sends events to a gateway, and tells what comes back.

import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.core.message.MessageReader;
import io.cloudevents.core.message.MessageWriter;
import io.cloudevents.http.HttpMessageFactory;
import io.cloudevents.jackson.JsonFormat;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.InetSocketAddress;
import java.net.URI;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

public class Events {
    static final ObjectMapper JSON = new ObjectMapper();
    static final List<Map<String, Object>> CAME = new ArrayList<>();

    static void answer(HttpExchange exchange, CountDownLatch left) throws IOException {
        byte[] body = exchange.getRequestBody().readAllBytes();
        if (exchange.getRequestMethod().equals("OPTIONS")) {
            exchange.getResponseHeaders().set("WebHook-Allowed-Origin", "*");
            exchange.sendResponseHeaders(200, -1);
            exchange.close();
            return;
        }
        MessageReader reader = HttpMessageFactory.createReaderFromMultimap(exchange.getRequestHeaders(), body);
        CloudEvent event = reader.toEvent();
        byte[] data = event.getData().toBytes();
        Map<String, Object> told = new HashMap<>();
        told.put("structured", exchange.getRequestHeaders().getFirst("content-type").startsWith("application/cloudevents"));
        told.put("id", event.getId());
        told.put("type", event.getType());
        told.put("source", event.getSource().toString());
        told.put("subject", event.getSubject());
        told.put("time", event.getTime().toString());
        told.put("colour", event.getExtension("colour"));
        told.put("datacontenttype", event.getDataContentType());
        boolean json = "application/json".equals(event.getDataContentType());
        told.put("data", json ? JSON.readTree(data) : Base64.getEncoder().encodeToString(data));
        synchronized (CAME) {
            CAME.add(told);
        }
        exchange.sendResponseHeaders(204, -1);
        exchange.close();
        left.countDown();
    }

    static void send(String url, String subject, String id, boolean structured, String kind, byte[] data) throws Exception {
        CloudEvent event = CloudEventBuilder.v1().withId(id).withType("com.example.sdk").withSource(URI.create("/sdk"))
            .withSubject(subject).withTime(OffsetDateTime.parse("2026-11-23T02:45:00.123Z"))
            .withExtension("colour", "red").withData(kind, data).build();
        HttpURLConnection connection = (HttpURLConnection) URI.create(url + "/events").toURL().openConnection();
        connection.setRequestMethod("POST");
        connection.setDoOutput(true);
        MessageWriter<?, ?> writer = HttpMessageFactory.createWriter(connection::setRequestProperty, body -> {
            try {
                connection.getOutputStream().write(body);
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        });
        if (structured) {
            writer.writeStructured(event, new JsonFormat());
        } else {
            writer.writeBinary(event);
        }
        if (connection.getResponseCode() != 200) {
            throw new IllegalStateException("answered " + connection.getResponseCode());
        }
    }

    public static void main(String[] arguments) throws Exception {
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[2]));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            try {
                answer(exchange, left);
            } catch (RuntimeException error) {
                error.printStackTrace();
                System.exit(1);
            }
        });
        server.start();
        System.out.println(server.getAddress().getPort());
        System.in.read();
        send(arguments[0], arguments[1], "1", false, "application/json", "{\"n\":1}".getBytes());
        send(arguments[0], arguments[1], "2", true, "application/json", "{\"n\":2}".getBytes());
        send(arguments[0], arguments[1], "3", false, "application/octet-stream", new byte[] {0, (byte) 255, 1});
        left.await();
        System.out.println(JSON.writeValueAsString(CAME));
        server.stop(0);
    }
}
