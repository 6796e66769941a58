"""The manifests under compose/kubernetes: valid to Kubernetes, and their commands are those
that tiercel has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tiercel.compose.credentials import draw_credentials
from tiercel.examples.word_count import topology
from tiercel.workers.cli.app import loaded
from tiercel.workers.config import Settings
from tiercel.workers.loading import load_topology, spark_options_of

FOLDER = Path(__file__).parents[3] / "compose" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yml"))
# An old one, and newer ones.
VERSIONS = ("1.28", "1.31", "1.34")


def documents(*files: Path) -> list[dict[str, Any]]:
    return [
        document for file in files or FILES for document in yaml.safe_load_all(file.read_text())
    ]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents() if document["kind"] in kinds]


def pods() -> dict[str, dict[str, Any]]:
    """The pod template of each workload, by its name."""
    return {each["metadata"]["name"]: each["spec"]["template"] for each in of_kind("Deployment")}


def container(name: str) -> dict[str, Any]:
    (found,) = pods()[name]["spec"]["containers"]
    return found


def environment(name: str) -> dict[str, str]:
    """Return what `$(NAME)` in a command stands for, as far as the manifests say.

    What the cluster says is a 1 here.
    """
    (shared,) = (
        each["data"] for each in of_kind("ConfigMap") if each["metadata"]["name"] == "tiercel"
    )
    from_cluster = {each["name"]: each.get("value", "1") for each in container(name).get("env", ())}
    return {**(shared if "envFrom" in container(name) else {}), **from_cluster}


def commands() -> Iterator[tuple[str, list[str]]]:
    for name in pods():
        known = environment(name)
        yield (
            name,
            [
                re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], part)  # noqa: B023
                for part in container(name)["command"]
            ],
        )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_manifest_is_valid(file: Path, version: str) -> None:
    for document in documents(file):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("name", "command"), [pair for pair in commands() if pair[1][0] == "tiercel"]
)
def test_a_command_is_one_that_tiercel_takes(name: str, command: list[str]) -> None:
    with loaded(command[1]).make_context(name, command[2:]) as context:
        given = context.params
    if "topology" in given:
        load_topology(given["topology"])
    spark_options_of(given.get("conf") or ())


def test_each_role_is_there_once() -> None:
    roles = [command[1] for _, command in commands() if command[0] == "tiercel"]
    assert sorted(roles) == ["driver", "monitor", "spout"]


def test_what_is_set_is_a_setting() -> None:
    for name in pods():
        for variable in environment(name):
            if variable.startswith("TIERCEL_") and variable != "TIERCEL_TOPOLOGY":
                assert variable.removeprefix("TIERCEL_").lower() in Settings.model_fields


def test_the_monitor_may_be_called_as_its_service_is() -> None:
    (command,) = (command for name, command in commands() if name == "tiercel-monitor")
    (service,) = (
        each
        for each in of_kind("Service")
        if each["spec"]["selector"]["app.kubernetes.io/name"] == "tiercel-monitor"
    )
    assert service["metadata"]["name"] in [
        name for option, name in pairwise(command) if option == "--allowed-host"
    ]


def test_no_more_spout_workers_than_there_are_tasks() -> None:
    (workers,) = (
        each for each in of_kind("Deployment") if each["metadata"]["name"] == "tiercel-spout"
    )
    assert workers["spec"]["replicas"] <= int(environment("tiercel-spout")["TIERCEL_SPOUT_TASKS"])


def test_there_is_one_driver_and_the_next_one_waits_for_its_end() -> None:
    (driver,) = (
        each for each in of_kind("Deployment") if each["metadata"]["name"] == "tiercel-driver"
    )
    assert (driver["spec"]["replicas"], driver["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_a_spout_worker_has_time_to_give_back_what_is_in_flight() -> None:
    grace = topology().config.shutdown_grace_secs
    assert pods()["tiercel-spout"]["spec"]["terminationGracePeriodSeconds"] >= grace + 10


@pytest.mark.parametrize("name", pods())
def test_a_pod_is_no_more_than_an_ordinary_user(name: str) -> None:
    spec = pods()[name]["spec"]
    found = container(name)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 1000
    assert not spec["automountServiceAccountToken"]
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {"requests", "limits"} <= found["resources"].keys()


def test_no_password_stands_in_a_manifest() -> None:
    assert not of_kind("Secret")
    for name in pods():
        for each in container(name).get("env", ()):
            assert "AMQP" not in each["name"]
            assert "REDIS" not in each["name"]


SECRETS = {
    "tiercel-driver": {"tiercel-addresses", "tiercel-spark"},
    "tiercel-spout": {"tiercel-addresses"},
    "tiercel-monitor": {"tiercel-addresses", "tiercel-monitor"},
    "spark-master": {"tiercel-spark"},
    "spark-worker": {"tiercel-spark"},
}


@pytest.mark.parametrize("name", pods())
def test_each_part_gets_its_own_secrets_only(name: str) -> None:
    from_environment = {
        each["secretRef"]["name"]
        for each in container(name).get("envFrom", ())
        if "secretRef" in each
    }
    from_files = {
        each["secret"]["secretName"] for each in pods()[name]["spec"]["volumes"] if "secret" in each
    }
    assert from_environment | from_files == SECRETS[name]


@pytest.mark.parametrize("name", ["spark-master", "spark-worker", "tiercel-driver"])
def test_every_part_of_spark_has_its_secret_by_file(name: str) -> None:
    told = [*container(name)["command"], *environment(name).get("PYSPARK_SUBMIT_ARGS", "").split()]
    file = Path(told[told.index("--properties-file") + 1])
    [mount] = [
        each
        for each in container(name)["volumeMounts"]
        if each["mountPath"] == file.parent.as_posix()
    ]
    [volume] = [each for each in pods()[name]["spec"]["volumes"] if each["name"] == mount["name"]]
    assert (volume["secret"], mount["readOnly"]) == (
        {"secretName": "tiercel-spark", "defaultMode": 0o440},
        True,
    )


def test_the_page_makes_the_secrets_that_the_manifests_name_and_sparks_has_what_compose_draws(
    tmp_path: Path,
) -> None:
    page = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    assert set(re.findall(r"create secret generic (\S+)", page)) == set().union(*SECRETS.values())
    draw_credentials(tmp_path)
    for line in (tmp_path / "spark" / "spark.conf").read_text().splitlines():
        key, value = line.split()
        assert f"    {key} " in page if key.endswith(".secret") else f"    {key} {value}" in page


def cores(said: str) -> float:
    return float(said[:-1]) / 1000 if said.endswith("m") else float(said)


def mebibytes(said: str) -> float:
    return float(said[:-2]) * {"Mi": 1, "Gi": 1024}[said[-2:]]


def requested(*, in_production: bool) -> tuple[float, float]:
    """Add up the cores and mebibytes of all pods, as set or as the comments beside them say."""
    total = [0.0, 0.0]
    for file in FILES:
        text = file.read_text()
        if in_production:
            text = re.sub(
                r"# .*In production (\{.*?\})[.:].*\n +requests: .*", r"requests: \1", text
            )
        for each in yaml.safe_load_all(text):
            if each["kind"] == "Deployment":
                (found,) = each["spec"]["template"]["spec"]["containers"]
                wanted = found["resources"]["requests"]
                total[0] += each["spec"]["replicas"] * cores(wanted["cpu"])
                total[1] += each["spec"]["replicas"] * mebibytes(wanted["memory"])
    return total[0], total[1]


def test_all_pods_fit_a_node_of_two_cores_and_8_gb_beside_what_the_cluster_itself_runs() -> None:
    cpu, memory = requested(in_production=False)
    assert cpu <= 1.2
    assert memory <= 6 * 1024


def test_the_page_says_what_all_pods_request() -> None:
    text = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    for in_production in (False, True):
        cpu, memory = requested(in_production=in_production)
        assert f"{cpu:.1f} cores and {memory / 1024:.1f} GiB" in text


def test_no_manifest_makes_the_config_map_that_the_page_makes_of_a_topology() -> None:
    """An empty one in a manifest would stand in its way, and replace it at the next ``apply``."""
    text = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    [made] = re.findall(
        r"kubectl create configmap (\S+) .*--dry-run=client -o yaml \| kubectl apply", text
    )
    assert made not in [each["metadata"]["name"] for each in of_kind("ConfigMap")]
    for name in ("tiercel-driver", "tiercel-spout"):
        [volume] = [each for each in pods()[name]["spec"]["volumes"] if "configMap" in each]
        assert volume["configMap"] == {"name": made, "optional": True}


def test_nothing_but_prometheus_may_call_the_monitor() -> None:
    [policy] = [
        each for each in of_kind("NetworkPolicy") if each["metadata"]["name"] == "tiercel-monitor"
    ]
    [rule] = policy["spec"]["ingress"]
    assert {
        each["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in rule["from"]
    } == {"prometheus"}


def test_selectors_ports_and_volumes_name_what_is_there() -> None:
    labels = [template["metadata"]["labels"].items() for template in pods().values()]
    for each in of_kind("Service", "PodDisruptionBudget"):
        selector = each["spec"]["selector"]
        assert any(selector.get("matchLabels", selector).items() <= found for found in labels), (
            each["metadata"]["name"]
        )
    names = {each["metadata"]["name"] for each in of_kind("ConfigMap")}
    for name, template in pods().items():
        volumes = template["spec"]["volumes"]
        assert {mount["name"] for mount in container(name)["volumeMounts"]} <= {
            volume["name"] for volume in volumes
        }
        required = [
            volume["configMap"]
            for volume in volumes
            if "configMap" in volume and not volume["configMap"].get("optional")
        ]
        assert {each["name"] for each in required} <= names
        ports = {port["name"] for port in container(name).get("ports", ())}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for check in container(name).get(probe, {}).values():
                assert not isinstance(check, dict) or check.get("port") in {*ports, None}
