"""Batches whose process is killed, with bad and deadly messages among them: each message is judged
by itself.
"""

import json
import os
import signal
import sqlite3
from contextlib import closing, suppress

import pytest

from tests.faults import batched
from tests.faults.deadly import EFFECTS
from tests.support.children import python_workers
from tests.support.running import running
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.queues.errors import QueuesError
from tiercel.queues.publishing import dead_letters

pytestmark = pytest.mark.timeout(900)

GOOD = 20_000
BAD = (-1, -2)
DEADLY = GOOD
WITHIN_S = 300
KILLS = 3


def stored(topology):
    with (
        closing(batched.database(topology.folder)) as database,
        suppress(sqlite3.OperationalError),  # there is no table yet
    ):
        return {number for [number] in database.execute("SELECT number FROM rows")}
    return set()


def publish(topology, numbers):
    with Publisher(topology.amqp_url) as publisher:
        publisher.publish(
            batched.QUEUE,
            (json.dumps({"number": one, "deadly": one == DEADLY}).encode() for one in numbers),
        )


def test_killed_batches_are_stored_whole_and_what_is_bad_or_deadly_is_dead_lettered_alone(
    tmp_path, servers
):
    numbers = [*range(GOOD)]
    for place, number in zip((500, 7_000, 12_000), (BAD[0], DEADLY, BAD[1]), strict=True):
        numbers.insert(place, number)
    with running(
        "tests.faults.batched:topology",
        tmp_path,
        EFFECTS,
        queues=(batched.QUEUE,),
        servers=servers,
    ) as topology:

        def dead():
            with suppress(QueuesError):
                return topology.depths(batched.QUEUE)[0].dead_lettered
            return None

        publish(topology, numbers)
        wait_until(
            lambda: (topology.folder / "rows.db").exists() and stored(topology),
            120,
            "the first row",
        )
        for _ in range(KILLS):
            before = len(stored(topology))
            workers = wait_until(lambda: python_workers(topology.run.driver.pid), 60, "a worker")
            os.kill(workers[-1], signal.SIGKILL)
            wait_until(lambda least=before: len(stored(topology)) > least, WITHIN_S, "more rows")
        wait_until(lambda: len(stored(topology)) == GOOD, WITHIN_S, "every row")
        wait_until(lambda: dead() == len(BAD) + 1, WITHIN_S, "the others to be dead-lettered")
        assert stored(topology) == {*range(GOOD)}
        letters = dead_letters.show(topology.amqp_url, batched.QUEUE, limit=10)
        reasons = {json.loads(letter.preview)["number"]: letter.reason for letter in letters}
    assert reasons.keys() == {*BAD, DEADLY}
    assert all("IntegrityError: CHECK constraint failed" in reasons[number] for number in BAD)
    assert "the Python process died" in reasons[DEADLY]
