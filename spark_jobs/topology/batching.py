"""Size of the batches of a ``BatchBolt``, and how long they wait: read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiercel.spark_jobs.bolts.bolt import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import BoltSpec, Topology

# Half of what an inbox holds: while one batch is executed the next one comes together.
_LARGEST = 10_000
_ON_ERROR = ("fail", "split")
_OTHERS = (StatefulBolt, BasicBolt, Bolt, AsyncBolt, ArrowBolt)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """Bounds of one bolt's batches."""

    # Tuples, at most.
    size: int
    # Time that a tuple waits for company, at most.
    wait_s: float


def batching_of(spec: BoltSpec) -> Batching | None:
    """Return the bounds of a bolt's batches; None for a bolt of another kind.

    Only for a topology that was built: ``check_batching`` has looked at them.
    """
    if not isinstance(spec.bolt, BatchBolt):
        return None
    size, wait_ms = _given(spec.bolt, spec.overrides)
    return Batching(size=size, wait_s=wait_ms / 1000)


def check_batching(topology: Topology, id_: str, spec: BoltSpec) -> None:
    """Raises TopologyError for a ``BatchBolt`` that cannot run as it is written."""
    bolt = spec.bolt
    if not isinstance(bolt, BatchBolt):
        return
    others = [kind.__name__ for kind in _OTHERS if kind in type(bolt).__mro__]
    if others:
        raise TopologyError(
            f"bolt {id_!r} is both BatchBolt and {others[0]}: derive it from one of them, and put "
            "the work of the other into a bolt of its own"
        )
    if type(bolt).execute_batch is BatchBolt.execute_batch:
        raise TopologyError(
            f"bolt {id_!r} is a BatchBolt without execute_batch: write"
            " `def execute_batch(self, tuples, collector)`"
        )
    size, wait_ms = _given(bolt, spec.overrides)
    if type(size) is not int or not 1 <= size <= _LARGEST:
        raise TopologyError(
            f"bolt {id_!r}: size must be a number of tuples, 1 to {_LARGEST:,}, not {size!r:.60}"
        )
    _check_wait(id_, wait_ms, topology.config)
    if bolt.on_error not in _ON_ERROR:
        raise TopologyError(
            f'bolt {id_!r}: on_error must be "fail" or "split", not {bolt.on_error!r:.60}'
        )


def _check_wait(id_: str, wait_ms: Any, config: Config) -> None:
    number = isinstance(wait_ms, (int, float)) and not isinstance(wait_ms, bool)
    if not (number and math.isfinite(wait_ms) and wait_ms >= 0):
        raise TopologyError(
            f"bolt {id_!r}: wait_ms must be a number of milliseconds, not {wait_ms!r:.60}"
        )
    timeout_ms = 1000 * config.message_timeout_secs
    if config.enable_message_timeouts and wait_ms >= timeout_ms:
        raise TopologyError(
            f"bolt {id_!r} waits {wait_ms:g} ms for a batch, and its messages time out after"
            f" {timeout_ms:g}: lower wait_ms, or raise message_timeout_secs"
        )


def _given(bolt: BatchBolt, overrides: Mapping[str, Any]) -> tuple[Any, Any]:
    return overrides.get("size", bolt.size), overrides.get("wait_ms", bolt.wait_ms)
