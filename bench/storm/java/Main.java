package bench.storm;

import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.generated.StormTopology;
import org.apache.storm.shade.org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.storm.shade.org.apache.zookeeper.server.ZooKeeperServer;
import org.apache.storm.topology.BoltDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.tuple.Fields;

/**
 * Runs one topology in Storm's local mode until the process is stopped.
 *
 * <p>Arguments: java, python or sleep; the queue; the prefetch; tasks per bolt; the folder of the
 * probe's files; the Python of Python bolts, and their folder. RabbitMQ is TIERCEL_AMQP.
 */
public final class Main {
    private static final String LOOPBACK = "127.0.0.1";
    private static final String TOPOLOGY = "bench";
    /** The benchmark creates this file to deactivate the topology, and removes it to activate. */
    private static final String DEACTIVATE = "deactivate";
    private static final long LOOK_MS = 20;
    /** Long enough for the last of a full prefetch: a message that waits must not be replayed. */
    private static final int MESSAGE_TIMEOUT_S = 300;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        int prefetch = Integer.parseInt(arguments[2]);
        Path folder = Path.of(arguments[4]);
        Config config = new Config();
        config.setNumWorkers(1);
        config.setNumAckers(1);
        config.setMaxSpoutPending(prefetch);
        config.setMessageTimeoutSecs(MESSAGE_TIMEOUT_S);
        LocalCluster cluster = new LocalCluster(LOOPBACK, (long) zooKeeperPort());
        cluster.submitTopology(TOPOLOGY, config, topology(arguments, prefetch));
        boolean active = true;
        while (true) {
            Thread.sleep(LOOK_MS);
            boolean wanted = !Files.exists(folder.resolve(DEACTIVATE));
            if (wanted && !active) {
                cluster.activate(TOPOLOGY);
            } else if (!wanted && active) {
                cluster.deactivate(TOPOLOGY);
            }
            active = wanted;
        }
    }

    /** Starts the ZooKeeper of the cluster; one that Storm starts listens on all interfaces. */
    private static int zooKeeperPort() throws Exception {
        File data = Files.createTempDirectory("zookeeper").toFile();
        NIOServerCnxnFactory factory = new NIOServerCnxnFactory();
        factory.configure(new InetSocketAddress(LOOPBACK, 0), 0);
        factory.startup(new ZooKeeperServer(data, data, ZooKeeperServer.DEFAULT_TICK_TIME));
        return factory.getLocalPort();
    }

    private static StormTopology topology(String[] arguments, int prefetch) {
        int tasks = Integer.parseInt(arguments[3]);
        String python = arguments[5];
        String scripts = arguments[6];
        TopologyBuilder builder = new TopologyBuilder();
        String url = System.getenv("TIERCEL_AMQP");
        builder.setSpout("sentences", new QueueSpout(url, arguments[1], prefetch, arguments[4]));
        switch (arguments[0]) {
            case "java" -> words(
                    builder.setBolt("split", new SplitBolt(), tasks),
                    builder.setBolt("count", new CountBolt(), tasks));
            case "python" -> words(
                    builder.setBolt(
                            "split", new PythonBolt(python, scripts + "/split_bolt.py", "word"), tasks),
                    builder.setBolt(
                            "count", new PythonBolt(python, scripts + "/count_bolt.py"), tasks));
            case "sleep" -> builder.setBolt("sleep", new SleepBolt(), tasks)
                    .shuffleGrouping("sentences");
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        return builder.createTopology();
    }

    private static void words(BoltDeclarer split, BoltDeclarer count) {
        split.shuffleGrouping("sentences");
        count.fieldsGrouping("split", new Fields("word"));
        count.allGrouping("sentences", QueueSpout.REPORT);
    }
}
