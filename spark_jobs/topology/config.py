"""The settings of a topology."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal

from tiercel.acker.limits import Rate
from tiercel.queues.nouns import did_you_mean, refuse_typos
from tiercel.spark_jobs.errors import ConfigValueError

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_WRITTEN = re.compile(rf"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*({'|'.join(_SECONDS)})\s*")
_EXECUTORS = re.compile(r"(\d{1,6})(?:\.\.(\d{1,6}))?", re.ASCII)
# A faster rate limits nothing, and the server's clock counts microseconds.
_FASTEST_PER_S = 1_000_000
_SLOWEST_S = 30 * 86_400

# Settings that a component may override, and the kinds of components. The others must be the same
# everywhere.
_OWN = {
    "max_spout_pending": "spout",
    "tick_tuple_freq_secs": "bolt",
    "execute_timeout_secs": "bolt",
    "max_output_bytes": "bolt",
}
# A step keeps its output in memory and numbers its parts.
_LARGEST_OUTPUT = 4 * 1024**3
# Settings that a bolt can have but a topology cannot.
_OF_A_BOLT = {"ordered_by", "rate_limit", "rate_limit_by", "retry"}
_OF_COMPONENTS = {*_OF_A_BOLT, "concurrency", "threads", "size", "wait_ms"}
# Names that are less alike, or shorter, are the user's own.
_LIKENESS = 0.87
_SHORTEST_MISSPELT = 6


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one topology. Raises ConfigValueError for an invalid value.

    * ``message_timeout_secs``: seconds after which a tuple whose tree is not complete fails with
      the reason ``timeout``.
    * ``enable_message_timeouts``: if False, nothing times out.
    * ``ackers``: shards of the ledger. With 0 nothing is tracked; a spout tuple is acked as soon as
      it is emitted.
    * ``max_spout_pending``: most spout tuples in flight per spout task. None: the limit adapts to
      the number of tuples that can be finished in time.
    * ``tick_tuple_freq_secs``: seconds from one tick (``tup.is_tick``) of each bolt task to the
      next, also while no messages flow. A step has at most one tick, so a task that was busy for
      several periods gets one. None: no ticks.
    * ``execute_timeout_secs``: seconds that one call of ``execute`` may last; then its tuple fails
      and its process is replaced. None: the message timeout, but at least five seconds. If it is
      longer than that, the timeouts of messages that wait for the call restart for as long as the
      call lasts and its process lives; so set it only for the bolt that needs it.
    * ``max_output_bytes``: most bytes that one call of ``execute``, or one tuple of a spout, may
      emit; beyond it ``emit`` raises OutputLimitError and the tuple fails. A task keeps several
      times this size in memory until the call has returned.
    * ``chaining``: if True, bolts in a row that are shuffled to each other execute in one step
      where that is possible (docs/bolts.md); if False, each tuple goes through Redis.
    * ``shutdown_grace_secs``: seconds for the tuples in flight when a spout worker is told to stop;
      messages that are not done by then go back to the queue.
    * ``consumer_timeout_secs``: RabbitMQ's consumer timeout, if rabbitmq.conf or a policy that
      tiercel cannot see makes it longer than 30 minutes. Windows that need more are refused.
    * ``executors``: ``(2, 20)``: the driver asks Spark for as many executors as the load needs,
      within these bounds, and gives back those that are empty. A number is both bounds. None: the
      executors are those that Spark has.
    * ``executors_target_secs``: seconds in which the messages that wait should be done.
    * ``spark_options``: further options of the Spark context: ``{"spark.driver.memory": "2g"}``.
    * ``extra``: your own settings, which ``prepare`` and ``open`` find in their ``config`` too.

    A component may override settings: ``set_spout(…, config={…})``, ``set_bolt(…, config={…})``. A
    spout may override ``max_spout_pending``, a bolt ``tick_tuple_freq_secs``,
    ``execute_timeout_secs`` and ``max_output_bytes``, and both may have any settings of your own.

    These are for a bolt's ``config`` only; several fields are a list:

    * ``rate_limit``: the rate at which all tasks of the bolt together may begin tuples:
      ``"100/s"``, ``"5/min"``, ``"1/h"`` or a number per second.
    * ``rate_limit_by``: a field; each of its values has its own limit.
    * ``ordered_by``: a field; tuples with the same value are executed one after the other, each
      until it succeeds or has failed too often. It needs a fields grouping by that field.
    * ``retry``: a ``Retry``, by which the bolt's task executes tuples again that fail.
    * ``threads`` of a ``BasicBolt``, ``concurrency`` of an ``AsyncBolt``, ``size`` and ``wait_ms``
      of a ``BatchBolt``: see these classes.
    """

    message_timeout_secs: float = 30.0
    enable_message_timeouts: bool = True
    ackers: int = 1
    max_spout_pending: int | None = None
    tick_tuple_freq_secs: float | None = None
    execute_timeout_secs: float | None = None
    max_output_bytes: int = 64 * 1024 * 1024
    chaining: bool = True
    shutdown_grace_secs: float = 10.0
    consumer_timeout_secs: float | None = None
    executors: int | tuple[int, int] | None = None
    executors_target_secs: float = 60.0
    spark_options: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (wanted, fits) in _RULES.items():
            if not fits(given := getattr(self, name)):
                raise ConfigValueError(f"{name} must be {wanted}, not {given!r:.60}")
        clash = self.extra.keys() & {setting.name for setting in fields(self)}
        if clash:
            raise ConfigValueError(
                f"extra holds {', '.join(sorted(clash))}: set it as a setting of its own"
            )

    @property
    def consumer_timeout(self) -> timedelta | None:
        """``consumer_timeout_secs`` as a duration."""
        seconds = self.consumer_timeout_secs
        return None if seconds is None else timedelta(seconds=seconds)

    @classmethod
    def check_override(cls, changes: object, kind: Literal["spout", "bolt"]) -> None:
        """Raise ConfigValueError for settings that a spout or a bolt cannot override."""
        if isinstance(changes, cls):
            raise ConfigValueError(
                "give only the settings that differ, as a mapping, not a whole Config"
            )
        if not (isinstance(changes, Mapping) and _is_mapping(changes)):
            raise ConfigValueError(f"give a mapping with string keys, not {changes!r:.60}")
        if kind == "spout" and (wrong := changes.keys() & _OF_A_BOLT):
            raise ConfigValueError(f"{min(wrong)} is a setting of bolts, and this is a spout")
        _refuse_misspelt(changes, {setting.name for setting in fields(cls)} | _OF_COMPONENTS)
        for name in sorted(changes.keys() & {setting.name for setting in fields(cls)}):
            owner = _OWN.get(name)
            if name == "extra":
                raise ConfigValueError(
                    "extra is for Config(...): put its keys among the component's settings "
                    "themselves"
                )
            if owner is None:
                raise ConfigValueError(
                    f"{name} is a setting of the whole topology: set it in Config(...)"
                )
            if owner != kind:
                raise ConfigValueError(f"{name} is a setting of {owner}s, and this is a {kind}")

    def override(self, changes: Mapping[str, Any]) -> Config:
        """These settings with a component's changes; keys that are not settings go into ``extra``.

        Raises ConfigValueError, as making a Config does.
        """
        known = {setting.name for setting in fields(self)} - {"extra"}
        own = {name: value for name, value in changes.items() if name not in known}
        return replace(
            self,
            **{name: value for name, value in changes.items() if name in known},
            extra={**self.extra, **own},
        )

    def as_mapping(self) -> dict[str, Any]:
        """Return the settings that components are given."""
        settings = {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if setting.name != "extra"
        }
        return {**settings, **self.extra}


