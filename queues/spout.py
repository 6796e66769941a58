"""The contract of a spout: where the messages of a topology come from.

One instance runs in one spout worker process (one process per task), and all its methods are called
on one thread, in this order: ``open``, then ``activate`` and ``deactivate`` in turn, with
``next_tuple`` only between these two, then ``close``. ``ack``, ``fail``, ``reject``,
``retry_later`` and ``release`` may be called at any time before ``close``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Protocol

from tiercel.queues.message.identity import Identified

MsgId = Hashable


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """Context of a task of a spout or bolt: the task and its neighbours.

    * ``topology``, ``component``: their names.
    * ``task_id``: the number of the task, unique in the topology.
    * ``task_index``: its number within the component, from 0 to ``parallelism`` - 1.
    * ``parallelism``: the number of tasks of the component.
    * ``streams``: each stream of the component, mapped to the names of its fields.
    * ``targets``: each stream of the component, mapped to its subscribers.
    * ``tasks``: every component of the topology, mapped to the ids of its tasks, ascending.
      ``tiercel rebalance`` may change the tasks of bolts while a spout runs: look them up when you
      emit.
    """

    topology: str
    component: str
    task_id: int
    task_index: int
    parallelism: int
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    targets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tasks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    _clock: Callable[[], datetime] = field(default=_utc_now, compare=False, repr=False)

    def now(self) -> datetime:
        """Return the current time, in UTC.

        In a ``LocalCluster`` it is simulated time, which ``advance_time`` moves. A call that is
        repeated sees a later time.
        """
        return self._clock()

    def component_tasks(self, component: str) -> Sequence[int]:
        """Return the ascending ids of a component's tasks, for ``emit_direct``.

        Raises KeyError.
        """
        try:
            return self.tasks[component]
        except KeyError:
            raise KeyError(
                f"there is no component {component!r}; there are {', '.join(self.tasks)}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class SpoutContext(TaskContext):
    """Context of a spout task.

    * ``wake()``: call it when ``next_tuple`` has a tuple to emit, so that an idle worker need not
      poll. Thread-safe.
    * ``count(name, n)``: adds ``n`` to a named counter of this task. Thread-safe.
    * ``held``: time for which a message may be held if a bolt may take longer than the message
      timeout (``execute_timeout_secs``); None: no bolt may.
    * ``needed``: time for which a window holds messages; None: there is no windowed bolt.
    * ``configured``: the setting ``consumer_timeout_secs``.
    """

    wake: Callable[[], None]
    count: Callable[[str, int], None]
    held: timedelta | None = None
    needed: timedelta | None = None
    configured: timedelta | None = None


class SpoutCollector(Protocol):
    """Argument of ``next_tuple``, the same object each time.

    A spout may keep it, and emit from ``ack``, ``fail`` and ``release`` too; never from another
    thread. Tuples that it emits while its worker ends, after ``deactivate``, are dropped.
    """

    def emit(
        self,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> list[int]:
        """Emit one tuple and return the ids of the tasks it is sent to. A shuffle has none: the
        next free task takes it.

        With a ``msg_id`` the tuple's tree is tracked, and ``ack``, ``fail``, ``reject``,
        ``retry_later`` or ``release`` is called with that id exactly once for this emit. Without
        one, nothing is tracked and nothing is called. Values that do not fit the stream's fields
        raise ValueError, and nothing is emitted.

        With an ``identity`` the tuples of the tree have keys (``tup.key``), by which effects take
        place once. It identifies the message, not this emission: pass the same one when the message
        is emitted again, and never that of another message. To emit two tuples with one identity,
        use two streams.
        """

    def emit_all(
        self,
        rows: Sequence[Sequence[Any]],
        msg_ids: Sequence[MsgId],
        stream: str = "default",
        identities: Sequence[Identified | None] | None = None,
    ) -> None:
        """Emit many tuples, each as ``emit`` does with the message id and the identity at the same
        index, in a fraction of the time.

        If the values of one tuple do not fit, that raises ValueError, and no tuple is emitted.
        """

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> None:
        """Emit one tuple to one task, on a stream in ``direct_streams``; else as ``emit``.

        ``context.component_tasks`` has the ids. On another stream, or for a task that does not
        receive this stream, it raises DirectStreamError and emits nothing; so does ``emit`` on a
        direct stream.
        """

    def report_error(self, error: BaseException | str) -> None:
        """Show an error to the topology's operators; the worker goes on."""


