"""Deletion costs of the pods of a standalone Spark's workers, so that a Deployment that shrinks
deletes workers without executors first. See docs/decisions/how-many-executors.md.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from math import inf
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tiercel.spark_jobs.spark.executors import Executor
from tiercel.workers.driver.scaling import Present
from tiercel.workers.errors import ConfigError

log = logging.getLogger(__name__)
COST = "controller.kubernetes.io/pod-deletion-cost"
# Each topology notes its own cost; the pod's is the largest, because topologies share workers.
_OURS = "tiercel/executors-of-"
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME = 40
_LEAVES, _TAKES, _OWNS = 1, 2, 3
# Pods are read when the executors change, and as often as this for pods that were replaced.
_EACH_S, _AGAIN_S = 30.0, 10.0
_PATIENCE_S = 2.0
# As each pod of a cluster reaches its API server.
_URL = "https://kubernetes.default.svc"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiServer:
    """The API server of a Kubernetes cluster, for one namespace."""

    url: str
    namespace: str
    # The cluster replaces the token in this file from time to time.
    token: Path
    tls: ssl.SSLContext | None = None

    @classmethod
    def of_this_pod(cls) -> Self:
        """Return the API server of the cluster that this process runs in. Raises ConfigError."""
        try:
            namespace = (_ACCOUNT / "namespace").read_text().strip()
            tls = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
        except OSError as error:
            raise ConfigError(
                "worker_pods is for a driver in a pod with a service account, and there is none "
                f"({error}): unset TIERCEL_WORKER_PODS"
            ) from None
        return cls(url=_URL, namespace=namespace, token=_ACCOUNT / "token", tls=tls)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Return the pods with these labels. Raises OSError, ValueError, HTTPException."""
        found = self._call("GET", f"?labelSelector={quote(selector)}&resourceVersion=0")
        return list(found["items"])

    def annotate(self, pod: Mapping[str, Any], annotations: Mapping[str, str | None]) -> None:
        """Change annotations, None removes one; nothing if the pod has changed or gone meanwhile.

        Raises OSError, ValueError, HTTPException.
        """
        known = pod["metadata"]
        patch = {"resourceVersion": known["resourceVersion"], "annotations": annotations}
        try:
            self._call("PATCH", f"/{quote(known['name'])}", {"metadata": patch})
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):
                raise

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the URL is the cluster's own
            f"{self.url}/api/v1/namespaces/{quote(self.namespace)}/pods{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {self.token.read_text().strip()}",
                "Content-Type": "application/merge-patch+json",
            },
        )
        proxies = urllib.request.ProxyHandler({})
        handlers = [urllib.request.HTTPSHandler(context=self.tls)] if self.tls else []
        opener = urllib.request.build_opener(proxies, *handlers)
        try:
            with opener.open(request, timeout=_PATIENCE_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise


class WorkerPods:
    """Sets the deletion costs for the executors of one topology. For one thread."""

    def __init__(self, topology: str, selector: str, api: ApiServer) -> None:
        """``selector`` are the labels of the workers' pods."""
        # Kubernetes allows only some characters, and a letter or a digit at the end.
        name = _ODD.sub("-", topology)[:_LONGEST_NAME]
        self._ours = f"{_OURS}{name}".rstrip("_.-")
        self._selector = selector
        self._api = api
        self._last: tuple[float, Mapping[str, int]] = (-inf, {})
        self._failed = False

    def look(self, now: float, costs: Mapping[str, int]) -> None:
        """Set the costs, given by the addresses of pods, if they have changed or are old."""
        at, last = self._last
        wait_s = _AGAIN_S if self._failed else 0.0 if costs != last else _EACH_S
        if now - at < wait_s:
            return
        self._last = now, costs
        try:
            self._set(costs)
        except (OSError, ValueError, KeyError, HTTPException) as error:
            if not self._failed:
                log.warning(
                    "could not set the deletion costs of the pods of Spark's workers, will retry: "
                    "%s; a Deployment that shrinks may take one that has an executor", error,
                    extra={"event": "deletion_costs_unset"},
                )  # fmt: skip
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        """Remove this topology's costs, as far as the API server answers."""
        if self._last[1]:
            self._last = (-inf, self._last[1])
            self.look(0.0, {})

    def _set(self, costs: Mapping[str, int]) -> None:
        for pod in self._api.pods(self._selector):
            known = pod["metadata"].get("annotations", {})
            cost = costs.get(pod.get("status", {}).get("podIP", ""), 0)
            others = [
                int(value)
                for key, value in known.items()
                if key.startswith(_OURS) and key != self._ours
            ]
            total = max([cost, *others])
            wanted = {self._ours: _written(cost), COST: _written(total)}
            # A cost that is an operator's own stays on a pod without executors.
            if known.get(self._ours) != wanted[self._ours] or (
                cost and known.get(COST) != wanted[COST]
            ):
                self._api.annotate(pod, wanted)


def _written(cost: int) -> str | None:
    return str(cost) if cost else None


def costs_of(executors: Sequence[Executor], found: Sequence[Present]) -> dict[str, int]:
    """Return the cost of each host with executors: least where they leave, most where a run has
    tasks of its own, which only a new run moves.

    Whether an executor has a tuple just now is left out: it changes too often to be noted in a pod.
    """
    parts = {one.id: one for one in found}
    costs: dict[str, int] = {}
    for one in executors:
        part = parts.get(one.id)
        leaves = one.leaving or (part is not None and part.retiring)
        cost = _OWNS if part and part.own else _LEAVES if leaves else _TAKES
        costs[one.host] = max(cost, costs.get(one.host, 0))
    return costs
