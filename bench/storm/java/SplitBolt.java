package bench.storm;

import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/** Splits a sentence into words; the base class anchors and acks, as tiercel's BasicBolt does. */
public final class SplitBolt extends BaseBasicBolt {
    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
        declarer.declare(new Fields("word"));
    }

    @Override
    public void execute(Tuple tuple, BasicOutputCollector collector) {
        for (String word : tuple.getString(0).split(" ")) {
            collector.emit(new Values(word));
        }
    }
}
