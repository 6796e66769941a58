"""The faults, by their names in the table. Each is over when its call returns.

They strike quick bolts and small bodies. Other faults are elsewhere:

* slow bolts: ``test_slow_work.py``; bodies of megabytes and odd headers: ``test_odd_load.py``;
  messages that kill or hang the Python process, or eat its memory: ``test_deadly.py``;
* executors and Python workers that die at one moment of a step: ``test_executors.py``; an executor
  that stands still for half a minute and comes back: ``test_vanished.py``; servers with replicas:
  ``test_replicas.py``; a clock of Redis that jumps, as the driver sees it:
  ``tests/unit/workers/driver/test_runs.py``;
* faults that repeat more than twenty times, and faults that last several consumer timeouts
  (scaled), for which Spark is not needed: ``tests/integration/queues/test_long_faults.py``.

All topologies have four bolt tasks on two slots, so that each process has several.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from tests.faults.numbered import Order
from tests.faults.stack import Stack
from tests.support.children import kill, python_workers
from tests.support.waiting import wait_until
from tiercel.acker.redis.clients import connect

Fault = Callable[[Stack], None]


def broker_killed(stack: Stack) -> None:
    stack.rabbitmq.kill()
    stack.rabbitmq.start()


def broker_away(stack: Stack) -> None:
    stack.rabbitmq.stop()
    time.sleep(20)
    stack.rabbitmq.start()


def broker_slow(stack: Stack) -> None:
    stack.broker_wire.delay_s = 2
    time.sleep(15)
    stack.broker_wire.delay_s = 0


def broker_alarmed(stack: Stack) -> None:
    stack.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    time.sleep(10)
    stack.rabbitmq.control("set_vm_memory_high_watermark", "0.4")


def channels_closed(stack: Stack) -> None:
    stack.rabbitmq.control(
        "eval", "[rabbit_channel:shutdown(Channel) || Channel <- rabbit_channel:list()]."
    )


def redis_emptied(stack: Stack) -> None:
    stack.redis.restart(keep_data=False)


def redis_restarted(stack: Stack) -> None:
    stack.redis.restart(keep_data=True)


def redis_paused(stack: Stack) -> None:
    stack.redis.pause()
    time.sleep(10)
    stack.redis.resume()


def redis_full(stack: Stack) -> None:
    client = connect(stack.redis.url)
    client.config_set("maxmemory", 1)
    time.sleep(10)
    client.config_set("maxmemory", 0)
    client.close()


def redis_read_only(stack: Stack) -> None:
    client = connect(stack.redis.url)
    client.replicaof("127.0.0.1", 1)
    time.sleep(10)
    client.replicaof("NO", "ONE")
    client.close()


def scripts_flushed(stack: Stack) -> None:
    client = connect(stack.redis.url)
    for _ in range(20):
        client.script_flush()
        time.sleep(0.1)
    client.close()


def replies_lost(stack: Stack) -> None:
    before = stack.redis_wire.lost
    for _ in range(40):
        stack.redis_wire.lose_next()
        time.sleep(0.1)
    assert stack.redis_wire.lost - before >= 20


def failed_over(stack: Stack) -> None:
    """Fail over to an empty replica."""
    replica = stack.another_redis()
    client = connect(replica.url)
    client.config_set("requirepass", urlsplit(stack.redis.url).password or "")
    client.close()
    stack.redis.pause()
    stack.redis_wire.retarget(replica.url)


def failed_back(stack: Stack) -> None:
    """Fail back to the first server, which has lost its data."""
    stack.redis.resume()
    client = connect(stack.redis.url)
    client.flushall()
    client.close()
    stack.redis_wire.retarget(stack.redis.url)


def spout_killed(stack: Stack) -> None:
    kill(stack.child("0"), signal.SIGKILL)


def spout_stands_still(stack: Stack) -> None:
    stack.signal("0", signal.SIGSTOP)
    time.sleep(60)
    stack.signal("0", signal.SIGCONT)


def driver_killed(stack: Stack) -> None:
    kill(stack.child("driver"), signal.SIGKILL)


def ended_and_started(name: str) -> Fault:
    """Restart a process as an operator or a container engine does: SIGTERM, and a new one after its
    end.
    """

    def fault(stack: Stack) -> None:
        stack.signal(name, signal.SIGTERM)
        wait_until(lambda: stack.child(name).exit_code == 0, 60, f"{name} to end")
        stack.start_again(name)

    return fault


def python_worker_killed(stack: Stack) -> None:
    # In the soak the driver may have just been restarted.
    workers = wait_until(lambda: python_workers(stack.pid("driver")), 120, "Spark's Python workers")
    os.kill(workers[-1], signal.SIGKILL)


def tuples_raise(stack: Stack) -> None:
    with stack.ordered(Order.RAISE):
        time.sleep(10)


FAULTS: dict[str, Fault] = {
    "broker: SIGKILL and start": broker_killed,
    "broker: away for 20 s, message timeout 15 s": broker_away,
    "broker: connections cut": lambda stack: stack.broker_wire.cut(),
    "broker: connections half-open": lambda stack: stack.broker_wire.mute(),
    "broker: everything 2 s late for 15 s": broker_slow,
    "broker: memory alarm for 10 s": broker_alarmed,
    "broker: closes every channel": channels_closed,
    "Redis: SIGKILL, comes back empty": redis_emptied,
    "Redis: restart with its data": redis_restarted,
    "Redis: SIGSTOP for 10 s": redis_paused,
    "Redis: out of memory for 10 s": redis_full,
    "Redis: read-only for 10 s": redis_read_only,
    "Redis: scripts flushed, 20 times in 2 s": scripts_flushed,
    "Redis: a reply lost every 0.1 s for 4 s": replies_lost,
    "Redis: connections cut": lambda stack: stack.redis_wire.cut(),
    "Redis: connections half-open": lambda stack: stack.redis_wire.mute(),
    "spout worker: SIGKILL": spout_killed,
    "spout worker: SIGTERM, started again": ended_and_started("0"),
    "spout worker: SIGSTOP for 60 s, message timeout 15 s": spout_stands_still,
    "driver: SIGKILL": driver_killed,
    "driver: SIGTERM, started again": ended_and_started("driver"),
    "Spark: a Python worker, SIGKILL": python_worker_killed,
    "bolt: 1 % of the tuples raise, for 10 s": tuples_raise,
}

# Two faults at once.
TOGETHER = [
    ("driver: SIGKILL", "Redis: SIGKILL, comes back empty"),
    ("broker: SIGKILL and start", "spout worker: SIGKILL"),
    ("broker: connections cut", "Redis: a reply lost every 0.1 s for 4 s"),
]

# Left to `make test-matrix`: each takes longer than the others, or shows the same as another.
SLOW = {
    "broker: connections cut",
    "broker: closes every channel",
    "Redis: read-only for 10 s",
    "bolt: 1 % of the tuples raise, for 10 s",
    "broker: away for 20 s, message timeout 15 s",
    "broker: everything 2 s late for 15 s",
    "broker: memory alarm for 10 s",
    "Redis: restart with its data",
    "Redis: scripts flushed, 20 times in 2 s",
    "Redis: connections cut",
    "spout worker: SIGTERM, started again",
    "spout worker: SIGSTOP for 60 s, message timeout 15 s",
    "driver: SIGTERM, started again",
}

# For each process and server the fault that has found the most bugs: `make test` runs these.
QUICK = {
    "broker: SIGKILL and start",
    "Redis: SIGKILL, comes back empty",
    "Redis: a reply lost every 0.1 s for 4 s",
    "spout worker: SIGKILL",
    "driver: SIGKILL",
    "Spark: a Python worker, SIGKILL",
}

_TOO_LONG = {
    "broker: away for 20 s, message timeout 15 s",
    "spout worker: SIGSTOP for 60 s, message timeout 15 s",
}
_END_PROCESSES = {
    "broker: SIGKILL and start",
    "Redis: SIGKILL, comes back empty",
    "Redis: restart with its data",
    "spout worker: SIGKILL",
    "spout worker: SIGTERM, started again",
    "driver: SIGKILL",
    "driver: SIGTERM, started again",
    "Spark: a Python worker, SIGKILL",
}
# After these faults a run may end, and the next run's tasks may be in other Python workers.
_FAIL_TASKS = {
    "Redis: SIGSTOP for 10 s",
    "Redis: out of memory for 10 s",
    "Redis: read-only for 10 s",
    "Redis: connections half-open",
    "Redis: a reply lost every 0.1 s for 4 s",
}

_DRAWN = FAULTS.keys() - _TOO_LONG
# Parts of the soak: the share of its time, and the faults drawn in it.
SOAK = [
    (0.3, sorted(_DRAWN)),
    (0.3, sorted(_DRAWN - _END_PROCESSES)),
    (0.4, sorted(_DRAWN - _END_PROCESSES - _FAIL_TASKS)),
]
