"""RabbitMQ as the tests use it: a second, plain client beside the code under test, and a wire that can be cut."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from urllib.parse import urlsplit

import pika

from queues.address import Address
from queues.consumer import Consumer, ConsumerSettings
from queues.declare import WorkQueue
from queues.retry import NO_WAIT
from tests.waiting import wait_until

_BASIC_ACK = struct.pack(">HH", 60, 80)
"""Class and method of AMQP 0-9-1."""


def unique(what="queue"):
    return f"{what}-{uuid.uuid4().hex}"


@contextmanager
def plain_channel(amqp_url):
    """A channel of pika's own blocking client, with confirms."""
    connection = pika.BlockingConnection(Address.parse(amqp_url).parameters("test"))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


def put(amqp_url, queue, *bodies, **properties):
    with plain_channel(amqp_url) as channel:
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties), mandatory=True)


def ready(amqp_url, queue):
    """How many messages wait in the queue."""
    with plain_channel(amqp_url) as channel:
        return channel.queue_declare(queue, passive=True).method.message_count


def take_all(amqp_url, queue):
    """All messages that wait in the queue, taken out: (body, headers) each."""
    found = []
    with plain_channel(amqp_url) as channel:
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((message[2], message[1].headers or {}))
    return found


def delete(amqp_url, queue):
    with plain_channel(amqp_url) as channel:
        channel.queue_delete(queue)


class Desk:
    """A consumer with everything that it reports."""

    def __init__(self, amqp_url, queue, *, prefetch=100, bytes_held=2**28, **settings):
        self.counts = Counter()
        self.queue = WorkQueue(name=queue, **{"retry": NO_WAIT, **settings})
        self.consumer = Consumer(
            Address.parse(amqp_url),
            ConsumerSettings(
                queue=self.queue,
                wake=lambda: None,
                count=self._count,
                name="test desk",
                prefetch=prefetch,
                bytes_held=bytes_held,
            ),
        )

    def _count(self, name, count):
        self.counts[name] += count

    def __enter__(self):
        self.consumer.start()
        return self

    def __exit__(self, *_):
        self.consumer.stop(timedelta(seconds=10))

    def next(self):
        return wait_until(self.consumer.get, message="a delivery")

    def take(self, count):
        return [self.next() for _ in range(count)]

    def ack(self, delivery):
        self.consumer.ack(delivery.epoch, delivery.tag)

    def wait_for(self, counter, count=1):
        wait_until(lambda: self.counts[counter] >= count, message=f"{count} {counter}, so far {self.counts}")

    def on_channel(self, function):
        """Call it with the pika channel, on its thread."""
        self.consumer._link.call(lambda: function(self.consumer._epoch._channel))


class Wire:
    """A TCP relay to RabbitMQ that can be cut; what is connected afterwards goes through again."""

    def __init__(self, amqp_url):
        parts = urlsplit(amqp_url)
        self._target = (parts.hostname, parts.port)
        self._port = 0
        self.forgetful = 0
        """So many connections, the next ones, lose all confirms."""
        self._sockets = []
        self._lock = threading.Lock()
        self.open()
        self.url = amqp_url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{self._port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self):
        """Let connections through, again after ``close``."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def close(self):
        """Break all connections, and let no more through."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self):
        """Break all connections as they are."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener):
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
                with self._lock:
                    self._sockets += [near, far]
                threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
                back = self._pump_but_confirms if self.forgetful else self._pump
                self.forgetful = max(0, self.forgetful - 1)
                threading.Thread(target=back, args=(far, near), daemon=True).start()

    def _pump(self, source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def _pump_but_confirms(self, source, sink):
        """What the broker says, frame by frame, but for its confirms."""
        with suppress(OSError), source.makefile("rb") as stream:
            while len(head := stream.read(7)) == 7:
                frame = head + stream.read(struct.unpack(">I", head[3:])[0] + 1)
                if head[0] != 1 or frame[7:11] != _BASIC_ACK:
                    sink.sendall(frame)
            sink.shutdown(socket.SHUT_RDWR)
