"""``make test-kubernetes``: installs the chart and runs word count and slow work in pods, while
executors and pods are killed and a node is drained; scales, upgrades and uninstalls it. Then the
driver asks for executor pods under a changing load, and gives them back.

If ``KUBECONFIG`` is set, it uses the current context and namespace, and needs ``TIERCEL_AMQP`` and
``TIERCEL_REDIS``, which pods and this process can reach, and ``TIERCEL_IMAGE``. Otherwise it makes
a cluster of one node on this machine, as root. An argument chooses a part: ``standalone`` or
``kubernetes``, a kind of Spark, or ``scaling``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clusters import changing_load, one_node
from tests.clusters.exam import SLOW_WORK, WORD_COUNT, Exam, Place, Seen, Work
from tests.images.engine import engine
from tests.support.stack_image import build_image
from tests.support.waiting import wait_until
from tiercel import WorkQueue, declare_queue
from tiercel.compose.embedded import EmbeddedServices
from tiercel.compose.server import LOOPBACK

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART = ROOT / "compose/chart"
RELEASE = "t"
PARTS = f"app.kubernetes.io/instance={RELEASE}"
READY_WITHIN_S = 90
# Component of the pods with executors, by Spark's mode.
EXECUTORS = {"standalone": "spark-worker", "kubernetes": "executor"}
SCALING = "scaling"
_DRAINED_S = 15


# In a pod, /proc has only the processes of its container.
_KILL_EXECUTORS = """
import os, pathlib, signal
found = [
    int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
    if b"CoarseGrainedExecutorBackend" in path.read_bytes()
]
found.remove(os.getpid())
for number in found:
    os.kill(number, signal.SIGKILL)
raise SystemExit(not found)
"""


class Cluster:
    """The cluster of a kubeconfig, through kubectl and helm; and the servers that pods use."""

    def __init__(self, place: Place, pods: Place, image: str, kubeconfig: str) -> None:
        """``pods`` has the addresses of the servers for pods."""
        self.place = place
        self._pods = pods
        self._image = image
        path = f"{one_node.BIN}:{os.environ['PATH']}"
        self._environment = {**os.environ, "KUBECONFIG": kubeconfig, "PATH": path}

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        """Run kubectl; return its output."""
        return self._run("kubectl", *arguments, given=given, check=check)

    def install(self, work: Work, mode: str, driver: Sequence[str] = (), **others: object) -> float:
        """Install the chart, or upgrade it; return the seconds until all is Running and Ready.

        All values but the image, the topology, options of its driver, Spark's mode and ``others``
        are the defaults.
        """
        self._secret(
            "tiercel-addresses",
            TIERCEL_AMQP=self._pods.amqp_url,
            TIERCEL_REDIS=self._pods.redis_url,
        )
        repository, _, tag = self._image.rpartition(":")
        topology: dict[str, object] = {
            "name": work.name, "topology": work.topology, "driver": {"args": driver},
        }  # fmt: skip
        file = HERE / f"{work.topology.partition(':')[0]}.py"
        if file.exists():
            topology["files"] = {file.name: file.read_text()}
        values = {
            "image": {"repository": repository, "tag": tag},
            "topologies": [topology],
            "spark": {"mode": mode},
            **others,
        }
        began = time.monotonic()
        self._run(
            "helm", "upgrade", "--install", RELEASE, str(CHART), "--values", "-",
            given=json.dumps(values),
        )  # fmt: skip
        self.wait_until_ready()
        return time.monotonic() - began

    def uninstall(self) -> float:
        """Remove the release; return the seconds until its last pod is gone."""
        began = time.monotonic()
        self._run("helm", "uninstall", RELEASE)
        wait_until(lambda: not self.pods(), 180, "all pods to be gone")
        return time.monotonic() - began

    def wait_until_ready(self) -> None:
        """Wait until each deployment has all its pods, each Ready, and no others."""

        def ready() -> bool:
            states = json.loads(self.kubectl("get", "deployments", "-o", "json"))["items"]
            return bool(states) and all(_is_ready(each) for each in states)

        try:
            wait_until(ready, 300, "all pods to be Ready")
        except AssertionError:
            print(self.kubectl("get", "pods", "-o", "wide"), self.kubectl("get", "events"))
            raise

    def pods(self, component: str = "") -> list[str]:
        """Return the pods of a component, or all pods, oldest first."""
        wanted = f"app.kubernetes.io/component={component}" if component else PARTS
        form = "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}"
        order = "--sort-by=.metadata.creationTimestamp"
        return self.kubectl("get", "pods", "-l", wanted, order, "-o", form).split()

    def upgrade(self, work: Work, mode: str) -> str:
        """Change a variable of all pods; return when all new ones are Ready."""
        seconds = self.install(work, mode, env=[{"name": "UPGRADED", "value": "yes"}])
        return f"upgraded, all Ready after {seconds:.0f} s"

    def kill_executors(self, component: str) -> str:
        """Send SIGKILL to the executors' JVMs in the oldest pod of a component."""
        [pod, *_] = self.pods(component)
        self.kubectl("exec", pod, "--", "python3", "-c", _KILL_EXECUTORS)
        return "executor killed in its pod"

    def kill(self, component: str, count: int = 1) -> str:
        """Delete the oldest pods of a component, without grace."""
        chosen = self.pods(component)[:count]
        self.kubectl("delete", "pod", *chosen, "--grace-period=0", "--force", "--wait=false")
        return f"{len(chosen)} pod{'s' * (len(chosen) > 1)} of {component} deleted, no grace"

    def drain(self) -> str:
        """Drain a node of the release for some seconds: if it is the only one, pods wait."""
        [node, *_] = self.kubectl(
            "get", "pods", "-l", PARTS, "-o", "jsonpath={.items[*].spec.nodeName}"
        ).split()
        self.kubectl(
            "drain", node, f"--pod-selector={PARTS}", "--force", "--delete-emptydir-data",
            f"--timeout={_DRAINED_S}s", check=False,
        )  # fmt: skip
        self.kubectl("uncordon", node)
        return f"node drained for {_DRAINED_S} s"

    def scale(self, component: str, replicas: int) -> str:
        """Scale the deployment of a component by hand."""
        wanted = f"app.kubernetes.io/component={component}"
        self.kubectl("scale", "deployment", "-l", wanted, f"--replicas={replicas}")
        return f"{component} scaled to {replicas}"

    def _secret(self, name: str, **values: str) -> None:
        document = {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values,
        }  # fmt: skip
        self.kubectl("apply", "-f", "-", given=json.dumps(document))

    def _run(self, *command: str, given: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            command, input=given, env=self._environment, cwd=self.place.folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command[:4])}: {done.stderr.strip()}")
        return done.stdout


