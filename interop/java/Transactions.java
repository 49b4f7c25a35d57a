import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of one record, one after another: what kafka-producer-perf-test cannot do, for it ends transactions by the
 * clock. The last line is that of "oncelog perf transactions".
 *
 * <pre>
 * BOOTSTRAP TOPIC COUNT RECORD_SIZE WARM_UP [name=value ...]    WARM_UP transactions more, before the clock runs
 * </pre>
 */
public final class Transactions {
    public static void main(String[] words) {
        String topic = words[1];
        int count = Integer.parseInt(words[2]), size = Integer.parseInt(words[3]), warmUp = Integer.parseInt(words[4]);
        Properties options = new Properties();
        options.put("bootstrap.servers", words[0]);
        options.put("transactional.id", "oncelog-perf");
        for (int i = 5; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        byte[] value = new byte[size];
        Arrays.fill(value, (byte) 'A');
        long[] took = new long[count];
        long seconds;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            long began = System.nanoTime();
            for (int i = -warmUp; i < count; i++) {
                if (i == 0) began = System.nanoTime();
                long started = System.nanoTime();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, value));
                producer.commitTransaction();
                if (i >= 0) took[i] = System.nanoTime() - started;
            }
            seconds = System.nanoTime() - began;
        }
        tell(took, seconds / 1e9, size);
    }

    private static void tell(long[] took, double seconds, int size) {
        Arrays.sort(took);
        double rate = took.length / seconds;
        System.out.printf(
                Locale.ROOT,
                "%d transactions committed, %.1f transactions/sec (%.1f records/sec, %.2f MB/sec), "
                        + "%.3f ms avg latency, %.2f ms max latency, "
                        + "%.3f ms 50th, %.3f ms 95th, %.3f ms 99th, %.3f ms 99.9th.%n",
                took.length, rate, rate, rate * size / (1 << 20),
                Arrays.stream(took).average().orElse(0) / 1e6, took[took.length - 1] / 1e6,
                at(took, 0.5), at(took, 0.95), at(took, 0.99), at(took, 0.999));
    }

    private static double at(long[] sorted, double share) {
        return sorted[(int) Math.min(sorted.length - 1, share * sorted.length)] / 1e6;
    }
}
