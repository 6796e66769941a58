"""A Kubernetes of one real node, for machines without one: its servers and etcd are compiled from
their Go modules into ``.cache/kubernetes``; containerd and runc are the machine's.

The node and its pods are in separate namespaces for network, mounts and processes, which end with
``node`` or with its calling process. No packet leaves them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.support.helm import VERSION as HELM_VERSION
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "kubernetes"
CACHE = ROOT / ".cache/kubernetes"
BIN = CACHE / "bin"
VERSION = "1.34.2"
OTHERS = (
    f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}",
    "github.com/coredns/coredns@v1.12.4",
    "github.com/containernetworking/plugins/plugins/main/ptp@v1.7.1",
    "github.com/containernetworking/plugins/plugins/main/loopback@v1.7.1",
    "github.com/containernetworking/plugins/plugins/ipam/host-local@v1.7.1",
)
PAUSE = "docker.io/library/tiercel-pause:1"
NODE = "node"
ADDRESS = "192.168.77.1"
_PODS = "10.244.0.0/24"
_SERVICES = "10.96.0.0/16"
_CGROUPS = Path("/sys/fs/cgroup")
# Folders that kubelet, containerd and CNI use regardless of their settings; they are empty in the
# node.
_OWN_FOLDERS = ("/run", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
_START_S = 180
# Pods get the memory that a node of 8 GB leaves them, however much this machine has.
MEMORY = 7 << 30
NEEDED = ("go", "containerd", "ctr", "runc", "iptables", "ip", "openssl", "unshare")
_PATH = f"{BIN}:{os.environ['PATH']}:/usr/local/go/bin:/usr/sbin:/sbin"
_STAMP = "component-base/version"


def programs() -> None:
    """Compile the missing programs, in about five minutes on two cores."""
    if os.geteuid():
        sys.exit(
            "a cluster of one node on this machine takes root; "
            "or name another cluster in KUBECONFIG"
        )
    missing = [name for name in NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        sys.exit(
            f"a cluster of one node needs {', '.join(missing)}: install Go 1.24 or newer, and "
            "apt-get install containerd runc iptables iproute2 openssl"
        )
    BIN.mkdir(parents=True, exist_ok=True)
    flags = " ".join(
        f"-X k8s.io/{_STAMP}.{name}={value}"
        for name, value in (
            ("gitVersion", f"v{VERSION}"),
            ("gitMajor", VERSION.split(".", maxsplit=1)[0]),
            ("gitMinor", VERSION.split(".")[1]),
        )
    )
    go = ["nice", "go"]
    built = ["-trimpath", "-ldflags", f"-s -w {flags}"]
    environment = {**os.environ, "PATH": _PATH, "CGO_ENABLED": "0", "GOBIN": str(BIN)}
    if not all((BIN / name).exists() for name in ("server", "kubelet", "kubectl", "pause")):
        for what in ("tool", "./pause"):
            subprocess.run(
                [*go, "build", *built, "-o", f"{BIN}/", what],
                cwd=SOURCES, env=environment, check=True,
            )  # fmt: skip
    for module in OTHERS:
        if not (BIN / module.partition("@")[0].rpartition("/")[2]).exists():
            subprocess.run(
                [*go, "install", "-trimpath", "-ldflags", "-s -w", module],
                env=environment, check=True,
            )  # fmt: skip


def within(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs another command in separate namespaces."""
    return [
        "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=TERM", "--mount-proc",
        *arguments,
    ]  # fmt: skip


@contextmanager
def node(folder: Path, archives: Sequence[Path]) -> Iterator[Path]:
    """Run a node with the images of these docker archives; yield its kubeconfig.

    Call it in a process started by ``within``.
    """
    # Groups left by a killed node are empty.
    if not all(_removed(group) for group in _CGROUPS.glob("*/kubepods")):
        raise RuntimeError("another kubelet runs on this machine: /sys/fs/cgroup/*/kubepods")
    made = _Node(folder)
    try:
        made.folders()
        made.network()
        made.servers()
        made.containers()
        for archive in archives:
            made.run("ctr", "-a", f"{folder}/containerd.sock", "-n", "k8s.io",
                     "images", "import", str(archive))  # fmt: skip
        made.join()
        yield folder / "kubeconfig"
    finally:
        made.close()


@contextmanager
def control_plane(folder: Path) -> Iterator[Path]:
    """Run the API server and the controllers, without a node; yield the kubeconfig.

    Call it in a process started by ``within``.
    """
    made = _Node(folder)
    try:
        made.network()
        made.servers()
        made.controllers()
        yield folder / "kubeconfig"
    finally:
        made.close()


