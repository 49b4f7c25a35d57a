import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own clients, in one program that says line by line what they see.
 *
 * <pre>
 * create BOOTSTRAP NAME:PARTITIONS...         makes topics
 * read BOOTSTRAP ISOLATION TOPIC...           every record, from the beginning to the end that the level may see
 * produce BOOTSTRAP TOPIC PARTITION COUNT     a committed transaction of COUNT records, then an aborted one
 * </pre>
 */
public final class Client {
    public static void main(String[] words) throws Exception {
        Properties common = new Properties();
        common.put("bootstrap.servers", words[1]);
        switch (words[0]) {
            case "create" -> create(common, words);
            case "read" -> read(common, words);
            case "produce" -> produce(common, words);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void create(Properties common, String[] words) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (int i = 2; i < words.length; i++) {
            String[] parts = words[i].split(":");
            topics.add(new NewTopic(parts[0], Integer.parseInt(parts[1]), (short) 1));
        }
        try (Admin admin = Admin.create(common)) {
            admin.createTopics(topics).all().get();
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : "=" + Base64.getEncoder().encodeToString(bytes);
    }

    private static void read(Properties common, String[] words) {
        common.put("isolation.level", words[2]);
        common.put("auto.offset.reset", "none");
        common.put("enable.auto.commit", "false");
        common.put("check.crcs", "true");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(common, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int i = 3; i < words.length; i++) {
                consumer.partitionsFor(words[i]).forEach(p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> starts = consumer.beginningOffsets(partitions);
            Map<TopicPartition, Long> ends = new HashMap<>(consumer.endOffsets(partitions));
            StringBuilder out = new StringBuilder();
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("the consumer does not reach the end");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    StringJoiner line = new StringJoiner("\t");
                    line.add("record").add(record.topic()).add("" + record.partition()).add("" + record.offset());
                    line.add("" + record.timestamp()).add("" + record.timestampType().id);
                    line.add(text(record.key())).add(text(record.value()));
                    for (Header header : record.headers()) {
                        line.add(text(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8))).add(text(header.value()));
                    }
                    out.append(line).append('\n');
                }
            }
            for (TopicPartition p : partitions) {
                out.append("partition\t" + p.topic() + "\t" + p.partition() + "\t" + starts.get(p) + "\t" + ends.get(p) + "\n");
            }
            System.out.print(out);
        }
    }

    private static void produce(Properties common, String[] words) throws Exception {
        common.put("transactional.id", "interop");
        int partition = Integer.parseInt(words[3]), count = Integer.parseInt(words[4]);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(common, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (String kind : new String[] {"committed", "aborted"}) {
                producer.beginTransaction();
                for (int i = 0; i < count; i++) {
                    byte[] value = (kind + " by the broker " + i).getBytes();
                    producer.send(new ProducerRecord<>(words[2], partition, null, value));
                }
                producer.flush();
                if (kind.equals("committed")) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
    }
}
