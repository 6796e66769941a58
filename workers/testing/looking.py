"""Looks at a cluster that go on when it is closed: states, and tracebacks."""

from __future__ import annotations

from typing import Any

from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.state.encoding import Key, decode_key, decode_value
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.engine import Engine
from tiercel.workers.testing.errors import LocalClusterError


class Looking:
    """The part of a ``LocalCluster`` that is asked for what its bolts have left."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._engine: Engine | None = None
        self._last_states: dict[str, dict[Key, Any]] = {}
        self._last_tracebacks: list[str] = []

    def state(self, component: str) -> dict[Key, Any]:
        """The state of a ``StatefulBolt``: what its tasks have put there.

        Raises LocalClusterError if there is no such bolt.
        """
        spec = self._topology.bolts.get(component)
        if spec is None or not isinstance(spec.bolt, StatefulBolt):
            raise LocalClusterError(f"there is no stateful bolt {component!r}")
        if component in self._last_states:
            return dict(self._last_states[component])
        return _state_of(self._running_engine(), component)

    def tracebacks(self) -> list[str]:
        """Return the first traceback of each error that bolts raised, the newest error first.

        An error is one exception at one line of one bolt.
        """
        if self._engine is None:
            return list(self._last_tracebacks)
        return [known.first.text for known in self._engine.tracebacks()]

    def _keep_seen(self, engine: Engine) -> None:
        """Keep what can be asked for when the engine is gone."""
        self._last_tracebacks = [known.first.text for known in engine.metrics.traces()]
        for component, spec in self._topology.bolts.items():
            if isinstance(spec.bolt, StatefulBolt):
                self._last_states[component] = _state_of(engine, component)

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise LocalClusterError(
                "the cluster does not run: use it as `with LocalCluster(topology) as cluster:`"
            )
        return self._engine


def _state_of(engine: Engine, component: str) -> dict[Key, Any]:
    return {decode_key(field): decode_value(raw) for field, raw in engine.state.entries(component)}
