"""The topology of the fault tests: numbered messages, a fan-out of ten, a fields grouping, and
effects that survive.

An effect is a line in a file of its task, written before the ack, so no server that a test kills
can lose it. A fault that must strike at one moment of a step is ordered by a file, and carried out
by the bolt that reaches that moment.
"""

import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path

from tests.faults.executions import EFFECTS, Lines, first_folder
from tiercel import BasicBolt, Config, QueueSpout, RetryPolicy, TopologyBuilder
from tiercel.spark_jobs.running.commit import Committer

NAME = "numbered"
QUEUE = "numbered"
FAN_OUT = 10
SPOUTS = 2
PREFETCH = 1_000
# The most unacked messages at the broker, and so the most that one fault may repeat.
IN_FLIGHT = SPOUTS * PREFETCH
# Kinds of processes that an order may kill.
EXECUTOR = "executor"
PYTHON_WORKER = "Python worker"
_LATE_S = 2
# An executor's Python processes end some milliseconds after its JVM.
_UNTIL_THE_DAEMON_S = 60


class Order:
    """A fault that one bolt task carries out once, as soon as it can.

    The file says what to kill.
    """

    FIRST_BOLT = "first-bolt"
    # The step's effects have left, but its inbox has not released it.
    ONCE_COMMITTED = "once-committed"
    SECOND_BOLT = "second-bolt"
    OTHER_WORK = "other-work"
    # A step that did other work has sent its effects.
    THEN_KILL = "then-kill"
    # No order: the second bolt commits nothing until the first one has repeated that step, whose
    # trees so are open.
    HOLD = "hold"
    # The bolt's other task has done many steps meanwhile.
    LATE_IN_THE_SECOND_BOLT = "late-in-the-second-bolt"
    # Not an order: the time of the last kill.
    STRUCK = "struck"
    # In force while it exists: emissions depend on the process.
    UNSTEADY = "unsteady"
    # In force while it exists: one tuple in a hundred fails.
    RAISE = "raise"

    @staticmethod
    def place(folder: Path) -> Path:
        """Return the folder of the orders that belongs to a folder of effects."""
        return folder.with_name(folder.name + "-orders")

    @staticmethod
    def stands(name: str) -> bool:
        return (Order.place(Path(os.environ[EFFECTS])) / name).exists()

    @staticmethod
    def taken(name: str) -> str | None:
        """Return what to kill, if this task is to carry out the order."""
        order = Order.place(Path(os.environ[EFFECTS])) / name
        ours = order.with_name(f"{name}-{os.getpid()}-{time.monotonic_ns()}")
        try:
            order.rename(ours)
        except FileNotFoundError:
            return None
        what = ours.read_text()
        ours.unlink()
        return what


def executor_of(worker: int) -> int:
    """Return the JVM whose tasks a Python worker runs: the parent of the daemon that forked it."""
    return _parent(_parent(worker))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def die(what: str) -> None:
    """Kill the executor or the Python worker that runs this; never returns."""
    (Order.place(Path(os.environ[EFFECTS])) / Order.STRUCK).write_text(str(time.time()))
    if what == EXECUTOR:
        os.kill(executor_of(os.getpid()), signal.SIGKILL)
        # This process would go on until its daemon noticed, a case tested in test_vanished.py.
        time.sleep(_UNTIL_THE_DAEMON_S)
    os.kill(os.getpid(), signal.SIGKILL)


def die_once_committed(task: int, what: str) -> None:
    """Kill once this task's current step has sent its effects, and before its inbox forgets it."""
    commit = Committer.commit

    def and_die(self, covered, done, states):
        reply = commit(self, covered, done, states)
        if self._sender.task == task:
            die(what)
        return reply

    Committer.commit = and_die


class FanOut(BasicBolt):
    output_fields = "number long, part long, bucket string"
    transient = frozenset({"lines", "task", "steps"})

    def prepare(self, config, context):
        self.task = context.task_id
        self.steps = 0
        self.lines = Lines(first_folder(Path(os.environ[EFFECTS])), self.task)
        self.raising = self.other = self.unsteady = False

    def execute(self, tup, collector):
        self.lines.add(tup["number"], 0)
        if self.raising and random.random() < 0.01:
            raise ValueError("one in a hundred")
        shift = os.getpid() if self.other or self.unsteady else 0
        for part in range(FAN_OUT):
            collector.emit([tup["number"], part, f"bucket {(tup['number'] + part + shift) % 97}"])

    def flush(self, collector):
        self.lines.write()
        self.raising, self.unsteady = Order.stands(Order.RAISE), Order.stands(Order.UNSTEADY)
        if what := Order.taken(Order.FIRST_BOLT):
            die(what)
        if what := Order.taken(Order.ONCE_COMMITTED):
            die_once_committed(self.task, what)
        if self.other and (what := Order.taken(Order.THEN_KILL)):
            (Order.place(Path(os.environ[EFFECTS])) / Order.HOLD).write_text(
                f"{self.task} {os.getpid()}"
            )
            die_once_committed(self.task, what)
        self.steps += 1
        self.let_go()
        # From the next step on, the buckets depend on the process, as in a bolt that is not
        # deterministic.
        self.other = bool(Order.taken(Order.OTHER_WORK))

    def let_go(self):
        """Remove the hold: a new process's first step may be the repeated one.

        It is committed at the end of the second step.
        """
        held = Order.place(Path(os.environ[EFFECTS])) / Order.HOLD
        if self.steps >= 2 and held.exists():
            task, process = map(int, held.read_text().split())
            if task == self.task and process != os.getpid():
                held.unlink()


class Record(BasicBolt):
    transient = frozenset({"lines"})

    def prepare(self, config, context):
        self.lines = Lines(Path(os.environ[EFFECTS]), context.task_id)

    def execute(self, tup, collector):
        self.lines.add(tup["number"], tup["part"])

    def flush(self, collector):
        self.lines.write()
        if what := Order.taken(Order.SECOND_BOLT):
            die(what)
        if what := Order.taken(Order.LATE_IN_THE_SECOND_BOLT):
            time.sleep(_LATE_S)
            die(what)
        while Order.stands(Order.HOLD):
            time.sleep(0.01)


class Pass(BasicBolt):
    """Executes in the first bolt's steps, so that a death there kills a row of bolts."""

    output_fields = "number long, part long, bucket string"

    def execute(self, tup, collector):
        collector.emit(tup.values)


def topology():
    builder = TopologyBuilder(NAME, Config(message_timeout_secs=15, shutdown_grace_secs=5))
    retry = RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1))
    spout = QueueSpout(QUEUE, fields="number long", format="json", retry=retry, prefetch=PREFETCH)
    builder.set_spout("numbers", spout, parallelism=SPOUTS)
    builder.set_bolt("fan-out", FanOut(), parallelism=2).shuffle_grouping("numbers")
    builder.set_bolt("pass", Pass(), parallelism=2).shuffle_grouping("fan-out")
    builder.set_bolt("record", Record(), parallelism=2).fields_grouping("pass", "bucket")
    return builder.build()
