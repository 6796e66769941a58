"""Executors join a run and are lost: which extra tasks begin and end, and what is released."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.chunks import chunk
from tests.support.inboxes import opened, parcel, put, take
from tests.support.pump import Source
from tiercel import BasicBolt, TopologyBuilder
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Token
from tiercel.acker.memory import MemoryLedger
from tiercel.spark_jobs.spark.executors import Executor, Readiness
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.suspects.book import Case, Suspect
from tiercel.spark_jobs.topology.graph import extra_task, inboxes_of, spread
from tiercel.workers.control.presence import UNATTENDED_S
from tiercel.workers.driver import joining
from tiercel.workers.driver.joining import Joining, Present
from tiercel.workers.driver.process import end_extra
from tiercel.workers.driver.run_watch import START_S, SURE_LOOKS, RunContext

SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=timedelta(seconds=30))
BOLTS = (2, 3, 4, 5)
LINE = line_of(BOLTS)


def topology(group="shuffle_grouping", fields=()):
    builder = TopologyBuilder("t")
    builder.set_spout("words", Source("word string"))
    subscriber = builder.set_bolt("bolt", BasicBolt(), parallelism=len(BOLTS))
    getattr(subscriber, group)("words", *fields)
    return builder.build()


class Spark:
    """Executors of one slot each, and the hosts that run on them: the run's own, and further ones.

    Hosts run on the executors in the order of their numbers, each where a slot is free.
    """

    grows = True

    def __init__(self, hosts):
        self.ids = [str(number) for number in range(len(hosts))]
        self.own = list(hosts)
        self.further = []
        self.over = []
        self.leaving = set()
        self.answers = []
        self.asked = []
        self.places = dict(zip(self.own, self.ids, strict=True))

    @property
    def staying(self):
        return ",".join(id_ for id_ in self.ids if id_ not in self.leaving)

    def executors(self):
        used = set(self.places.values())
        return [
            Executor(id=id_, slots=1, running=int(id_ in used), leaving=id_ in self.leaving)
            for id_ in self.ids
        ]

    @property
    def free(self):
        return sum(one.free for one in self.executors())

    def ready(self, wanted):
        self.asked.append(wanted)
        return self.answers.pop(0) if self.answers else Readiness(slots=wanted)

    def send_away(self, executor):
        self.leaving.add(executor)

    def end_of(self, executor):
        return f"Executor decommission: {executor}" if executor == "3" else "it was killed"

    def has(self, executors):
        """Executors come and go, from the end."""
        self.ids = [str(number) for number in range(executors)]

    # -- the tasks of the run --

    def places_now(self):
        return {host: id_ for host, id_ in self.places.items() if id_ in self.ids}

    def join(self, host):
        used = set(self.places_now().values())
        free = [id_ for id_ in self.ids if id_ not in used and id_ not in self.leaving]
        self.further.append(host)
        self.places[host] = free[0]

    def leave(self, host):
        self.further.remove(host)
        self.over = [one for one in self.over if one != host]
        self.places.pop(host, None)


class Tasks:
    """The Spark jobs of the run, as ``LongTasks``."""

    def __init__(self, spark):
        self._spark = spark
        self.join, self.leave = spark.join, spark.leave

    @property
    def further(self):
        return list(self._spark.further)

    @property
    def over(self):
        return list(self._spark.over)

    def executors(self):
        return self._spark.places_now()


class Stage:
    """A run on a cluster that changes, looked after by ``Joining``."""

    def __init__(self, executors=2, hosts=None, group="shuffle_grouping", fields=()):
        self.topology = topology(group, fields)
        hosts = hosts or spread(BOLTS, executors)
        self.spark = Spark(hosts)
        self.spark.has(executors)
        self.inboxes, self.ledger = MemoryInboxes(), MemoryLedger(SPEC)
        self.book = MemoryCaseBook()
        self.feed = self.ledger.feed(1)
        self.run = Run(
            id="7",
            topology=self.topology,
            hosts=hosts,
            ledger=SPEC,
            run_number=7,
        )
        self.inboxes.adopt("7", inboxes_of(self.topology))
        context = RunContext(
            topology=self.topology,
            lease=None,
            control=None,
            inboxes=self.inboxes,
            make=None,
            enter=None,
            end_extra=self.end_extra,
        )
        ready = Readiness(slots=executors)
        self.joining = Joining(context, self.spark, self.run, Tasks(self.spark), ready)
        self.now = time.monotonic() + joining._FIRST_S

    def end_extra(self, run, tasks):
        return sum(
            end_extra(run.id, run.topology, task, self.inboxes, self.ledger, self.book)
            for task in tasks
        )

    def look(self, times=1):
        """Look as the driver does, and let executors answer between two looks."""
        for _ in range(times):
            self.now += 1
            self.joining.look(self.now)
            self.joining.close()

    def has(self, executors):
        self.spark.has(executors)
        self.look(2)

    def attend(self, *hosts):
        for host in hosts or self.spark.further:
            for task in host:
                opened(self.inboxes, task, "7", LINE)
                self.inboxes.beat("7", {task: 1}, {}, "")

    def adopted(self, *tasks):
        return [one.adopted for one in self.inboxes.figures(tasks).values()]


def numbered(*tasks, number):
    return tuple(extra_task(task, number) for task in tasks)


def test_an_executor_that_joins_gets_tasks_beside_those_of_one_spark_task(caplog):
    caplog.set_level("INFO")
    stage = Stage()
    stage.look(3)
    assert (stage.spark.further, stage.spark.asked) == ([], [])
    stage.has(3)
    assert stage.spark.further == [numbered(2, 4, number=1)]
    assert stage.adopted(*stage.spark.further[0]) == [True, True]
    assert "run 7 of t: 2 bolt tasks in 1 Spark task more" in caplog.text
    stage.has(5)
    assert stage.spark.further[1:] == [numbered(3, 5, number=2), numbered(2, 4, number=3)]
    assert stage.spark.asked == [1, 2]
    stage.look(3)
    assert len(stage.spark.further) == 3, "nothing more joined"


def test_a_run_that_uses_half_of_its_slots_uses_half_of_those_that_join():
    stage = Stage(executors=4, hosts=spread(BOLTS, 2))
    stage.has(8)
    assert len(stage.spark.further) == 2


def test_executors_that_come_at_the_start_of_a_run_with_all_its_tasks_spread_are_its_first():
    stage = Stage(executors=4)
    stage.now -= joining._FIRST_S
    stage.has(6)
    assert stage.spark.further == []
    stage.now += joining._FIRST_S
    stage.has(7)
    assert len(stage.spark.further) == 1


def test_an_executor_that_replaces_a_lost_one_joins_nothing():
    stage = Stage()
    stage.has(1)
    stage.has(2)
    assert stage.spark.further == []


def test_an_executor_that_is_gone_is_missed_at_the_next_look_and_one_that_left_is_not(caplog):
    stage = Stage(executors=4)
    stage.look()
    stage.has(3)
    stage.spark.leaving.add("2")
    stage.look(2)
    stage.has(2)
    assert "is gone" not in caplog.text
    stage.spark.has(1)
    stage.look()
    [said] = [each.getMessage() for each in caplog.records if each.event == "executor_lost"]
    assert said.startswith("executor 1 is gone: it was killed; Spark starts its bolt tasks")


@pytest.mark.parametrize(("group", "fields"), [("fields_grouping", ["word"]), ("all_grouping", [])])
def test_where_tasks_are_addressed_nobody_joins(group, fields):
    stage = Stage(group=group, fields=fields)
    stage.has(3)
    assert (stage.spark.further, stage.spark.asked) == ([], [])


def test_executors_that_join_after_all_numbers_are_used_need_a_new_run(monkeypatch, caplog):
    monkeypatch.setattr(joining, "_MOST_NUMBERS", 2)
    caplog.set_level("INFO")
    stage = Stage()
    for _ in range(2):
        stage.has(3)
        assert len(stage.spark.further) == 1
        stage.spark.over = list(stage.spark.further)
        stage.has(2)
    assert not stage.joining.is_used_up, "nobody waits for a task"
    stage.has(3)
    stage.look(5)
    assert stage.joining.is_used_up
    assert stage.spark.asked == [1, 1]
    assert caplog.text.count("2 times an executor has joined run 7") == 1


def test_an_executor_that_cannot_start_python_gets_nothing_and_is_asked_again(caplog):
    stage = Stage()
    stage.spark.answers = [Readiness(slots=0, unfit=1, trouble="executor 9 cannot start Python")]
    stage.has(3)
    assert stage.spark.further == []
    assert "executor 9 cannot start Python; the other executors work" in caplog.text
    stage.look(4)
    assert len(stage.spark.further) == 1
    assert stage.spark.asked == [1, 1]


def test_of_several_executors_those_that_start_python_get_tasks():
    stage = Stage()
    stage.spark.answers = [Readiness(slots=1, unfit=1, trouble="executor 9 cannot start Python")]
    stage.has(4)
    assert len(stage.spark.further) == 1


def missing_for(stage, seconds):
    """Nothing is heard of the extra tasks for this long."""
    figures = stage.inboxes.figures
    stage.inboxes.figures = lambda tasks: {
        task: one if one.seen_s is None else replace(one, seen_s=seconds)
        for task, one in figures(tasks).items()
    }


def test_extra_tasks_without_a_process_end_and_their_messages_are_released(caplog):
    caplog.set_level("INFO")
    stage = Stage()
    stage.has(3)
    [host] = stage.spark.further
    stage.attend()
    task = host[0]
    stage.ledger.register(1, [10, 11], [1, 1])
    assert put(stage.inboxes, 1, parcel(chunk(10, 11), target=LINE, tuples=[2]), run="7") == [
        Appended.DONE
    ]
    inbox = opened(stage.inboxes, task, "7", LINE)
    assert len(take(inbox, claims=10, more=10)) == 1
    missing_for(stage, UNATTENDED_S + 1)
    stage.look(SURE_LOOKS - 1)
    assert stage.spark.further == [host], "Spark has not noticed yet"
    stage.spark.has(2)
    stage.look()
    assert stage.spark.further == []
    assert sorted(stage.feed.read(timedelta(0)).released) == [10, 11]
    assert stage.adopted(*host) == [False, False], "their inboxes are deleted"
    assert "the extra tasks 1000002, 1000004 is gone" in caplog.text
    assert "released 2 messages that extra tasks had taken" in caplog.text
    stage.look(3)
    assert stage.spark.further == []


def test_extra_tasks_for_which_spark_has_no_slot_end_within_three_seconds():
    stage = Stage()
    stage.has(4)
    first, second = stage.spark.further
    stage.attend()
    stage.spark.has(3)
    stage.look(3)
    assert stage.spark.further == [first, second], "their processes have just reported"
    missing_for(stage, joining._SILENT_S + 0.1)
    stage.look()
    assert stage.spark.further == [first, second]
    stage.look()
    assert stage.spark.further == [first], "the other one is only silent"


def test_while_spark_does_not_answer_no_extra_tasks_end():
    stage = Stage()
    stage.has(3)
    stage.attend()
    missing_for(stage, joining._SILENT_S + 0.1)
    stage.joining._tasks.executors = lambda: 1 / 0
    stage.look(5)
    assert len(stage.spark.further) == 1
    assert not stage.joining.retire("0")


def test_a_number_is_used_once_in_a_run():
    stage = Stage()
    stage.has(3)
    stage.attend()
    missing_for(stage, UNATTENDED_S + 1)
    stage.spark.has(2)
    stage.look(SURE_LOOKS)
    assert stage.spark.further == []
    stage.has(3)
    assert stage.spark.further == [numbered(3, 5, number=2)]


def test_extra_tasks_that_start_slowly_have_the_time_of_a_start():
    stage = Stage()
    stage.has(3)
    stage.now += START_S - 10
    stage.look(SURE_LOOKS)
    assert len(stage.spark.further) == 1
    stage.now += 10
    stage.spark.has(2)
    stage.look(SURE_LOOKS)
    assert stage.spark.further == []


class Extra:
    """An extra task that has taken tuples, and then died."""

    task = extra_task(2, 1)

    def __init__(self):
        self.stage = Stage()
        self.stage.inboxes.adopt("7", [*inboxes_of(self.stage.topology), self.task])
        self.stage.ledger.register(1, [10, 11, 12], [1] * 3)
        parcels = [parcel(chunk(10, 11), chunk(12), target=LINE, tuples=[2, 1])]
        assert put(self.stage.inboxes, 1, *parcels, run="7") == [Appended.DONE]
        self.inbox = opened(self.stage.inboxes, self.task, "7", LINE)
        assert len(take(self.inbox, claims=10, more=10)) == 2

    def end(self, run="7"):
        stage = self.stage
        parts = (stage.inboxes, stage.ledger, stage.book)
        return end_extra(run, stage.topology, self.task, *parts)

    def released(self):
        return sorted(self.stage.feed.read(timedelta(0)).released)


def test_the_end_of_an_extra_task_releases_what_it_had_taken_once():
    extra = Extra()
    assert extra.end() == 3
    assert extra.released() == [10, 11, 12]
    assert extra.end() == 0
    assert extra.stage.ledger.pending() == 0


def test_a_process_that_comes_back_late_is_refused():
    extra = Extra()
    extra.end()
    with pytest.raises(StaleAttemptError):
        take(extra.inbox)


def test_messages_that_killed_its_process_twice_fail():
    extra = Extra()
    guilty = Suspect(component="bolt", task=extra.task, seed=1, roots=(11,), deaths=1)
    token = Token(run="7", task=extra.task, step=0)
    extra.stage.book.begin(token, Case(suspects=(guilty,)))
    extra.stage.book.note(token, guilty)
    extra.end()
    outcomes = extra.stage.feed.read(timedelta(0))
    assert [one.root for one in outcomes.failed] == [11]
    assert sorted(outcomes.released) == [10, 12]


def test_an_extra_task_of_a_run_that_is_over_is_left_to_its_successor():
    extra = Extra()
    extra.stage.inboxes.adopt("8", [*inboxes_of(extra.stage.topology), extra.task])
    with pytest.raises(StaleAttemptError):
        extra.end()
    assert extra.released() == []


def leaving(stage, *tasks):
    """The tasks that hear with their next beat that they should leave."""
    return stage.inboxes.beat("7", dict.fromkeys(tasks, 1), {}, "").leaving


def test_an_executor_that_is_retired_empties_and_gets_nothing_more(caplog):
    caplog.set_level("INFO")
    stage = Stage()
    stage.has(4)
    first, second = stage.spark.further
    stage.attend()
    assert stage.joining.retire("2")
    stage.look()
    assert "executor 2 leaves: its tasks finish" in caplog.text
    assert leaving(stage, *first) == [*first]
    assert leaving(stage, *second) == []
    assert [one.retiring for one in stage.joining.present()] == [False, False, True, False]
    stage.spark.over.append(first)
    stage.look(3)
    assert stage.spark.further == [second], "nothing starts on its slot"
    assert stage.adopted(*first) == [False, False]
    assert stage.joining.present() == [
        Present(id="0", own=2, idle=True),
        Present(id="1", own=2, idle=True),
        Present(id="2", idle=True, retiring=True),
        Present(id="3", extra=second, idle=True),
    ]
    assert stage.joining.retire("2"), "again"
    assert caplog.text.count("leaves") == 1


def test_an_executor_with_tasks_of_the_runs_own_is_not_retired():
    stage = Stage()
    stage.has(3)
    assert not stage.joining.retire("0")
    stage.look()
    assert stage.spark.leaving == set()


def test_tasks_of_an_executor_that_spark_has_leave_are_asked_to_leave_too():
    stage = Stage(group="fields_grouping", fields=["word"])
    for task in BOLTS:
        opened(stage.inboxes, task, "7")
    stage.spark.leaving.add("1")
    stage.look()
    assert leaving(stage, *BOLTS) == [3, 5]


def test_a_task_that_begins_while_its_executor_leaves_is_asked_too():
    stage = Stage()
    stage.has(3)
    [host] = stage.spark.further
    stage.joining.retire("2")
    stage.look()
    stage.attend()
    assert leaving(stage, *host) == []
    stage.look()
    assert leaving(stage, *host) == [*host]


def test_what_extra_tasks_that_ended_had_taken_is_released_when_redis_is_back():
    stage = Stage()
    stage.has(3)
    [host] = stage.spark.further
    stage.ledger.register(1, [10, 11], [1, 1])
    given = parcel(chunk(10, 11), target=LINE, tuples=[2])
    assert put(stage.inboxes, 1, given, run="7") == [Appended.DONE]
    assert take(opened(stage.inboxes, host[0], "7", LINE), claims=10, more=10)
    stage.spark.over.append(host)
    fail, stage.ledger.fail = stage.ledger.fail, _away
    stage.spark.has(2)
    stage.look(2)
    assert stage.spark.further == []
    assert not stage.feed.read(timedelta(0)).released
    stage.ledger.fail = fail
    stage.look()
    assert sorted(stage.feed.read(timedelta(0)).released) == [10, 11]
    assert stage.adopted(*host) == [False, False]


def _away(_):
    raise RedisUnavailableError("away")


def test_an_executor_is_idle_when_its_tasks_have_nothing():
    stage = Stage()
    stage.has(3)
    [host] = stage.spark.further
    stage.attend()

    def idle():
        return [one.idle for one in stage.joining.present()]

    assert idle() == [True, True, True]
    given = parcel(chunk(10), target=LINE)
    assert put(stage.inboxes, 1, given, run="7") == [Appended.DONE]
    assert take(opened(stage.inboxes, host[0], "7", LINE), claims=1)
    assert idle() == [True, True, False]
    stage.inboxes.beat("7", {host[1]: 1}, {host[1]: 1.5}, "")
    assert idle() == [True, True, False]


def test_a_run_that_lacks_executors_gives_none_extra_tasks_and_still_lets_them_leave():
    stage = Stage()
    stage.joining._joins = False
    stage.has(3)
    assert stage.spark.further == []
    stage.attend((2,))
    stage.spark.leaving.add("0")
    stage.look()
    assert leaving(stage, 2) == [2]
