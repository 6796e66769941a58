"""The benchmark in small: the same processes and servers, a few thousand messages."""

import pytest
import redis

from bench import contest, latency, throughput
from bench.rig import BenchError, clear, running, servers
from bench.standby import measure as measure_standby

pytestmark = [pytest.mark.timeout(900), pytest.mark.embedded]


@pytest.fixture(scope="module")
def settings():
    with servers() as found:
        yield found


def test_a_topology_is_measured_at_a_steady_rate_and_with_a_full_queue(settings):
    with running("basic", settings, timed=True) as topology:
        topology.warm_up()
        found = latency.measure(topology, 100, 2.0)
        before = topology.reading.last().acked
        drained = throughput.drain(topology, "basic", 3_000)
        assert topology.reading.last().acked == before + 3_000
    # The first five seconds do not count.
    assert 195 <= found.messages <= 200
    assert 0 < found.p50_ms <= found.p99_ms <= found.p999_ms
    assert drained.whole_per_s > 0
    assert drained.steady_per_s > 0
    assert {"Spark's JVM", "spout workers", "RabbitMQ"} <= set(drained.cpu_s)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrow", "untracked"])
def test_the_other_kinds_count_every_word_too(settings, kind):
    drained = throughput.tiercel(kind, settings, 3_000)
    assert drained.sentences == 3_000


@pytest.mark.parametrize("what", ["bare", "inline"])
def test_a_consumer_without_a_framework_empties_its_queue(settings, what):
    drained = contest.consumer(what, settings, 2_000)
    assert drained.sentences == 2_000
    assert drained.whole_per_s > 0
    assert drained.cpu_s["peer"] > 0


@pytest.mark.slow
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
