"""Deletion costs of the pods of Spark's workers, by a stand-in of Kubernetes' API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tiercel.spark_jobs.spark.executors import Executor
from tiercel.workers.driver import deletion_cost
from tiercel.workers.driver.deletion_cost import COST, ApiServer, WorkerPods, costs_of
from tiercel.workers.driver.scaling import Present
from tiercel.workers.errors import ConfigError

LABELS = "app.kubernetes.io/instance=t,app.kubernetes.io/component=spark-worker"
TOKEN = "of-the-driver"


class Cluster(ThreadingHTTPServer):
    """Pods of one namespace, for a client with the token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.pods: dict[str, dict[str, Any]] = {}
        self.patches = 0
        self.lists = 0
        # Answers that are errors, in order.
        self.errors: list[int] = []
        # Annotations that another driver writes between a list and a patch.
        self.meanwhile: dict[str, str] = {}

    def add(self, name: str, address: str, **annotations: str) -> None:
        self.pods[name] = {
            "metadata": {"name": name, "resourceVersion": "1", "annotations": annotations},
            "status": {"podIP": address} if address else {},
        }

    def annotations(self, name: str) -> dict[str, str]:
        return dict(self.pods[name]["metadata"]["annotations"])

    def cost(self, name: str) -> str | None:
        return self.annotations(name).get(COST)

    def change(self, name: str, annotations: dict[str, str | None]) -> None:
        found = self.pods[name]["metadata"]
        merged = {**found["annotations"], **annotations}
        found["annotations"] = {key: value for key, value in merged.items() if value is not None}
        found["resourceVersion"] = str(int(found["resourceVersion"]) + 1)


class Requests(BaseHTTPRequestHandler):
    server: Cluster

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.lists += 1
        parts = urlsplit(self.path)
        assert parts.path == "/api/v1/namespaces/streams/pods"
        assert parse_qs(parts.query)["labelSelector"] == [LABELS]
        self._answer({"items": list(self.server.pods.values())})

    def do_PATCH(self) -> None:
        self.server.patches += 1
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        name = urlsplit(self.path).path.removeprefix("/api/v1/namespaces/streams/pods/")
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["metadata"]
        if self.server.meanwhile:
            self.server.change(name, {**self.server.meanwhile})
            self.server.meanwhile = {}
        if name not in self.server.pods:
            return self._answer({}, 404)
        if patch["resourceVersion"] != self.server.pods[name]["metadata"]["resourceVersion"]:
            return self._answer({}, 409)
        self.server.change(name, patch["annotations"])
        return self._answer(self.server.pods[name])

    def _answer(self, body: object, status: int = 200) -> None:
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status = 401
        if self.server.errors:
            status = self.server.errors.pop(0)
        said = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as server:
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        for number in (1, 2, 3):
            server.add(f"worker-{number}", f"10.0.0.{number}")
        yield server
        server.shutdown()


@pytest.fixture
def api(cluster: Cluster, tmp_path: Path) -> ApiServer:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    return ApiServer(
        url=f"http://127.0.0.1:{cluster.server_port}", namespace="streams", token=token
    )


@pytest.fixture
def pods(api: ApiServer) -> WorkerPods:
    return WorkerPods("orders", LABELS, api)


def test_a_pod_without_an_executor_costs_less_than_the_others(cluster, pods):
    pods.look(0.0, {"10.0.0.1": 3, "10.0.0.3": 2})

    assert [cluster.cost(f"worker-{number}") for number in (1, 2, 3)] == ["3", None, "2"]


def test_an_executor_that_is_given_back_leaves_a_pod_without_a_cost(cluster, pods):
    pods.look(0.0, {"10.0.0.1": 3, "10.0.0.3": 2})
    pods.look(1.0, {"10.0.0.1": 3})

    assert cluster.annotations("worker-3") == {}
    assert cluster.cost("worker-1") == "3"


