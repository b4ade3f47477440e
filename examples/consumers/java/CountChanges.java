// Counts the changes of a topic, with Kafka's own client and nothing else.
//
//     java -cp 'kafka-clients.jar:lz4-java.jar:slf4j-api.jar' CountChanges.java BROKER:9092 shop.orders
//
// kafka-clients.jar and the two that it needs are on Maven Central: org.apache.kafka:kafka-clients. Java 17 or newer
// compiles this file as it starts. It reads every partition from its beginning to its present end, and prints how many
// changes it saw, how many tombstones, how many keys have a row now, and how many changes did not come in the order of
// their versions: that would be one that came twice. A third argument, read_uncommitted, shows what that reader sees.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class CountChanges {
    static long changes, tombstones, twice;
    static final Map<String, Long> versions = new HashMap<>(); // of the newest change, by key
    static final Map<String, String> rows = new HashMap<>(); // the newest message, by key

    public static void main(String[] arguments) {
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", arguments.length > 2 ? arguments[2] : "read_committed"); // not Java's default
        settings.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            var partitions = consumer.partitionsFor(arguments[1]).stream()
                    .map(found -> new TopicPartition(found.topic(), found.partition()))
                    .collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    count(record);
                }
            }
        }
        System.out.printf("changes %d%ntombstones %d%nrows %d%ntwice %d%n", changes, tombstones, rows.size(), twice);
    }

    static void count(ConsumerRecord<String, String> record) {
        if (record.value() == null) { // behind each delete, so that compaction forgets the key
            tombstones++;
            rows.remove(record.key());
            return;
        }
        // Versions have up to 63 bits: a long, but not a number of JavaScript.
        long version = Long.parseLong(new String(record.headers().lastHeader("viewtail_version").value(), UTF_8));
        changes++;
        if (version <= versions.getOrDefault(record.key(), 0L)) {
            twice++;
        }
        versions.merge(record.key(), version, Math::max);
        rows.put(record.key(), record.value());
    }
}
