"""Findings: the closed set of everything that can be wrong with a topology, and the words for its
health. ``health`` judges; the views only show these records.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from tiercel.workers.monitoring.tables import when


class Grade(enum.Enum):
    """Grade of a topology, and level of a finding."""

    WELL = "well"
    # It works, but something needs attention.
    STRAINED = "strained"
    # Processes or servers are missing, or nothing completes.
    ILL = "ill"
    # It is deactivated or killed by order, or nothing of it is known.
    RESTING = "resting"

    @property
    def label(self) -> str:
        """The name of the level in metrics and JSON."""
        return "in_trouble" if self is Grade.ILL else self.value


class FindingKind(enum.Enum):
    """Everything that can be wrong, with its level; the names are stable."""

    _value_: str
    level: Grade

    def __new__(cls, name: str, level: Grade) -> Self:
        kind = object.__new__(cls)
        kind._value_ = name
        kind.level = level
        return kind

    REDIS_AWAY = "redis_away", Grade.ILL
    REDIS_FULL = "redis_full", Grade.ILL
    RABBITMQ_AWAY = "rabbitmq_away", Grade.ILL
    RABBITMQ_BLOCKED = "rabbitmq_blocked", Grade.ILL
    UNREADABLE = "unreadable", Grade.ILL
    NOTHING_RUNS = "nothing_runs", Grade.ILL
    NO_DRIVER = "no_driver", Grade.ILL
    NO_EXECUTOR = "no_executor", Grade.ILL
    SPOUT_WITHOUT_WORKER = "spout_without_worker", Grade.ILL
    TASK_WITHOUT_PROCESS = "task_without_process", Grade.ILL
    NO_CONSUMERS = "no_consumers", Grade.ILL
    OVERDUE = "overdue", Grade.ILL
    NOTHING_ACKED = "nothing_acked", Grade.ILL
    ALL_FAIL = "all_fail", Grade.ILL
    WINDOWS_STAND = "windows_stand", Grade.ILL
    FAILING = "failing", Grade.STRAINED
    TIMEOUTS = "timeouts", Grade.STRAINED
    RETRY_LATER = "retry_later", Grade.STRAINED
    IN_BACK_OFF = "in_back_off", Grade.STRAINED
    NEAR_TIMEOUT = "near_timeout", Grade.STRAINED
    BOTTLENECK = "bottleneck", Grade.STRAINED
    BEHIND = "behind", Grade.STRAINED
    LONG_CALL = "long_call", Grade.STRAINED
    BOLT_PAUSED = "bolt_paused", Grade.STRAINED
    DEAD_LETTERS = "dead_letters", Grade.STRAINED
    STATES_LOST = "states_lost", Grade.STRAINED


# Known even while Redis does not answer.
OF_SERVERS = frozenset(
    {
        FindingKind.REDIS_AWAY,
        FindingKind.REDIS_FULL,
        FindingKind.RABBITMQ_AWAY,
        FindingKind.RABBITMQ_BLOCKED,
        FindingKind.UNREADABLE,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: FindingKind
    # One sentence, or the rest of one that begins with the component.
    reason: str
    # The component that has it; None: the topology as a whole.
    component: str | None = None
    queue: str | None = None
    # Aware, UTC; None: not known, because it stood at the first reading.
    since: datetime | None = None
    # How long it has lasted by the counts alone, in seconds.
    age_s: float = field(default=0.0, compare=False)
    # How long readings must see it before it is reported.
    lasts_s: float = field(default=0.0, compare=False)

    @property
    def level(self) -> Grade:
        """``ILL`` or ``STRAINED``."""
        return self.kind.level

    @property
    def sentence(self) -> str:
        """The whole sentence, with the time since which it stands."""
        who = "" if self.component is None else f"{self.component} "
        since = "" if self.since is None else f" (since {when(self.since)})"
        return f"{who}{self.reason}{since}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The health of a topology."""

    grade: Grade
    # The badge: one or two words.
    badge: str
    # Worst first.
    findings: tuple[Finding, ...] = ()

    @property
    def worst(self) -> Grade:
        """``ILL``, ``STRAINED`` or, without a finding, ``WELL``."""
        return self.findings[0].level if self.findings else Grade.WELL


UNKNOWN_HEALTH = Health(grade=Grade.RESTING, badge="?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerProblems:
    """Problems of a topology's servers, each in one sentence; None: the server is well."""

    redis: str | None = None
    # Redis answers, and takes no new data.
    full: str | None = None
    rabbitmq: str | None = None
    # RabbitMQ answers, and takes no messages.
    blocked: str | None = None
    # Redis answers, but this topology's data in it cannot be decoded: the sentence is ``redis``.
    unreadable: bool = False

    @property
    def lines(self) -> list[str]:
        """The problems, as views show them."""
        found = (self.redis, self.full, self.rabbitmq, self.blocked)
        return [problem for problem in found if problem]
