"""The example over record batches on the real stack: sentences in one queue, their counts in another."""

import json
from collections import Counter

import pytest

from examples import arrow_word_count
from queues import Publisher, WorkQueue, declare_queue
from queues.depths import depths
from tests.broker import take_all
from tests.waiting import wait_until
from workers.config import Settings
from workers.local import LocalRun

pytestmark = pytest.mark.timeout(300)

SENTENCES = [f"the falcon {number % 13}  and the tiercel {number % 7}" for number in range(500)] + ["", " "]
WORDS = Counter(word for sentence in SENTENCES for word in sentence.split())


def test_every_word_is_counted_and_every_sentence_is_acked(services):
    for queue in ("sentences", "word-counts"):
        declare_queue(services.amqp_url, WorkQueue(name=queue))
    with Publisher(services.amqp_url) as publisher:
        publisher.publish("sentences", [sentence.encode() for sentence in SENTENCES])
    counted: Counter[str] = Counter()

    def all_counted():
        for body, _ in take_all(services.amqp_url, "word-counts"):
            message = json.loads(body)
            counted[message["word"]] += message["n"]
        return counted >= WORDS

    def all_acked():
        (depth,) = depths(services.amqp_url, ["sentences"], services.management_url)
        return depth.ready == depth.unacked == depth.dead_lettered == 0

    settings = Settings.load(master="local[2]").with_services(services.amqp_url, services.redis_url, services.management_url)
    with LocalRun("examples.arrow_word_count:topology", arrow_word_count.topology(), settings):
        wait_until(all_counted, 120, "all words to be counted")
        wait_until(all_acked, 60, "all sentences to be acked")
    # A sentence that timed out on a busy machine was counted again; no word is one that nobody wrote.
    assert counted.keys() == WORDS.keys()
