import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** YARN on this machine: a resource manager and NodeManagers, whose containers are processes. */
public final class MiniYarn {
    private MiniYarn() {}

    /** Writes the configuration for clients into a folder and runs until standard input ends. */
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        int nodes = Integer.parseInt(arguments[1]);
        YarnConfiguration settings = new YarnConfiguration();
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.setInt("yarn.scheduler.capacity.root.default.capacity", 100);
        settings.setFloat("yarn.scheduler.capacity.maximum-am-resource-percent", 0.5f);
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        settings.setInt("yarn.nodemanager.resource.memory-mb", 4096);
        settings.setInt("yarn.nodemanager.resource.cpu-vcores", 4);
        settings.setInt("yarn.minicluster.yarn.nodemanager.resource.memory-mb", 4096);
        // Java maps more than it uses, and the disk of a small machine may be nearly full.
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        settings.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
        settings.setBoolean("yarn.minicluster.fixed.ports", false);
        settings.set("yarn.nodemanager.delete.debug-delay-sec", "0");
        try (MiniYARNCluster cluster = new MiniYARNCluster("mini", 1, nodes, 1, 1)) {
            cluster.init(settings);
            cluster.start();
            cluster.waitForNodeManagersToConnect(60_000);
            Configuration known = cluster.getConfig();
            try (OutputStream file = new FileOutputStream(folder.resolve("yarn-site.xml").toFile())) {
                known.writeXml(file);
            }
            System.out.println("ready");
            while (System.in.read() >= 0) {}
        } catch (Exception error) {
            error.printStackTrace();
            // Threads of the cluster would keep this process.
            System.exit(1);
        }
        System.exit(0);
    }
}
