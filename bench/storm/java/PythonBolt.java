package bench.storm;

import java.util.Map;
import org.apache.storm.task.ShellBolt;
import org.apache.storm.topology.IRichBolt;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.tuple.Fields;

/** A bolt in Python, in a process of its own, over Storm's multilang protocol. */
public final class PythonBolt extends ShellBolt implements IRichBolt {
    private final String[] fields;

    PythonBolt(String python, String script, String... fields) {
        super(python, script);
        this.fields = fields;
        // Storm starts the process in the folder where it has laid storm.py.
        setEnv(Map.of("PYTHONPATH", "."));
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
        if (fields.length > 0) {
            declarer.declare(new Fields(fields));
        }
    }

    @Override
    public Map<String, Object> getComponentConfiguration() {
        return null;
    }
}
