"""``make test-keda``: the chart's ScaledObject and rights on Kubernetes' own API server, and the
workers that its Deployment takes away when their number goes down, by the driver's deletion costs.

There is no node: this program writes into the pods' status as a kubelet would, and changes the
number as KEDA does.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.clusters import one_node
from tests.support.helm import CHART, KEDA, SCALED_OBJECT, find_module
from tests.support.waiting import wait_until
from tiercel.spark_jobs.spark.executors import Executor
from tiercel.workers.driver.deletion_cost import COST, ApiServer, WorkerPods, costs_of
from tiercel.workers.driver.scaling import Present

WORKERS = "t-spark-worker"
KINDS = ("ServiceAccount", "Role", "RoleBinding", "ScaledObject", "Deployment")
VALUES = {
    "topologies": [
        {
            "name": "word-count",
            "topology": "tiercel.examples.word_count:topology",
            "driver": {"args": ["--executors", "1..4"]},
        }
    ],
    "keda": {"enabled": True, "maxReplicas": 4},
}
_WAIT_S = 30.0


class Cluster:
    """kubectl and helm, on the control plane that a kubeconfig names."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self._folder = folder
        path = f"{one_node.BIN}:{os.environ['PATH']}"
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}

    def run(self, *command: str, given: object = None) -> str:
        """Run a command; return its output."""
        text = None if given is None else json.dumps(given)
        done = subprocess.run(
            command, input=text, env=self._environment, cwd=self._folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def install(self) -> list[str]:
        """Apply the chart's parts for KEDA, and the drivers' Deployments; return the labels that
        the driver gets as TIERCEL_WORKER_PODS.
        """
        self.run("kubectl", "create", "-f", str(scaled_objects()))
        self.run("kubectl", "wait", "--for=condition=Established", f"--timeout={_WAIT_S:.0f}s",
                 "crd/scaledobjects.keda.sh")  # fmt: skip
        rendered = self.run(
            "helm", "template", "t", str(CHART), "--values", "-",
            "--kube-version", one_node.VERSION, given=VALUES,
        )  # fmt: skip
        documents = [
            each for each in yaml.safe_load_all(rendered) if each and each["kind"] in KINDS
        ]
        items = {"apiVersion": "v1", "kind": "List", "items": documents}
        self.run("kubectl", "apply", "-f", "-", given=items)
        return [
            variable["value"]
            for each in documents
            if each["kind"] == "Deployment"
            for container in each["spec"]["template"]["spec"]["containers"]
            for variable in container.get("env", ())
            if variable["name"] == "TIERCEL_WORKER_PODS"
        ]

    def scale(self, replicas: int) -> None:
        """Change the number of Spark workers, as KEDA does."""
        self.run("kubectl", "scale", "deployment", WORKERS, f"--replicas={replicas}")

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the Spark workers' pods that are not told to end, by name."""
        labels = "app.kubernetes.io/component=spark-worker"
        found = json.loads(self.run("kubectl", "get", "pods", "-l", labels, "-o", "json"))
        return {
            each["metadata"]["name"]: each
            for each in found["items"]
            if "deletionTimestamp" not in each["metadata"]
        }

    def start(self, pod: str, address: str) -> None:
        """Bind a pod, and note that it runs and is Ready, as scheduler and kubelet do."""
        target = {"apiVersion": "v1", "kind": "Node", "name": one_node.NODE}
        binding = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target,
        }  # fmt: skip
        path = f"/api/v1/namespaces/default/pods/{pod}"
        self.run("kubectl", "create", "--raw", f"{path}/binding", "-f", "-", given=binding)
        status = {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }  # fmt: skip
        self.run("kubectl", "patch", "pod", pod, "--subresource=status", "--type=merge",
                 "-p", json.dumps({"status": status}))  # fmt: skip

    def grow(self, replicas: int) -> None:
        """Have this number of workers, each with an address."""
        self.scale(replicas)
        wait_until(lambda: len(self.pods()) == replicas, _WAIT_S, f"{replicas} pods")
        for name, pod in sorted(self.pods().items()):
            if "podIP" not in pod["status"]:
                self.start(name, f"10.244.0.{10 + len(self.addresses())}")

    def addresses(self) -> dict[str, str]:
        """Return the pods that have an address, by it."""
        return {
            pod["status"]["podIP"]: name
            for name, pod in self.pods().items()
            if "podIP" in pod["status"]
        }

    def shrink(self, replicas: int) -> set[str]:
        """Have fewer workers; return the addresses of those that stay."""
        self.scale(replicas)
        wait_until(lambda: len(self.pods()) == replicas, _WAIT_S, f"{replicas} pods")
        return set(self.addresses())

    def api(self) -> ApiServer:
        """Return the API server as the driver reaches it, with its service account."""
        token = self._folder / "token"
        token.write_text(self.run("kubectl", "create", "token", "t-driver"))
        tls = ssl.create_default_context(cafile=str(self._folder / "certificates/apiserver.crt"))
        url = f"https://{one_node.ADDRESS}:6443"
        return ApiServer(url=url, namespace="default", token=token, tls=tls)

    def may(self, verb: str, what: str) -> bool:
        """Return True if the driver's service account may do it."""
        account = "--as=system:serviceaccount:default:t-driver"
        done = subprocess.run(
            ["kubectl", "auth", "can-i", verb, what, account], env=self._environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.strip() == "yes"


def examined(cluster: Cluster) -> list[str]:
    """Shrink the workers with executors on some of them; return broken promises."""
    faults: list[str] = []
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": one_node.NODE}}
    cluster.run("kubectl", "create", "-f", "-", given=node)
    [labels] = cluster.install()
    pods = WorkerPods("word-count", labels, cluster.api())
    cluster.grow(4)
    executors = sorted(cluster.addresses())
    # The run's own tasks are on the last worker, which Kubernetes takes early where nothing costs.
    pods.look(0.0, costs_of(_executors(executors), [Present(id=executors[-1], own=1)]))
    noted = _costs(cluster)
    if noted != {**dict.fromkeys(executors[:-1], "2"), executors[-1]: "3"}:
        faults.append(f"costs of four workers with executors: {noted}")
    for left, now in ((executors[1:2] + executors[-1:], 1.0), (executors[-1:], 2.0)):
        pods.look(now, costs_of(_executors(left), [Present(id=executors[-1], own=1)]))
        stay = cluster.shrink(len(left))
        print(f"{len(left)} executors on {left}, {len(left)} workers wanted: {sorted(stay)} stay")
        if stay != set(left):
            faults.append(f"workers with executors went: {left} had them, {stay} stayed")
    rights = [
        (verb, what)
        for verb in ("list", "patch", "create", "delete")
        for what in ("pods", "secrets", "deployments")
        if cluster.may(verb, what)
    ]
    if rights != [("list", "pods"), ("patch", "pods")]:
        faults.append(f"the driver's rights: {rights}")
    pods.close()
    if any(_costs(cluster).values()):
        faults.append("a driver that has ended left costs")
    return faults


def scaled_objects() -> Path:
    """Return the file with KEDA's definition of a ScaledObject."""
    return find_module("github.com/kedacore/keda/v2", KEDA) / SCALED_OBJECT


def _executors(addresses: Sequence[str]) -> list[Executor]:
    return [Executor(id=each, slots=1, host=each) for each in addresses]


def _costs(cluster: Cluster) -> dict[str, str | None]:
    return {
        pod["status"]["podIP"]: pod["metadata"].get("annotations", {}).get(COST)
        for pod in cluster.pods().values()
    }


def main() -> int:
    """Print what was seen; return 1 if any of it must not be."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.argv[1:] != ["--within"]:
        one_node.programs()
        scaled_objects()  # within, nothing can be downloaded
        command = [sys.executable, "-m", "tests.clusters.on_api_server", "--within"]
        return subprocess.run(one_node.within(command), check=False).returncode
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        folder = Path(name)
        with one_node.control_plane(folder) as kubeconfig:
            faults = examined(Cluster(folder, kubeconfig))
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