def _is_ready(deployment: dict[str, Any]) -> bool:
    status = deployment["status"]
    wanted = deployment["spec"]["replicas"]
    now = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return now and all(
        status.get(name, 0) == wanted for name in ("replicas", "updatedReplicas", "readyReplicas")
    )


def examined(cluster: Cluster, parts: Sequence[str], burst_s: float) -> int:
    """Run these parts; print the findings."""
    modes = [part for part in parts if part != SCALING]
    status = killed(cluster, modes) if modes else 0
    return scaled(cluster, burst_s) or status if SCALING in parts else status


def killed(cluster: Cluster, modes: Sequence[str]) -> int:
    """Run both topologies through their exams, on these kinds of Spark; print the findings."""
    seen: list[Seen] = []
    faults = []
    for mode in modes:
        ready_s = cluster.install(WORD_COUNT, mode)
        _say(f"{mode}: installed, all Ready after {ready_s:.0f} s")
        if ready_s > READY_WITHIN_S:
            faults.append(f"{mode}: Ready after {ready_s:.0f} s, not within {READY_WITHIN_S} s")
        for work in (WORD_COUNT, SLOW_WORK):
            if work is not WORD_COUNT:
                changed_s = cluster.install(work, mode)
                _say(f"{mode}: {work.name} in its place, all Ready after {changed_s:.0f} s")
            found = Exam(work, cluster.place, lambda: None).take(faults_of(cluster, work, mode))
            found.work += f", `{mode}`"
            print(found, flush=True)
            seen.append(found)
        gone_s = cluster.uninstall()
        _say(f"{mode}: uninstalled, no pod left after {gone_s:.0f} s")
    return shown(cluster, seen, faults)


def scaled(cluster: Cluster, burst_s: float) -> int:
    """Have the driver ask for executor pods under a changing load; print what was seen."""
    work = changing_load.WORK
    declare_queue(cluster.place.amqp_url, WorkQueue(name=work.queue))
    cluster.install(
        work, "kubernetes", ["--executors", "1..4"],
        spark={
            "mode": "kubernetes", "executorMemoryMb": 512,
            "executors": {"cores": 1, "requestCpu": "100m", "overheadMb": 512},
        },
    )  # fmt: skip
    seen = changing_load.watched(cluster.place, burst_s)
    cluster.uninstall()
    return changing_load.shown(seen)


def faults_of(cluster: Cluster, work: Work, mode: str) -> list[Callable[[], str]]:
    """Return the faults for the pods of a topology under load."""
    pods = EXECUTORS[mode]
    faults: list[Callable[[], str]] = [
        partial(cluster.kill, pods),
        partial(cluster.kill, pods, 2),
    ]
    if mode == "standalone":
        faults.insert(0, partial(cluster.kill_executors, pods))
        faults.append(partial(cluster.scale, pods, 3))
    if work is WORD_COUNT:
        faults += [
            partial(cluster.scale, "spout", 3),
            partial(cluster.kill, "driver"),
            partial(cluster.upgrade, work, mode),
            cluster.drain,
        ]
    return faults


