"""A spout worker that is started before its Redis."""

import threading
from datetime import timedelta

from queues import Spout
from spark_jobs import BasicBolt, Config, TopologyBuilder
from spark_jobs.job import open_relay
from spark_jobs.levels import plan_topology
from tests.waiting import wait_until
from workers.spout_process import SpoutProcess


class Three(Spout):
    output_fields = "n long"

    def open(self, config, context):
        self.left = 3

    def next_tuple(self, collector):
        if self.left:
            collector.emit([self.left], msg_id=self.left)
            self.left -= 1


def topology():
    builder = TopologyBuilder("late", Config(shutdown_grace_secs=0))
    builder.set_spout("spout", Three())
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("spout")
    return builder.build()


def worker(url):
    process = SpoutProcess(topology(), "spout", 0, amqp_url="", redis_urls=(url,))
    thread = threading.Thread(target=process.run)
    thread.start()
    return process, thread


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(redis, caplog):
    server = redis()
    server.kill()
    process, thread = worker(server.url)
    try:
        wait_until(lambda: "Redis does not answer" in caplog.text, 30, "the worker to say so")
        assert thread.is_alive()
        server.start()
        relay = open_relay(server.url, plan_topology(topology(), max_lanes=1))
        relay.attend("run", timedelta(seconds=60))
        wait_until(relay.length, 30, "the worker to emit")
    finally:
        process.task.stop()
        thread.join(30)
    assert not thread.is_alive()


def test_a_worker_that_waits_for_redis_ends_when_it_is_asked_to(redis, caplog):
    server = redis()
    server.kill()
    process, thread = worker(server.url)
    wait_until(lambda: "Redis does not answer" in caplog.text, 30, "the worker to say so")
    process.task.stop()
    thread.join(30)
    assert not thread.is_alive()
