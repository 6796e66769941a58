package bench.storm;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.tuple.Tuple;

/** Counts words in memory; writes the number of words that it has counted when asked to. */
public final class CountBolt extends BaseBasicBolt {
    private transient Map<String, Long> counts;
    private transient int task;

    @Override
    public void prepare(Map<String, Object> conf, TopologyContext context) {
        counts = new HashMap<>();
        task = context.getThisTaskId();
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {}

    @Override
    public void execute(Tuple tuple, BasicOutputCollector collector) {
        if (tuple.getSourceStreamId().equals(QueueSpout.REPORT)) {
            report(Path.of(tuple.getString(0), "counted-" + task));
        } else {
            counts.merge(tuple.getString(0), 1L, Long::sum);
        }
    }

    private void report(Path path) {
        long words = counts.values().stream().mapToLong(Long::longValue).sum();
        try {
            Files.writeString(path, Long.toString(words));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
