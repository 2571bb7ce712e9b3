/** Starts so many threads, each of which sleeps for some seconds. */
public class Threads {
    public static void main(String[] words) throws Exception {
        Thread[] threads = new Thread[Integer.parseInt(words[0])];
        for (int nth = 0; nth < threads.length; nth++) {
            threads[nth] = new Thread(() -> {
                try {
                    Thread.sleep(2500);
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            });
            threads[nth].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
