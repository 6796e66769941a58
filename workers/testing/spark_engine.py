"""The engine that works like a real cluster: inboxes and ledger in Redis, bolts in long-lived Spark
tasks.
"""

from __future__ import annotations

import atexit
import secrets
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from tiercel.acker.inbox.contract import Inboxes, StaleAttemptError
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import LedgerSpec, topology_prefix
from tiercel.acker.metrics.contract import KnownError
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect_topology
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis.scripts import RedisServers
from tiercel.acker.redis_ledger import open_ledger
from tiercel.compose.embedded import EmbeddedRedis
from tiercel.compose.errors import ServiceError
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.spark.shipping import check_travel
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import (
    Topology,
    bolt_tasks,
    inboxes_of,
    ledger_spec_of,
    spread,
)
from tiercel.workers.testing.engine import CAPTURE, Copier, CopyingInboxes, LocalClusterError

_CORES = 2
_LOOK_S = 0.005
_PATIENCE_S = 10.0
# Longer than the second after which processes report counters and errors.
_TOLD_S = 1.5
_DELETED_AT_ONCE = 500
_INSTALLED = tuple(
    f"{Path(place).resolve()}/"
    for place in {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


class SparkEngine:
    """``Engine`` on this machine.

    The topology gets a unique name, which separates the keys of clusters on one Redis. The task of
    the capturing bolt runs in this process, all others in Spark.
    """

    def __init__(self, topology: Topology, slots: int, redis_url: str | None) -> None:
        """Without a ``redis_url``, all clusters of the process share a private server.

        Raises LocalClusterError.
        """
        redis_url = redis_url or shared_redis_url()
        name = f"local-cluster-{secrets.token_hex(8)}"
        topology = replace(topology, name=name)
        # Timeouts are in simulated time, which Redis does not know.
        spec = replace(ledger_spec_of(topology, (redis_url,)), message_timeout=None)
        self.ledger = open_ledger(spec)
        self.metrics = RedisMetrics(redis_url, name)
        self.state = RedisStateStore(spec, run_number=0)
        tasks = bolt_tasks(topology)
        capture = topology.task_ids(CAPTURE)[0]
        self._run = WatchedRun(
            id=secrets.token_hex(6),
            topology=topology,
            hosts=spread([task for task in tasks if task != capture], slots),
            ledger=spec,
            standstill_s=0.0,
            imports=Imports.of_this_process(),
        )
        self._inbox_ids = inboxes_of(topology)
        self._capture_task = capture
        self._capture: Attempt | None = None
        self.inboxes = _CopyingRedisInboxes(spec, topology, bounded=False)
        self.run_id = self._run.id
        self._client = connect_topology(redis_url, name)
        self._spark: LongTasks | None = None
        self._worked_at = time.monotonic()
        self._open = ExitStack()
        for part in (self.ledger, self.metrics, self.state, self.inboxes, self._client):
            self._open.callback(part.close)

    @property
    def next_at(self) -> float | None:
        """Return 0, which is now, if tuples wait: threads of a ``Bolt`` may emit at any time. Else
        None: the bolts sleep in real time.
        """
        return 0.0 if self._waiting else None

    @property
    def _waiting(self) -> int:
        """Number of tuples in all inboxes."""
        return sum(one.tuples for one in self.inboxes.figures(self._inbox_ids).values())

    def start(self) -> None:
        """Start the engine; ping Redis first, because the first start of Spark takes seconds."""
        with translated("run on Redis", self._client):
            self._client.ping()
        check_travel(self._run.topology)
        self._open.callback(self._wipe)
        self.inboxes.adopt(self.run_id, self._inbox_ids)
        self.ledger.begin(self.run_id)
        around = self._open.enter_context(replace(self._run, topology=self._run.topology).opened())
        self._capture = attempt_at(around, self._capture_task, threading.Event())
        spark = shared_spark()
        try:
            self._spark = spark.start(self._run)
        except Exception as error:
            raise LocalClusterError(
                f"Spark cannot run this topology: {reason_of(error)}"
            ) from error
        self._open.callback(self._finish, spark, self._spark)

    def work(self) -> bool:
        """Return True, after working until two looks in a row find all inboxes empty.

        One look may miss a tuple that moves from one inbox to the next meanwhile.
        """
        empty = 0
        while empty < 2:
            if self._spark is None or not self._spark.active:
                fault = self._spark.fault if self._spark else "it has not been started"
                raise LocalClusterError(f"the Spark job ended: {fault}")
            while self._capture is not None and self._capture.turn():
                continue
            waiting = self._waiting
            empty = 0 if waiting else empty + 1
            if waiting:
                time.sleep(_LOOK_S)
        self._worked_at = time.monotonic()
        return True

    def tracebacks(self) -> Sequence[KnownError]:
        """Return the errors, after a wait for the reports that processes send every second."""
        time.sleep(max(0.0, self._worked_at + _TOLD_S - time.monotonic()))
        return self.metrics.traces()

    def close(self) -> None:
        self._open.close()

    def _finish(self, spark: SparkUnit, tasks: LongTasks) -> None:
        with spark.silenced():
            with suppress(StaleAttemptError):
                self.inboxes.adopt(f"{self._run.id}-ended", self._inbox_ids)
            if not tasks.wait(_PATIENCE_S):
                tasks.cancel()
                tasks.wait(_PATIENCE_S)

    def _wipe(self) -> None:
        """Remove every key of the topology."""
        pattern = topology_prefix(self._run.topology.name).partition("}")[0] + "*"
        with translated("clear up", self._client):
            keys = list(self._client.scan_iter(pattern, count=_DELETED_AT_ONCE))
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._client.unlink(*keys[start : start + _DELETED_AT_ONCE])


@cache
def shared_redis_url() -> str:
    """Return the URL of a private Redis that all clusters of this process share.

    It ends with this process. Raises LocalClusterError.
    """
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    try:
        return until_exit.enter_context(EmbeddedRedis()).url
    except ServiceError as error:
        raise LocalClusterError(
            f"{error}; or name a server: LocalCluster(…, redis_url=…)"
        ) from error


@cache
def shared_spark() -> SparkUnit:
    """Return the Spark context of this process, starting one if there is none.

    Raises SparkUnavailableError.
    """
    spark = SparkUnit("tiercel-test-kit", f"local[{_CORES}]", {})
    spark.use_python(sys.executable, [str(Path(__file__).parents[3])])
    atexit.register(_end, spark)
    return spark


def _end(spark: SparkUnit) -> None:
    spark.silence()
    spark.stop()


class _CopyingRedisInboxes(CopyingInboxes, RedisInboxes):
    def __init__(self, spec: LedgerSpec, topology: Topology, *, bounded: bool) -> None:
        super().__init__(RedisServers(spec.urls), spec.topology)
        own = partial(RedisInboxes.append, self), partial(RedisInboxes.fence, self)
        self.copier = Copier(*own, topology, bounded=bounded)


@dataclass(frozen=True, kw_only=True)
class WatchedRun(Run):
    """A run whose emitted tuples are captured, and whose ticks come from simulated time."""

    imports: Imports

    def open_inboxes(self) -> Inboxes:
        return _CopyingRedisInboxes(self.ledger, self.topology, bounded=True)

    @contextmanager
    def opened(self) -> Iterator[Around]:
        """As ``Run.opened``, without ticks: the kit appends them to the inboxes.

        It does not read which components send nothing: the kit's spouts have no seats in Redis.
        """
        with super().opened() as around:
            yield replace(around, ticks={}, read_paused=frozenset)

    def __reduce__(self) -> tuple[Callable[..., WatchedRun], tuple[Imports, Mapping[str, Any]]]:
        """Pickle the imports first: only after them can the test's modules be unpickled."""
        others = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "imports"
        }
        return _run, (self.imports, others)


def _run(imports: Imports, others: Mapping[str, Any]) -> WatchedRun:
    return WatchedRun(imports=imports, **others)


@dataclass(frozen=True, kw_only=True)
class Imports:
    """The locations of a process's imported modules, except installed ones.

    Bolts may be in test modules, which only pytest can find. Unpickling this makes the modules
    importable in another process, which then imports a module only when a bolt's code needs it.
    """

    # ``sys.path``.
    path: tuple[str, ...]
    # Module to file.
    files: Mapping[str, str]
    # Package to the folders of its modules; empty if only pytest knows the package.
    packages: Mapping[str, Sequence[str]]

    @classmethod
    def of_this_process(cls) -> Imports:
        files = {
            name: file
            for name, module in list(sys.modules.items())
            if (file := _own_file(name, module))
        }
        # pytest makes empty modules for folders. As parents of other modules they count as
        # packages.
        parents = {
            parent for name in files for parent in accumulate(name.split(".")[:-1], "{}.{}".format)
        }
        packages = {
            name: _folders(module)
            for name in files
            if hasattr(module := sys.modules[name], "__path__")
        }
        packages |= {
            name: _folders(sys.modules[name])
            for name in parents - files.keys()
            if name in sys.modules
        }
        path = tuple(str(Path(entry or ".").resolve()) for entry in sys.path)
        return cls(path=path, files=files, packages=packages)

    def restore(self) -> None:
        """Make the modules importable in this process. Idempotent."""
        if self == _Finder.imports:
            return
        sys.path += [entry for entry in self.path if entry not in sys.path]
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
        _Finder.imports = self

    def __reduce__(self) -> tuple[Callable[..., Imports], tuple[object, ...]]:
        return _restored, (self.path, self.files, self.packages)


class _Finder:
    """Comes first in ``sys.meta_path``, so that modules have the same file in every process."""

    imports: Imports | None = None

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG003 - Python's
        if cls.imports is None:
            return None
        folders = cls.imports.packages.get(name)
        if name in cls.imports.files:
            found = None if folders is None else list(folders)
            return spec_from_file_location(
                name, cls.imports.files[name], submodule_search_locations=found
            )
        if folders is not None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(folders)
            return spec
        return None


def _restored(
    path: tuple[str, ...], files: Mapping[str, str], packages: Mapping[str, Sequence[str]]
) -> Imports:
    imports = Imports(path=path, files=files, packages=packages)
    imports.restore()
    return imports


def _own_file(name: str, module: ModuleType) -> str | None:
    """Return the source file of a module; None for installed modules, which workers have too."""
    file = getattr(module, "__file__", None)
    if name == "__main__" or not isinstance(file, str) or not file.endswith(".py"):
        return None
    resolved = Path(file).resolve()
    return (
        str(resolved) if resolved.is_file() and not str(resolved).startswith(_INSTALLED) else None
    )


def _folders(package: ModuleType) -> list[str]:
    return [str(Path(folder).resolve()) for folder in getattr(package, "__path__", ())]
