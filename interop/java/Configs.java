import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.ConfigSynonym;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints Kafka's own definitions of its options as JSON: name, type, default, limits, which of some texts each
 * takes and as what, which broker options are the defaults of which topic option, and which options of a
 * producer go together. Options of TLS, SASL, metrics and remote storage are left out.
 * tests/base/kafka_configs.json is its output; oncelog's tables (engine/base/config.py) are compared with it.
 *
 * <pre>kafka.sh run JARS Configs &gt; tests/base/kafka_configs.json</pre>
 */
public final class Configs {
    private Configs() {}

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ConfigDef TOPIC = LogConfig.configDefCopy();
    private static final List<String> LEFT_OUT = List.of("ssl.", "sasl.", "metric", "remote.log.");
    private static final List<String> SAMPLES = List.of(
        "", " ", "true", "TRUE", " false ", "yes", "0", "-1", "1", " 5 ", "+5", "1.5", "1e3", ".5", "-2", "-3", "3", "4",
        "9", "10", "17", "18", "22", "23", "-131072", "-131073", "1023", "1024", "32767", "32768", "1048575", "1048576",
        "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "1_000", "0x10", "delete", "compact",
        "delete,compact", " compact , delete ", "delete,delete", "delete,", ",", "Delete", "none", "gzip", "snappy",
        "lz4", "zstd", "ZSTD", "producer", "uncompressed", "CreateTime", "createtime", "LogAppendTime", "all", "ALL",
        "latest", "Latest", "earliest", "by_duration", "by_duration:", "by_duration:P1D", "by_duration:PT1H30M",
        "by_duration:PT0.5S", "by_duration:PT1,5S", "by_duration:PT1.S", "by_duration:PT.5S", "by_duration:-PT1H",
        "by_duration:PT-1H", "by_duration:PT", "by_duration:P", "by_duration:P1DT", "by_duration:P1DT1S",
        "by_duration:pt1h", "by_duration:1h", "read_committed", "READ_COMMITTED", "read_uncommitted");
    private static final List<List<String>> TOGETHER = List.of(
        List.of(), List.of("acks=0"), List.of("acks=1"), List.of("acks=-1"), List.of("acks=all"), List.of("retries=0"),
        List.of("max.in.flight.requests.per.connection=6"), List.of("enable.idempotence=false"),
        List.of("enable.idempotence=true", "acks=1"), List.of("enable.idempotence=true", "acks=-1"),
        List.of("enable.idempotence=true", "retries=0"),
        List.of("enable.idempotence=true", "max.in.flight.requests.per.connection=6"),
        List.of("enable.idempotence=false", "acks=1", "retries=0", "max.in.flight.requests.per.connection=6"),
        List.of("transactional.id=t"), List.of("transactional.id=t", "acks=1"), List.of("transactional.id=t", "retries=0"),
        List.of("transactional.id=t", "max.in.flight.requests.per.connection=6"),
        List.of("transactional.id=t", "enable.idempotence=false"),
        List.of("transactional.id=t", "transaction.timeout.ms=5"),
        List.of("transactional.id=t", "transaction.two.phase.commit.enable=true"),
        List.of("transactional.id=t", "transaction.two.phase.commit.enable=true", "transaction.timeout.ms=5"),
        List.of("transaction.two.phase.commit.enable=true"));

    public static void main(String[] args) throws Exception {
        System.out.println("{\"kafkaVersion\": \"" + AppInfoParser.getVersion() + "\",");
        System.out.println("\"madeBy\": \"interop/java/Configs.java\",");
        System.out.println("\"samples\": " + JSON.writeValueAsString(SAMPLES) + ",");
        print("topic", options(TOPIC), ",");
        print("broker", options(AbstractKafkaConfig.CONFIG_DEF), ",");
        print("producer", options(ProducerConfig.configDef()), ",");
        print("consumer", options(ConsumerConfig.configDef()), ",");
        print("synonyms", synonyms(), ",");
        print("together", together(), "}");
    }

    /** One entry a line, so that a new Kafka's changes show as lines. */
    private static void print(String name, Map<String, Object> entries, String end) throws Exception {
        List<String> lines = new ArrayList<>();
        for (Map.Entry<String, Object> entry : entries.entrySet()) {
            lines.add(JSON.writeValueAsString(entry.getKey()) + ": " + JSON.writeValueAsString(entry.getValue()));
        }
        System.out.println("\"" + name + "\": {\n" + String.join(",\n", lines) + "\n}" + end);
    }

    private static Map<String, Object> options(ConfigDef definition) {
        Map<String, Object> found = new TreeMap<>();
        definition.configKeys().forEach((name, key) -> {
            if (LEFT_OUT.stream().anyMatch(name::startsWith) && definition != TOPIC) return;
            Map<String, Object> option = new LinkedHashMap<>();
            option.put("type", key.type.name());
            option.put("default", key.hasDefault() ? plain(key.defaultValue) : "(required)");
            option.put("limits", key.validator == null ? null : key.validator.toString());
            option.put("importance", key.importance.name());
            option.put("internal", key.internalConfig);
            option.put("accepts", accepted(key));
            found.put(name, option);
        });
        return found;
    }

    /** The samples that an option takes, and what it takes them for; null for one that takes any text. */
    private static Map<String, Object> accepted(ConfigDef.ConfigKey key) {
        Map<String, Object> found = new LinkedHashMap<>();
        boolean isText = key.type == ConfigDef.Type.STRING || key.type == ConfigDef.Type.LIST;
        boolean takesAnything = isText && (key.validator == null || key.validator.toString().isEmpty());
        if (takesAnything || key.type == ConfigDef.Type.CLASS || key.type == ConfigDef.Type.PASSWORD) return null;
        for (String sample : SAMPLES) {
            try {
                Object value = ConfigDef.parseType(key.name, sample, key.type);
                if (key.validator != null) key.validator.ensureValid(key.name, value);
                found.put(sample, plain(value));
            } catch (ConfigException refused) {
                continue;
            }
        }
        return found;
    }

    /** What a producer makes of options that bear on each other; null: it refuses them. */
    private static Map<String, Object> together() {
        Map<String, Object> found = new LinkedHashMap<>();
        for (List<String> given : TOGETHER) {
            Map<String, Object> properties = new LinkedHashMap<>();
            properties.put("bootstrap.servers", "localhost:9092");
            properties.put("key.serializer", ByteArraySerializer.class);
            properties.put("value.serializer", ByteArraySerializer.class);
            given.forEach(pair -> properties.put(pair.split("=")[0], pair.split("=")[1]));
            try {
                found.put(String.join(" ", given), new ProducerConfig(properties).getBoolean("enable.idempotence"));
            } catch (ConfigException refused) {
                found.put(String.join(" ", given), null);
            }
        }
        return found;
    }

    private static Object plain(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean || value instanceof List) return value;
        if (value instanceof Class) return ((Class<?>) value).getName();
        return value.toString();
    }

    /** For each topic option the broker options that set its default, the first given one counts, and their unit. */
    private static Map<String, Object> synonyms() {
        Map<String, Object> found = new TreeMap<>();
        ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.forEach((topic, list) -> {
            List<Object> names = new ArrayList<>();
            for (ConfigSynonym synonym : list) {
                names.add(Arrays.asList(synonym.name(), synonym.converter().apply("1")));
            }
            found.put(topic, names);
        });
        return found;
    }
}
