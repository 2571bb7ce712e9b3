import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;

/** A store over HTTP: what is posted is kept as one small object a byte, so that the collector has work. */
class Server {
    record Item(int number, String text) {}

    public static void main(String[] words) throws Exception {
        var store = new ConcurrentHashMap<String, Item[]>();
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 50);
        server.setExecutor(Executors.newFixedThreadPool(2));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            var items = new Item[body.length];
            for (int i = 0; i < body.length; i++) items[i] = new Item(body[i] + i, "item " + i);
            store.put(exchange.getRequestURI().getPath(), items);
            byte[] reply = ("kept " + store.size()).getBytes();
            exchange.sendResponseHeaders(200, reply.length);
            try (var out = exchange.getResponseBody()) { out.write(reply); }
        });
        server.start();
    }
}