def shown(cluster: Cluster, seen: list[Seen], faults: list[str]) -> int:
    """Print the table and the faults; return the exit status."""
    version = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo}")
    print(f"\nKubernetes {json.loads(version)['kubeletVersion']}\n\n{Seen.HEAD}")
    for each in seen:
        print(each)
        faults += [f"{each.work}: {fault}" for fault in each.faults]
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


def main() -> int:
    """Return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="make test-kubernetes")
    names = [*EXECUTORS, SCALING]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument(
        "--burst", type=float, default=changing_load.BURST_S, metavar="SECONDS",
        help="time of ten times the load in the part scaling (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--within", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    parts = given.parts or names
    if unknown := set(parts).difference(names):
        parser.error(f"a part is one of {', '.join(names)}, not {', '.join(unknown)}")
    if given.within:
        image, *archives = given.within
        return on_own_node(parts, given.burst, image, [Path(name) for name in archives])
    if "KUBECONFIG" in os.environ:
        return on_given_cluster(parts, given.burst)
    one_node.programs()
    with tempfile.TemporaryDirectory(prefix="tiercel-images-") as folder:
        image, archived_files = archived(Path(folder))
        command = [
            sys.executable, "-m", "tests.clusters.on_kubernetes", *parts,
            "--burst", str(given.burst), "--within", image, *map(str, archived_files),
        ]  # fmt: skip
        return subprocess.run(one_node.within(command), check=False, cwd=ROOT).returncode


def archived(folder: Path) -> tuple[str, list[Path]]:
    """Build the image of docs/deploy.md and the image of pods' sandboxes; save both."""
    with closing(engine()) as client:
        image, _ = build_image(client)
        context = folder / "pause"
        context.mkdir()
        shutil.copy(one_node.BIN / "pause", context)
        (context / "Dockerfile").write_text('FROM scratch\nCOPY pause /\nENTRYPOINT ["/pause"]\n')
        pause = one_node.PAUSE.removeprefix("docker.io/library/")
        client.images.build(path=str(context), tag=pause, rm=True)
        archives = []
        for name in (f"{image}:latest", pause):
            archives.append(folder / f"{name.partition(':')[0]}.tar")
            with archives[-1].open("wb") as file:
                file.writelines(client.images.get(name).save(named=name))
    return f"{image}:latest", archives


def on_own_node(parts: Sequence[str], burst_s: float, image: str, archives: Sequence[Path]) -> int:
    """Run the parts on a node in separate namespaces."""
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        folder = Path(name)
        began = time.monotonic()
        try:
            with one_node.node(folder, archives) as kubeconfig, EmbeddedServices() as servers:
                _say(f"the node is Ready after {time.monotonic() - began:.0f} s")
                with cluster_of(servers, folder, image, kubeconfig) as cluster:
                    try:
                        return examined(cluster, parts, burst_s)
                    finally:
                        events = cluster.kubectl("get", "events", check=False)
                        (folder / "events.log").write_text(events)
        finally:
            keep(folder)


def keep(folder: Path) -> None:
    """Keep the logs of the node and of its pods, which would be deleted with the folder."""
    kept = ROOT / "artifacts/kubernetes"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in folder.glob("*.log"):
        shutil.copy(path, kept)
    for path in folder.glob("logs/*/*/*.log"):
        shutil.copy(path, kept / f"{path.parts[-3]}-{path.name}")
    print(f"the logs are in {kept}", file=sys.stderr)


@contextmanager
def cluster_of(
    servers: EmbeddedServices, folder: Path, image: str, kubeconfig: Path
) -> Iterator[Cluster]:
    """Let pods reach the embedded servers, which listen on loopback, at the node's address."""
    urls = servers.amqp_url, servers.redis_url
    for url in urls:
        port = str(urlsplit(url).port)
        subprocess.run(
            ["iptables", "-t", "nat", "-A", "PREROUTING", "-d", one_node.ADDRESS, "-p", "tcp",
             "--dport", port, "-j", "DNAT", "--to-destination", f"{LOOPBACK}:{port}"], check=True,
        )  # fmt: skip
    there = [url.replace(LOOPBACK, one_node.ADDRESS) for url in urls]
    place = Place(amqp_url=urls[0], redis_url=urls[1], folder=folder, environment={**os.environ})
    pods = replace(place, amqp_url=there[0], redis_url=there[1])
    yield Cluster(place, pods, image, str(kubeconfig))


def on_given_cluster(parts: Sequence[str], burst_s: float) -> int:
    """Run the parts on the cluster that the environment names."""
    missing = [
        name
        for name in ("TIERCEL_AMQP", "TIERCEL_REDIS", "TIERCEL_IMAGE")
        if name not in os.environ
    ]
    if missing:
        print(f"KUBECONFIG is set, so set these too: {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        place = Place(
            amqp_url=os.environ["TIERCEL_AMQP"],
            redis_url=os.environ["TIERCEL_REDIS"],
            folder=Path(folder),
            environment=dict(os.environ),
        )
        image, kubeconfig = os.environ["TIERCEL_IMAGE"], os.environ["KUBECONFIG"]
        return examined(Cluster(place, place, image, kubeconfig), parts, burst_s)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
