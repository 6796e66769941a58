"""The contracts of windowed bolts, and their windows: bounds in time or in numbers of tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from tiercel.spark_jobs.bolts.bolt import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    _Prepared,
)
from tiercel.spark_jobs.errors import ConfigValueError

if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.collecting import WindowCollector
    from tiercel.spark_jobs.bolts.tuples import Tuple

# Most windows that one tuple may be in: the numbers of its emissions tell the windows apart.
MOST_WINDOWS = 2_048


@dataclass(frozen=True)
class Sliding:
    """Windows of this ``length``, one per ``slide``: both are durations, or numbers of tuples.

    Windows in time begin at multiples of ``slide`` since 1970 in UTC, and contain their start but
    not their end. A window of tuples has the last ``length`` tuples of its key, or fewer at the
    beginning. Raises ConfigValueError.
    """

    length: timedelta | int
    slide: timedelta | int

    def __post_init__(self) -> None:
        for name, value in (("length", self.length), ("slide", self.slide)):
            if isinstance(value, bool) or not isinstance(value, (timedelta, int)):
                raise ConfigValueError(
                    f"the {name} of a window must be a timedelta or a number of tuples, not "
                    f"{value!r:.60}"
                )
            least: Any = type(value)(0)
            if value <= least:
                raise ConfigValueError(f"the {name} of a window must be above 0, not {value!r:.60}")
        length: Any = self.length
        slide: Any = self.slide
        if isinstance(length, timedelta) is not isinstance(slide, timedelta):
            raise ConfigValueError(
                f"a window of {length} that slides by {slide}: give both as durations, or both as "
                "numbers of tuples"
            )
        if slide > length:
            raise ConfigValueError(
                f"a window slides by {slide}, more than its length of {length}: tuples between two "
                "windows would be in none"
            )
        if length > MOST_WINDOWS * slide:
            raise ConfigValueError(
                f"a window of {length} that slides by {slide} has each tuple in more than "
                f"{MOST_WINDOWS:,} windows: slide further"
            )


def tumbling(length: timedelta | int) -> Sliding:
    """Return windows of this length, one after the other: ``Sliding(length, length)``."""
    return Sliding(length, length)


@dataclass(frozen=True)
class Session:
    """Windows in time that end when no tuple of their key has come for ``gap``, by timestamps.

    Two tuples whose timestamps differ by less than ``gap`` are in one session. A session that lasts
    ``longest`` ends there, and the next one begins: otherwise a key that never pauses would hold
    its messages for ever. Raises ConfigValueError.
    """

    gap: timedelta
    longest: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        for name, value in (("gap", self.gap), ("longest", self.longest)):
            if not isinstance(value, timedelta) or value <= timedelta(0):
                raise ConfigValueError(
                    f"the {name} of a session must be a timedelta above 0, not {value!r:.60}"
                )
        if self.longest < self.gap:
            raise ConfigValueError(
                f"a session with a gap of {self.gap} must be allowed to last as long: raise "
                f"longest, which is {self.longest}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TupleWindow:
    """One window of one key, as ``execute`` and ``result`` receive it.

    Iterating over it yields its tuples, and ``len`` counts them.
    """

    # Value of the field that the tuples are grouped by, or a tuple of values of several fields;
    # None if the bolt is not ``keyed``.
    key: Any
    # In UTC; the window contains its start, and not its end. A window of tuples begins with the
    # timestamp of its first tuple, and ends with that of its last one.
    start: datetime
    end: datetime
    # Number of tuples.
    count: int
    # In the order of their timestamps, then of their arrival. Empty for an ``AggregatingBolt``.
    tuples: Sequence[Tuple] = ()
    # The tuples that were not in the window before this one.
    new: Sequence[Tuple] = ()
    # The tuples of the window before this one that are not in this one; empty without
    # ``tells_expired``.
    expired: Sequence[Tuple] = ()

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self.tuples)

    def __len__(self) -> int:
        return self.count


class WindowedBolt(_Prepared):
    """A bolt that is called once per window, with all tuples of the window.

    ``window = tumbling(timedelta(minutes=1))``, ``Sliding(length, slide)`` or ``Session(gap)``.
    It declares its streams and its ``transient`` attributes as a ``Bolt`` does.

    Guarantee: a message is acked only when the last window of each of its tuples has closed, and
    everything emitted for these windows is done. Until then it neither times out nor counts as in
    flight. If a process of the bolt dies, its tuples wait in Redis, and no window is lost, fires
    twice or has other tuples than it would have had. When the driver or Redis starts anew, open
    windows begin anew with their messages, which are delivered again; a window that closed shortly
    before may then fire again, with the messages that were not acked yet.

    Emissions are anchored to all tuples of the window, unless ``anchors`` names some of them. If
    ``execute`` raises, its emissions are dropped and the window is tried again after the back-off
    of the spout's queue, up to its delivery limit; then its tuples are rejected. A tuple that is
    failed by ``collector.fail`` leaves all windows.

    Event time: with ``timestamp_field`` a window closes when the *watermark* reaches its end: the
    highest timestamp that has come from a task, minus ``lag``, for the slowest of all tasks that
    send to this one. A tuple that comes after its last window has closed is *late*: it is emitted
    on ``late_stream``, or rejected if there is none, and its message becomes a dead letter. So is a
    message that is delivered again after its window has closed, because what was emitted for the
    window failed: let the bolts behind retry, see ``Retry``.

    A message with an identity (``QueueSpout(identity=…)``) that is delivered again while its tuple
    is held takes the place of the earlier copy. Without an identity it counts twice.

    With ``once = True`` a window and the keys of its tuples are remembered when it closes, in
    Redis, for at least ``once_retention`` (a day). A message with an identity that is delivered
    again afterwards, also to a new run, is neither late nor in another window: it repeats what its
    window has emitted, anchored to itself and with the same keys, so that a bolt behind with
    ``once`` applies each result once (docs/windows.md). A tuple takes 42 to 59 bytes.

    Ticks are not sent to a windowed bolt.
    """

    # Required.
    window: Sliding | Session
    # The field with the time of the event: a timestamp, or a number of ``timestamp_unit`` since
    # 1970. A tuple whose field is null is rejected. Empty: the time of arrival counts.
    timestamp_field: str = ""
    # The unit of timestamps that are numbers.
    timestamp_unit: Literal["s", "ms", "us"] = "ms"
    # Tuples may come this much later than others with higher timestamps.
    lag: timedelta = timedelta(0)
    # The stream of late tuples, declared in ``output_streams`` with fields that the input has too.
    late_stream: str = ""
    # A task that has sent no good timestamp for this time does not hold the watermark back. When
    # none has, time goes on by the clock, so that the last windows close.
    idle: timedelta = timedelta(minutes=1)
    # A timestamp that is further in the future is an error: its tuple is rejected, and the
    # watermark stays.
    max_ahead: timedelta = timedelta(minutes=1)
    # One window per key: the fields of the fields groupings. Without it, a window has all tuples of
    # the task. None: True if all tuples come by fields groupings.
    keyed: bool | None = None
    # Holds each tuple one slide longer, to tell ``TupleWindow.expired``.
    tells_expired: bool = False
    # Most tuples that a task holds. It takes no more until windows have closed.
    max_held: int = 200_000
    # Each window emits its result once, see above, and is remembered for this time at least.
    once: bool = False
    once_retention: timedelta = timedelta(days=1)

    def execute(self, window: TupleWindow, collector: WindowCollector) -> None:
        """Process one window."""
        raise NotImplementedError("the bolt has no method execute")


class AggregatingBolt(WindowedBolt):
    """A ``WindowedBolt`` that gets an accumulator per window instead of a list of tuples.

    When a window closes its tuples are added in the order of their timestamps, and ``result`` is
    called. Windows that overlap share accumulators, one per slide, which are merged: so each tuple
    is added once. The tuples wait in Redis all the same: a message is acked when its last window
    has closed, and after the loss of a process they are added again, in the same order.
    """

    def create(self) -> Any:
        """Return a new accumulator."""
        raise NotImplementedError("the bolt has no method create")

    def add(self, accumulator: Any, tup: Tuple) -> Any:
        """Return the accumulator with this tuple: the same object, or another one.

        If it raises, the tuple fails and leaves all windows, so raise before the accumulator has
        changed.
        """
        raise NotImplementedError("the bolt has no method add")

    def merge(self, first: Any, second: Any) -> Any:
        """Return an accumulator with the tuples of both, which may be one of the arguments.
        ``first`` may change; ``second`` must not.

        Needed for windows that overlap and for sessions.
        """
        raise NotImplementedError("the bolt has no method merge")

    def result(self, accumulator: Any, window: TupleWindow, collector: WindowCollector) -> None:
        """Process the accumulator of one window, whose ``tuples`` are empty."""
        raise NotImplementedError("the bolt has no method result")


# Kinds that a step executes.
StepBolt = Bolt | BasicBolt | ArrowBolt | BatchBolt | WindowedBolt
# Kinds that a topology may have.
AnyBolt = StepBolt | AsyncBolt

# A tuple that waits longer for its windows than this, and than ``longest_held``, is given back to
# the broker: RabbitMQ takes messages back that are held for half an hour.
LONGEST_WAIT = timedelta(minutes=25)


def longest_held(bolt: WindowedBolt) -> timedelta:
    """Return how long a tuple waits in the bolt if its sources keep up with each other."""
    window = bolt.window
    more = 2 * bolt.lag + bolt.idle
    if isinstance(window, Session):
        return window.longest + 2 * window.gap + more
    if isinstance(window.length, int) or isinstance(window.slide, int):
        return LONGEST_WAIT
    return 2 * window.length + window.slide + more


def shortest_held(bolt: WindowedBolt) -> timedelta:
    """Return how long the bolt must be able to hold a tuple."""
    window = bolt.window
    length = window.longest if isinstance(window, Session) else window.length
    more = bolt.lag + bolt.idle
    # Windows of tuples give their messages back in time.
    return length + more if isinstance(length, timedelta) else timedelta(0)
