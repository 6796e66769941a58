"""The benchmark in small: the same processes and servers, a few thousand messages."""

import pytest
import redis

from bench import contest, latency, throughput
from bench.rig import WARM_UP, WORDS, BenchError, clear, running, servers
from bench.standby import measure as measure_standby

pytestmark = [pytest.mark.timeout(600), pytest.mark.embedded]


@pytest.fixture(scope="module")
def settings():
    with servers() as found:
        yield found


def test_a_topology_empties_its_queue_and_tells_how_fast(settings):
    with running("arrow", settings) as topology:
        topology.warm_up()
        drained = throughput.drain(topology, "arrow", 3_000)
        assert topology.reading.last().acked == WARM_UP + 3_000
        assert topology.counted() == (WARM_UP + 3_000) * WORDS
    assert drained.whole_per_s > 0
    assert drained.steady_per_s > 0
    assert {"Spark's JVM", "spout workers", "RabbitMQ"} <= set(drained.cpu_s)


def test_latency_is_that_of_every_message_after_the_first_seconds(settings):
    with running("basic", settings, timed=True) as topology:
        topology.warm_up()
        found = latency.measure(topology, 100, 2.0)
    assert 195 <= found.messages <= 200
    assert 0 < found.p50_ms <= found.p99_ms <= found.p999_ms


@pytest.mark.parametrize("what", ["bare", "inline"])
def test_a_consumer_without_a_framework_empties_its_queue(settings, what):
    drained = contest.consumer(what, settings, 2_000)
    assert drained.sentences == 2_000
    assert drained.whole_per_s > 0
    assert drained.cpu_s["peer"] > 0


def test_the_start_and_the_idle_processes_are_measured(settings):
    found = measure_standby(settings, 2.0)
    assert found.first_ack_s > 0
    assert "Spark's JVM" in found.idle_cpu_percent
    assert found.idle_percent == pytest.approx(sum(found.idle_cpu_percent.values()))


def test_a_run_whose_words_are_not_those_of_its_sentences_does_not_count(settings):
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        client.hincrby("bench-counts", "word1", 7)
    with pytest.raises(BenchError, match="20,007 words were counted instead of 20,000"):
        contest.consumer("inline", settings, 2_000)
    clear(settings, ["bench-inline"])