def test_a_pod_is_patched_only_when_its_cost_changes(cluster, pods):
    for now in range(100):
        pods.look(float(now), {"10.0.0.1": 3})

    assert cluster.patches == 1
    assert cluster.lists == 4


def test_a_pod_in_the_place_of_another_is_seen_within_thirty_seconds(cluster, pods):
    pods.look(0.0, {"10.0.0.1": 3})
    del cluster.pods["worker-1"]
    cluster.add("worker-4", "10.0.0.1")
    pods.look(30.0, {"10.0.0.1": 3})

    assert cluster.cost("worker-4") == "3"


def test_a_pod_without_an_address_yet_is_left_alone(cluster, pods):
    cluster.add("worker-5", "")
    pods.look(0.0, {"10.0.0.1": 3})

    assert cluster.cost("worker-5") is None


def test_topologies_that_share_a_worker_keep_each_others_costs(cluster, api, pods):
    others = WorkerPods("sales", LABELS, api)
    pods.look(0.0, {"10.0.0.1": 2})
    others.look(0.0, {"10.0.0.1": 3})
    assert cluster.cost("worker-1") == "3"

    others.look(1.0, {})
    assert cluster.cost("worker-1") == "2"

    pods.close()
    assert cluster.annotations("worker-1") == {}


def test_of_two_drivers_at_once_the_second_looks_again(cluster, pods):
    cluster.meanwhile = {"tiercel/executors-of-sales": "3", COST: "3"}
    pods.look(0.0, {"10.0.0.1": 2})
    assert cluster.cost("worker-1") == "3"
    assert "tiercel/executors-of-orders" not in cluster.annotations("worker-1")

    pods.look(30.0, {"10.0.0.1": 2})
    assert cluster.cost("worker-1") == "3"
    assert cluster.annotations("worker-1")["tiercel/executors-of-orders"] == "2"


def test_a_cost_that_an_operator_gave_stays_on_a_pod_without_executors(cluster, pods):
    cluster.add("worker-2", "10.0.0.2", **{COST: "-5"})
    pods.look(0.0, {"10.0.0.1": 3})

    assert cluster.cost("worker-2") == "-5"


def test_an_api_server_that_refuses_is_reported_once_and_asked_again(cluster, pods, caplog):
    cluster.errors = [403, 403]
    for now in range(30):
        pods.look(float(now), {"10.0.0.1": 3})

    assert cluster.cost("worker-1") == "3"
    [record] = caplog.records
    assert record.event == "deletion_costs_unset"
    assert "403" in record.getMessage()


@pytest.mark.parametrize("name", ["an odd/näme:", "n" * 200])
def test_the_name_of_an_annotation_is_one_that_kubernetes_allows(cluster, api, name):
    WorkerPods(name, LABELS, api).look(0.0, {"10.0.0.1": 2})

    [own] = cluster.annotations("worker-1").keys() - {COST}
    _, _, part = own.partition("/")
    assert len(part) <= 63
    assert part.isascii()
    assert part.replace("-", "").isalnum()
    assert part[-1].isalnum()


def test_most_costs_a_worker_with_tasks_of_the_runs_own_and_least_one_that_is_leaving():
    found = [
        Present(id="1", own=2),
        Present(id="2", extra=(7,), idle=True),
        Present(id="3", extra=(8,), retiring=True),
    ]
    executors = [Executor(id=str(n), slots=1, host=f"10.0.0.{n}") for n in range(1, 5)]
    executors.append(Executor(id="5", slots=1, host="10.0.0.3", leaving=True))

    assert costs_of(executors, found) == {
        "10.0.0.1": 3, "10.0.0.2": 2, "10.0.0.3": 1, "10.0.0.4": 2,
    }  # fmt: skip


def test_a_driver_outside_of_a_pod_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(deletion_cost, "_ACCOUNT", tmp_path)
    with pytest.raises(ConfigError, match="unset TIERCEL_WORKER_PODS"):
        ApiServer.of_this_pod()