Config.__init__ = refuse_typos(Config.__init__)  # type: ignore[method-assign]


def _refuse_misspelt(given: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Raise ConfigValueError for a name that is nearly one of tiercel's: as a setting of the user's
    own it would have no effect.
    """
    long = [name for name in known if len(name) >= _SHORTEST_MISSPELT]
    for name in sorted(given.keys() - known):
        if near := did_you_mean(name, long, _LIKENESS):
            raise ConfigValueError(
                f"there is no setting {name!r:.50}{near} If it is a setting of your own, give it "
                "another name"
            )


def _is_seconds(value: object, *, positive: bool = True) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return value > 0 or (value == 0 and not positive)


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_range(value: object) -> bool:
    if isinstance(value, tuple):
        whole = len(value) == 2 and all(_is_whole(each, least=1) for each in value)
        return whole and value[0] <= value[1]
    return value is None or _is_whole(value, least=1)


_SPAN = "a number of seconds, more than 0"
_MAPPING = "a mapping with string keys"
# A setting's values, in words and as a test.
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("message_timeout_secs", "executors_target_secs"), (_SPAN, _is_seconds)),
    "executors": ("the least and the most, such as (2, 20), a number, or None", _is_range),
    **dict.fromkeys(
        ("enable_message_timeouts", "chaining"),
        ("True or False", lambda value: isinstance(value, bool)),
    ),
    "ackers": ("a number of ledger shards, or 0", lambda value: _is_whole(value, least=0)),
    "max_spout_pending": (
        "at least 1, or None",
        lambda value: value is None or _is_whole(value, least=1),
    ),
    **dict.fromkeys(
        ("tick_tuple_freq_secs", "execute_timeout_secs", "consumer_timeout_secs"),
        (f"{_SPAN}, or None", lambda value: value is None or _is_seconds(value)),
    ),
    "shutdown_grace_secs": (
        "a number of seconds, not negative",
        lambda value: _is_seconds(value, positive=False),
    ),
    "max_output_bytes": (
        f"a number of bytes from 1 to {_LARGEST_OUTPUT}",
        lambda value: _is_whole(value, least=1) and value <= _LARGEST_OUTPUT,
    ),
    "spark_options": (_MAPPING, _is_mapping),
    "extra": (_MAPPING, _is_mapping),
}


def parse_executors(written: str) -> tuple[int, int]:
    """Parse the least and the most executors; raises ConfigValueError, which says how to write it.

    >>> parse_executors("2..20"), parse_executors("4")
    ((2, 20), (4, 4))
    """
    if found := _EXECUTORS.fullmatch(written.strip()):
        least, most = int(found[1]), int(found[2] or found[1])
        if 1 <= least <= most:
            return least, most
    raise ConfigValueError(
        "must be the least and the most executors, at least 1 and the least first, as in 2..20, "
        f"not {written:.50}"
    )


def parse_rate(written: object) -> Rate:
    """Parse a user's rate; raises ConfigValueError for an invalid one."""
    match written:
        case bool():
            found = None
        case int() | float():
            found = Rate(permits=written)
        case str() if parts := _WRITTEN.fullmatch(written):
            found = Rate(permits=float(parts[1]), seconds=_SECONDS[parts[2]])
        case _:
            found = None
    if found is None or (isinstance(found.permits, float) and not math.isfinite(found.permits)):
        raise ConfigValueError(
            f'write a rate as "100/s", "5/min" or "1/h", or as a number per second, '
            f"not {written!r:.60}"
        )
    if found.permits <= 0:
        raise ConfigValueError(
            f"a rate must be more than 0, not {written!r:.60}: nothing would ever be executed"
        )
    if found.permits > _FASTEST_PER_S * found.seconds:
        raise ConfigValueError(
            f"{written!r:.60} is more than {_FASTEST_PER_S} per second: leave the limit out"
        )
    if found.seconds > _SLOWEST_S * found.permits:
        raise ConfigValueError(f"{written!r:.60} is less than one in 30 days: limits are faster")
    return found
