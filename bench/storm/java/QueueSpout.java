package bench.storm;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Values;

/**
 * Consumes a queue, with the prefetch of tiercel's spout, and acks a message when Storm acks its
 * tree.
 *
 * <p>The client's thread receives messages, and the executor's thread emits, acks and rejects. An
 * empty body asks the counting bolts for a report.
 */
public final class QueueSpout extends BaseRichSpout {
    static final String REPORT = "report";
    /** This file exists while the spout does not consume. */
    static final String PAUSED = "paused";

    private final String amqpUrl;
    private final String queue;
    private final int prefetch;
    private final String folder;
    private transient Queue<Message> waiting;
    private transient SpoutOutputCollector collector;
    private transient Channel channel;
    private transient Progress progress;
    private transient String consumer;

    QueueSpout(String amqpUrl, String queue, int prefetch, String folder) {
        this.amqpUrl = amqpUrl;
        this.queue = queue;
        this.prefetch = prefetch;
        this.folder = folder;
    }

    @Override
    public void declareOutputFields(OutputFieldsDeclarer declarer) {
        declarer.declare(new Fields("sentence"));
        declarer.declareStream(REPORT, new Fields("folder"));
    }

    @Override
    public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector out) {
        collector = out;
        waiting = new ConcurrentLinkedQueue<>();
        try {
            progress = new Progress(Path.of(folder));
            ConnectionFactory factory = new ConnectionFactory();
            factory.setUri(amqpUrl);
            channel = factory.newConnection().createChannel();
            channel.basicQos(prefetch);
        } catch (Exception error) {
            throw new IllegalStateException("RabbitMQ cannot be reached", error);
        }
    }

    @Override
    public void activate() {
        try {
            Files.deleteIfExists(Path.of(folder, PAUSED));
            consumer = channel.basicConsume(queue, new Receiver(channel));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void deactivate() {
        try {
            channel.basicCancel(consumer);
            Files.createFile(Path.of(folder, PAUSED));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void nextTuple() {
        Message message = waiting.poll();
        if (message == null) {
            return;
        }
        if (message.body().isEmpty()) {
            collector.emit(REPORT, new Values(folder), message);
        } else {
            collector.emit(new Values(message.body()), message);
        }
    }

    @Override
    public void ack(Object id) {
        Message message = (Message) id;
        progress.acked(message);
        try {
            channel.basicAck(message.tag(), false);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void fail(Object id) {
        progress.returned();
        try {
            channel.basicReject(((Message) id).tag(), true);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private final class Receiver extends DefaultConsumer {
        Receiver(Channel channel) {
            super(channel);
        }

        @Override
        public void handleDelivery(
                String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
            progress.delivered();
            String id = properties.getMessageId();
            // Messages of a warm-up carry an id of another form, or none.
            boolean scheduled = id != null && !id.isEmpty() && id.chars().allMatch(Character::isDigit);
            waiting.add(
                    new Message(
                            envelope.getDeliveryTag(),
                            new String(body, StandardCharsets.UTF_8),
                            scheduled ? Long.parseLong(id) : 0));
        }
    }
}
