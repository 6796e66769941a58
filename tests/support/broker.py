"""RabbitMQ for the tests: a second, plain client beside the code under test."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
import uuid
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import pika

from tests.support.waiting import wait_until
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, check_server
from tiercel.queues.consuming.consumer import Consumer, ConsumerSettings
from tiercel.queues.message.writing import OutgoingMessage
from tiercel.queues.retry import NO_WAIT

# Of the fixture ``impatient``: 30 minutes, scaled down.
CONSUMER_TIMEOUT_S = 4.0


def unique(what="queue"):
    return f"{what}-{uuid.uuid4().hex}"


def wait_timeouts(count):
    """Wait for this many consumer timeouts of the fixture ``impatient``."""
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > count * CONSUMER_TIMEOUT_S)


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


def restart_in_order(server):
    """Restart the broker cleanly after queues were declared, before it is killed.

    RabbitMQ 3.10 may forget a queue, classic or quorum, when it is killed within seconds of its
    first start: of 70 brokers, one began again with "Recovering 0 queues", though Mnesia's log had
    the queue when it was killed.
    """
    server.restart(keep_data=True)


def manage(server, path, **settings):
    """Create an object through the management interface: ``rabbitmqctl`` takes seconds to start."""
    _call(server, path, "PUT", json.dumps(settings).encode())


def delete_queues(server):
    """Delete the queues of the default virtual host, except those that end with a connection."""
    found = json.loads(_call(server, "queues/%2F?columns=name,exclusive&disable_stats=true", "GET"))
    with plain_channel(server.url) as channel:
        for queue in found:
            if not queue["exclusive"]:
                channel.queue_delete(queue["name"])


def _call(server, path, method, body=None):
    url = urlsplit(server.management_url)
    login = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
    request = urllib.request.Request(
        f"http://{url.hostname}:{url.port}/api/{path}",
        data=body,
        headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def add_user(server, name, *, configure="", write=".*", tags=""):
    """Add a user whose password is its name, with permission to read everything."""
    manage(server, f"users/{name}", password=name, tags=tags)
    manage(server, f"permissions/%2F/{name}", configure=configure, write=write, read=".*")


def set_policy(server, name, pattern, definition, *, kind="policies", **settings):
    """Set a policy for queues and exchanges, or for the kind in ``apply_to``."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    manage(server, f"{kind}/%2F/{name}", pattern=pattern, definition=definition, **given)


def put(amqp_url, queue, *bodies, **properties):
    with plain_channel(amqp_url) as channel:
        for body in bodies:
            channel.basic_publish(
                "", queue, body, pika.BasicProperties(delivery_mode=2, **properties), mandatory=True
            )


def to_queues(messages):
    """Return messages for ``publish_each``, each from a queue and a body."""
    return [OutgoingMessage(routing_key=queue, body=body) for queue, body in messages]


def ready(amqp_url, queue):
    """Count the ready messages of the queue."""
    with plain_channel(amqp_url) as channel:
        return channel.queue_declare(queue, passive=True).method.message_count


def wait_ready(amqp_url, queue, count):
    """Wait until this many messages are ready: a quorum queue counts returned or published messages
    a moment later.
    """
    wait_until(lambda: ready(amqp_url, queue) == count, message=f"{count} messages in {queue}")


def take_all(amqp_url, queue):
    """Take all ready messages from the queue; return (body, headers) of each."""
    found = []
    with plain_channel(amqp_url) as channel:
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((message[2], message[1].headers or {}))
    return found


def take_raw(amqp_url, queue):
    """Like ``take_all``, for headers of any kind."""
    found = []
    with connected(Address.parse(amqp_url), "test") as connection:
        channel = connection.channel()
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((message[2], message[1].headers or {}))
    return found


def version(amqp_url):
    """Return the broker's major and minor version."""
    connection = pika.BlockingConnection(Address.parse(amqp_url).parameters("test"))
    try:
        return check_server(connection, Address.parse(amqp_url))
    finally:
        connection.close()


def delete(amqp_url, queue):
    with plain_channel(amqp_url) as channel:
        channel.queue_delete(queue)


class Desk:
    """A consumer, with a record of all that it reports."""

    def __init__(
        self, amqp_url, queue, *, prefetch=100, bytes_held=2**28, management_url=None,
        name="test desk", **settings,
    ):  # fmt: skip
        self.counts = Counter()
        self.queue = WorkQueue(name=queue, **{"retry": NO_WAIT, **settings})
        self.consumer = Consumer(
            Address.parse(amqp_url),
            ConsumerSettings(
                queue=self.queue,
                wake=lambda: None,
                count=self._count,
                name=name,
                prefetch=prefetch,
                bytes_held=bytes_held,
                management_url=management_url,
            ),
        )

    def _count(self, name, count):
        self.counts[name] += count

    def __enter__(self):
        self.consumer.start()
        return self

    def __exit__(self, *_):
        self.consumer.stop(timedelta(seconds=10))

    def next(self, timeout=30):
        return self.some(1, timeout)[0]

    def some(self, limit=1000, timeout=30):
        """Take all deliveries as soon as there is one. Polling without a pause would keep the
        interpreter from the other threads.
        """
        return wait_until(lambda: self.consumer.get(limit), timeout, message="a delivery")

    def take(self, count):
        return [self.next() for _ in range(count)]

    def ack(self, delivery):
        self.consumer.ack(delivery.epoch, delivery.tag)

    def wait_for(self, counter, count=1):
        wait_until(
            lambda: self.counts[counter] >= count,
            message=f"{count} {counter}, so far {self.counts}",
        )

    def on_channel(self, function):
        """Call a function with the pika channel, on its thread."""
        self.consumer._link.call(lambda: function(self.consumer._epoch._channel))
