package bench.storm;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Writes the files of {@code bench/probe.py}, so that tiercel and Storm are read by the same code.
 *
 * <p>{@code System.nanoTime} and Python's {@code time.monotonic} are the same clock on Linux.
 */
final class Progress {
    private static final long EVERY_MS = 25;
    private static final int LATENCY_BYTES = 2 * Double.BYTES;

    private final AtomicLong delivered = new AtomicLong();
    private final AtomicLong acked = new AtomicLong();
    private final AtomicLong returned = new AtomicLong();
    private final ByteBuffer latencies =
            ByteBuffer.allocate(1 << 20).order(ByteOrder.nativeOrder());
    private final FileChannel progressFile;
    private final FileChannel latencyFile;

    Progress(Path folder) throws IOException {
        long pid = ProcessHandle.current().pid();
        progressFile = opened(folder.resolve("progress-" + pid));
        latencyFile = opened(folder.resolve("latency-" + pid));
        Thread writer = new Thread(this::write, "progress");
        writer.setDaemon(true);
        writer.start();
    }

    private static FileChannel opened(Path path) throws IOException {
        return FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    void delivered() {
        delivered.incrementAndGet();
    }

    void acked(Message message) {
        if (message.scheduledUs() > 0) {
            double scheduled = message.scheduledUs() / 1e6;
            note(scheduled, System.nanoTime() / 1e9 - scheduled);
        }
        acked.incrementAndGet();
    }

    void returned() {
        returned.incrementAndGet();
    }

    private synchronized void note(double scheduled, double seconds) {
        if (latencies.remaining() < LATENCY_BYTES) {
            flush();
        }
        latencies.putDouble(scheduled).putDouble(seconds);
    }

    private synchronized void flush() {
        latencies.flip();
        write(latencyFile, latencies);
        latencies.clear();
    }

    private void write() {
        String last = "";
        while (true) {
            String now = " %d %d %d\n".formatted(delivered.get(), acked.get(), returned.get());
            if (!now.equals(last)) {
                last = now;
                // First, so that a reader of the progress finds the latencies of all its acks.
                flush();
                String line = String.format(Locale.ROOT, "%.4f", System.nanoTime() / 1e9) + now;
                write(progressFile, ByteBuffer.wrap(line.getBytes(StandardCharsets.US_ASCII)));
            }
            try {
                Thread.sleep(EVERY_MS);
            } catch (InterruptedException stopped) {
                return;
            }
        }
    }

    private static void write(FileChannel file, ByteBuffer bytes) {
        try {
            while (bytes.hasRemaining()) {
                file.write(bytes);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
