package bench.storm;

import java.util.concurrent.TimeUnit;
import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.tuple.Tuple;

/** Takes as long as the message says, in milliseconds, as a call to another service does. */
public final class SleepBolt extends BaseBasicBolt {
    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {}

    @Override
    public void execute(Tuple tuple, BasicOutputCollector collector) {
        try {
            TimeUnit.NANOSECONDS.sleep((long) (1e6 * Double.parseDouble(tuple.getString(0))));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
