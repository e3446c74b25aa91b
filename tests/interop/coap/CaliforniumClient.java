import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.eclipse.californium.core.CoapClient;
import org.eclipse.californium.core.CoapHandler;
import org.eclipse.californium.core.CoapObserveRelation;
import org.eclipse.californium.core.CoapResponse;
import org.eclipse.californium.core.coap.CoAP;
import org.eclipse.californium.core.coap.MediaTypeRegistry;
import org.eclipse.californium.core.coap.Request;
import org.eclipse.californium.core.config.CoapConfig;
import org.eclipse.californium.elements.config.Configuration;
import org.eclipse.californium.elements.config.UdpConfig;

/** What Californium sees of a gateway: java CaliforniumClient.java PORT NAME. Prints a line for each fact. */
public final class CaliforniumClient {
    private static final long PATIENCE_MS = 60_000;

    private static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    private static CoapClient at(String uri) {
        return new CoapClient(uri).setTimeout(PATIENCE_MS);
    }

    private static Object code(CoapResponse response) {
        return response == null ? "none" : response.getCode();
    }

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);  // Californium's threads go on
        }
    }

    private static void run(String[] args) throws Exception {
        CoapConfig.register();
        UdpConfig.register();
        Configuration.createStandardWithoutFile();
        String uri = "coap://127.0.0.1:" + args[0] + "/t/californium/" + args[1];
        byte[] large = new byte[8_000];  // its default takes up to 8,192
        Arrays.fill(large, (byte) 'x');
        CoapClient client = at(uri);
        say("missing", code(client.get()));
        say("created", code(client.post("{\"t\":1}", MediaTypeRegistry.APPLICATION_JSON)));
        say("changed", code(client.useNONs().put("2", MediaTypeRegistry.TEXT_PLAIN)));
        client.useCONs();
        CoapResponse value = client.get();
        say("value", code(value) + " " + value.getResponseText());
        say("same", code(client.validate(value.getOptions().getETags().get(0))));
        say("unacceptable", code(client.get(MediaTypeRegistry.APPLICATION_XML)));
        say("none_match", code(client.putIfNoneMatch("4", MediaTypeRegistry.TEXT_PLAIN)));
        say("match", code(client.putIfMatch("2", MediaTypeRegistry.TEXT_PLAIN, value.getOptions().getETags().get(0))));
        CoapClient body = at(uri + "/large");
        say("large", code(body.put(large, MediaTypeRegistry.APPLICATION_OCTET_STREAM)));
        say("read", Arrays.equals(body.get().getPayload(), large));
        say("pinged", client.ping(PATIENCE_MS));

        List<String> notified = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch first = new CountDownLatch(1);
        CountDownLatch last = new CountDownLatch(1);
        CoapObserveRelation relation = client.observe(new CoapHandler() {
            @Override
            public void onLoad(CoapResponse response) {
                notified.add(response.getResponseText());
                first.countDown();
                if (response.getResponseText().equals("3")) {
                    last.countDown();
                }
            }

            @Override
            public void onError() {
                notified.add("error");
            }
        });
        first.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        at(uri).post("3", MediaTypeRegistry.TEXT_PLAIN);
        last.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
        say("notified", notified.get(0) + " " + notified.get(notified.size() - 1));
        relation.proactiveCancel();

        Request fetch = new Request(CoAP.Code.FETCH);
        fetch.getOptions().setContentFormat(MediaTypeRegistry.TEXT_PLAIN);
        fetch.setPayload("californium/" + args[1]);
        CoapResponse found = at("coap://127.0.0.1:" + args[0] + "/t").advanced(fetch);
        say("fetched", code(found) + " " + found.getResponseText().contains("\"specversion\":\"1.0\""));
        say("deleted", code(client.delete()));
        say("gone", code(client.get()));
    }
}