class Spout:
    """Base of all spouts; override what you need, ``next_tuple`` at least.

    ``output_fields = "sentence string"`` declares the default stream in Spark DDL, ``output_streams
    = {"name": "ddl"}`` several; ``direct_streams = {"name"}`` are streams on which only
    ``emit_direct`` emits. Guarantee: a tuple emitted with a message id is acked when its whole tree
    was processed, else failed or released. Tuples still pending when the process dies are never
    reported: the source must deliver their messages again (a broker does).

    A message id comes back as it was emitted: annotate ``msg_id`` with the type of your ids.
    """

    output_fields: str = ""
    output_streams: Mapping[str, str] = MappingProxyType({})
    direct_streams: AbstractSet[str] = frozenset()
    # Fields of the default stream whose values change when a message is delivered again: an
    # ``ordered_by`` bolt identifies the message by the other fields.
    changing_fields: AbstractSet[str] = frozenset()

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Connect here, not in ``__init__``: called once, first, in the worker process."""

    def activate(self) -> None:
        """Begin to take messages.

        Called after ``open``, unless the topology is deactivated, and when it is activated again.
        """

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit the next tuple or several, or return at once if there is none. Must not block.

        Not called while ``max_spout_pending`` tuples are in flight, while deactivated, or
        while Redis is away.
        """
        raise NotImplementedError("the spout has no method next_tuple")

    def next_tuples(self, collector: SpoutCollector, limit: int) -> None:  # noqa: ARG002 - for those who override it
        """Emit up to ``limit`` tuples, or return at once if there is none: for sources with many at
        a time.

        Called instead of ``next_tuple``; the default calls ``next_tuple``.
        """
        self.next_tuple(collector)

    def expect(self, tuples: int) -> None:
        """Hold no more than a small multiple of this many messages from now on.

        Called first after ``open``, and when the bound on tuples in flight changes. Messages
        already held are emitted in their turn. 0: nothing can be emitted for now, so return
        messages that were not emitted to the source. A spout that holds nothing need not override
        it.
        """

    def check(self) -> None:
        """Raise if the source cannot work until an operator changes something. Called about once
        per second, also while nothing may be emitted.
        """

    def in_back_off(self) -> int:
        """Return the number of failed messages that are held here until their back-off is over.

        Shown to operators: called about once per second, at any time between ``open`` and
        ``close``.
        """
        return 0

    def is_full(self) -> bool:
        """Return True if it takes no message from the source before an earlier one is done, or
        before the source is back.

        Called about once per second. Windows do not take the silence of a full spout for the end of
        its stream.
        """
        return False

    def describe(self, msg_id: Any) -> Mapping[str, str]:
        """Return what operators know a message by, for logs and views of its failure:
        ``message_id``, and where it came from, such as ``queue``.
        """
        return {"message_id": str(msg_id)}

    def ack(self, msg_id: Any) -> None:
        """Handle a message whose tree was fully processed."""

    def ack_all(self, msg_ids: Sequence[Any]) -> None:
        """Handle messages whose trees were fully processed; by default ``ack`` for each."""
        for msg_id in msg_ids:
            self.ack(msg_id)

    def fail(self, msg_id: Any, *args: Any, **kwargs: Any) -> None:
        """Handle a message whose tree failed or timed out: write ``fail(self, msg_id, reason)``, or
        ``fail(self, msg_id)`` as in Storm. Type checkers take both for overrides of this.
        """

    def reject(self, msg_id: Any, reason: str) -> None:
        """Handle a message that can never be processed, as a bolt said (``raise Reject``): do not
        emit it again. The default calls ``fail``.
        """
        self._fail_for(msg_id, reason)

    def retry_later(self, msg_id: Any, seconds: float, reason: str, *, blame: bool) -> None:  # noqa: ARG002 - for those who override it
        """Emit a failed message again after this many seconds, and not before, as a bolt asked
        (``raise RetryLater``).

        Without ``blame`` the message did nothing wrong: this failure counts towards no limit. The
        default calls ``fail``, after which the spout emits it again when it sees fit.
        """
        self._fail_for(msg_id, reason)

    def _fail_for(self, msg_id: Any, reason: str) -> None:
        if takes_reason(self):
            self.fail(msg_id, reason)
        else:
            self.fail(msg_id)

    def release(self, msg_id: Any) -> None:
        """Emit a message again that did nothing wrong (driver restarted, ledger lost).

        The default calls ``fail``. A spout that holds the message emits it again by itself, at its
        next turn. Do not count this towards any limit: it happens at every restart of the driver.
        """
        self.fail(msg_id)

    def deactivate(self) -> None:
        """Stop taking messages, and give back messages that were not emitted.

        ``next_tuple`` is not called until the next ``activate``; acks and fails still are. Also
        called before ``close``, unless the spout is already deactivated.
        """

    def close(self, grace: timedelta) -> None:
        """Settle messages that were acked or failed, and return the rest. Called last, after the
        grace time for pending tuples.

        Must return within ``grace``. Not called when the process is killed.
        """


def overrides_last(spout: Spout, method: str, other: str) -> bool:
    """Return True if a spout's class overrides ``method`` in the same class as its alternative
    ``other``, or in a more derived class.

    If a class overrides ``next_tuple`` and its base overrides ``next_tuples``, its author expects
    ``next_tuple`` to be called.
    """
    return next(
        method in vars(kind)
        for kind in type(spout).__mro__
        if method in vars(kind) or other in vars(kind)
    )


def takes_reason(spout: Spout) -> bool:
    """Return True if the spout's ``fail`` takes the reason; Storm's does not."""
    parameters = inspect.signature(spout.fail).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
