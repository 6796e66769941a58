"""The settings of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from spark_jobs.errors import ConfigValueError


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one topology; a component may override them in ``set_spout`` and ``set_bolt``."""

    message_timeout_secs: float = 30.0
    """A tuple whose tree is not complete after this fails with the reason ``timeout``."""
    enable_message_timeouts: bool = True
    ackers: int = 1
    """Shards of the ledger. 0: nothing is tracked, a spout tuple is acked as soon as it is on its way."""
    max_spout_pending: int | None = None
    """Spout tuples in flight a spout task. None: the bound follows the complete latency."""
    tick_tuple_freq_secs: float | None = None
    shutdown_grace_secs: float = 10.0
    """How long a spout worker that is asked to end waits for what is in flight before it gives it back."""
    spark_options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the Spark session, such as ``{"spark.driver.memory": "2g"}``."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Settings of your own; they stand beside these in what ``prepare`` and ``open`` are given."""

    def __post_init__(self) -> None:
        _require(self.message_timeout_secs > 0, "message_timeout_secs must be more than 0 seconds")
        _require(isinstance(self.ackers, int) and self.ackers >= 0, "ackers must be 0 or a number of ledger shards")
        _require(self.max_spout_pending is None or self.max_spout_pending >= 1, "max_spout_pending must be at least 1, or None")
        _require(
            self.tick_tuple_freq_secs is None or self.tick_tuple_freq_secs > 0,
            "tick_tuple_freq_secs must be more than 0, or None",
        )
        _require(self.shutdown_grace_secs >= 0, "shutdown_grace_secs must not be negative")
        clash = self.extra.keys() & {setting.name for setting in fields(self)}
        _require(not clash, f"extra holds {', '.join(sorted(clash))}: set it as a setting of its own")

    def override(self, changes: Mapping[str, Any]) -> Config:
        """These settings with a component's changes; what is not a setting goes into ``extra``."""
        known = {setting.name for setting in fields(self)} - {"extra"}
        own = {name: value for name, value in changes.items() if name not in known}
        return replace(self, **{name: value for name, value in changes.items() if name in known}, extra={**self.extra, **own})

    def as_mapping(self) -> dict[str, Any]:
        """What components are given."""
        settings = asdict(self)
        extra = settings.pop("extra")
        return {**settings, **extra}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigValueError(message)