class _Node:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exits = ExitStack()
        self._token = secrets.token_hex(16)
        self._environment = {**os.environ, "PATH": _PATH}

    def folders(self) -> None:
        """Hide the folders of the machine in which the node's programs would leave files."""
        for name in _OWN_FOLDERS:
            if not Path(name).exists():
                Path(name).mkdir(parents=True)
                self._exits.callback(Path(name).rmdir)
            self.run("mount", "-t", "tmpfs", "node", name)
            self._exits.callback(self.run, "umount", "--lazy", name)

    def network(self) -> None:
        """Make the network: a bridge is the node, and all routes end at it."""
        for line in (
            "ip link set lo up",
            "ip link add node0 type bridge",
            f"ip addr add {ADDRESS}/24 dev node0",
            "ip link set node0 up",
            "ip route add default dev node0",
        ):
            self.run(*line.split())
        for name in ("ip_forward", "conf/all/route_localnet", "conf/default/route_localnet"):
            Path("/proc/sys/net/ipv4", name).write_text("1")

    def servers(self) -> None:
        """Start etcd and the API server."""
        write = self._write
        write("tokens.csv", f'{self._token},admin,admin,"system:masters"\n')
        self.run("openssl", "genrsa", "-out", str(self._folder / "accounts.key"), "2048")
        write("kubeconfig", json.dumps(self._kubeconfig()))
        etcd, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self._start(
            "server", "--data-dir", "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}",
        )  # fmt: skip
        self._start(
            "kube-apiserver", f"--etcd-servers={etcd}", "--secure-port=6443",
            f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}",
            "--cert-dir=certificates",
            "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC",
            "--service-account-key-file=accounts.key",
            "--service-account-signing-key-file=accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={_SERVICES}",
            "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true",
        )  # fmt: skip
        self._until("the API server", "kubectl", "get", "--raw", "/readyz")

    def containers(self) -> None:
        """Start containerd."""
        text = _CONTAINERD.format(folder=self._folder, bin=BIN, pause=PAUSE)
        self._write("containerd.toml", text)
        self._write("cni/10-pods.conflist", json.dumps(_CNI))
        self._start("containerd", "--config", "containerd.toml")
        self._until("containerd", "ctr", "-a", f"{self._folder}/containerd.sock", "version")

    def controllers(self) -> None:
        """Start the controllers, for example of Deployments."""
        self._start(
            "kube-controller-manager", f"--kubeconfig={self._folder / 'kubeconfig'}",
            "--leader-elect=false", "--service-account-private-key-file=accounts.key",
            "--root-ca-file=certificates/apiserver.crt",
        )  # fmt: skip

    def join(self) -> None:
        """Start the programs that make this machine a node, and wait until it is Ready."""
        self.controllers()
        write = self._write
        config = f"--kubeconfig={self._folder / 'kubeconfig'}"
        self._start("kube-scheduler", config, "--leader-elect=false")
        write("kubelet.json", json.dumps(_kubelet(self._folder)))
        self._start(
            "kubelet", config, "--config=kubelet.json", f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}", f"--root-dir={self._folder / 'kubelet'}",
            f"--cert-dir={self._folder / 'kubelet/pki'}",
        )  # fmt: skip
        write("proxy.json", json.dumps(_proxy(self._folder)))
        self._start("kube-proxy", "--config=proxy.json")
        write("Corefile", _COREFILE.format(address=ADDRESS, folder=self._folder))
        self._start("coredns", "-conf", "Corefile")
        ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        wait_until(
            lambda: self._output("kubectl", "get", "node", NODE, "-o", ready) == "True",
            _START_S,
            "the node to be Ready",
        )

    def close(self) -> None:
        """End all processes; unmount, so that the folder can be deleted; remove control groups."""
        own = os.getpid()
        for process in Path("/proc").iterdir():
            # In a separate process namespace, all other processes are the node's.
            if own == 1 and process.name.isdecimal() and process.name != "1":
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), 9)
        self._exits.close()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self._folder}/"):
                self.run("umount", "--lazy", line.split()[1])
        for group in _CGROUPS.glob("*/kubepods"):
            wait_until(partial(_removed, group), 30, f"{group} to be empty")

    def run(self, *command: str) -> None:
        subprocess.run(
            command, env=self._environment, cwd=self._folder, check=True, stdout=subprocess.DEVNULL
        )

    def _output(self, *command: str) -> str:
        environment = {**self._environment, "KUBECONFIG": str(self._folder / "kubeconfig")}
        done = subprocess.run(
            command, env=environment, cwd=self._folder, capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def _until(self, name: str, *command: str) -> None:
        wait_until(lambda: self._output(*command), _START_S, f"{name} to answer")

    def _start(self, *command: str) -> None:
        log = self._exits.enter_context((self._folder / f"{command[0]}.log").open("wb"))
        process = subprocess.Popen(
            command, env=self._environment, cwd=self._folder,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._exits.callback(_kill, process)

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _kubeconfig(self) -> dict[str, object]:
        server = {"server": f"https://{ADDRESS}:6443", "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NODE, "cluster": server}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": NODE, "context": {"cluster": NODE, "user": "admin"}}],
            "current-context": NODE,
        }


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _removed(group: Path) -> bool:
    """Remove a control group and its children; return False if one still has processes."""
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
    return not group.exists()


def _kubelet(folder: Path) -> dict[str, object]:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        # The other resources are not for pods.
        "systemReserved": {"memory": str(max(0, machine - MEMORY))},
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "plugins"),
    }


def _proxy(folder: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NODE,
        "clusterCIDR": _PODS,
        "clientConnection": {"kubeconfig": str(folder / "kubeconfig")},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


# Each pod has its own link, so that all packets pass the rules for services.
_CNI = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": _PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{bin}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
_COREFILE = """\
cluster.local:53 {{
    bind {address}
    kubernetes cluster.local {{
        endpoint https://{address}:6443
        kubeconfig {folder}/kubeconfig
    }}
}}
"""
