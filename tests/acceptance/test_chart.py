"""The Helm chart: valid to Kubernetes, and its commands and settings are those that tiercel has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.support.helm import CHART, KEDA, SCALED_OBJECT, Helm, find_helm, find_module
from tests.support.pages import page
from tiercel.compose.credentials import draw_credentials
from tiercel.compose.install import find_system_program, install_missing
from tiercel.examples.word_count import topology
from tiercel.workers.cli.app import loaded
from tiercel.workers.config import Settings
from tiercel.workers.loading import load_topology, spark_options_of

# Where helm is missing, Go builds it first.
pytestmark = pytest.mark.timeout(900)

# An old one, and newer ones.
VERSIONS = ("1.28", "1.31", "1.34")
WORD_COUNT = "tiercel.examples.word_count:topology"
Documents = list[dict[str, Any]]

EVERYTHING = {
    "topologies": [
        {
            "name": "word-count", "topology": WORD_COUNT, "cores": 2,
            "conf": {"spark.executor.memory": "2g"}, "env": [{"name": "PRICES", "value": "x"}],
            "driver": {"args": ["--log-level", "debug"]}, "spout": {"replicas": 0, "tasks": 3},
        },
        {
            "name": "orders", "topology": "orders:topology", "cores": 1, "image": "orders:1",
            "files": {"orders.py": "topology = None\n# {{ '%' }}\n"},
        },
        {"name": "sales", "topology": "s:topology", "cores": 1, "configMap": "sales-files"},
    ],
    "image": {"pullSecrets": ["registry"]},
    "rabbitmq": {
        "secret": "rabbit-default-user",
        "keys": {"host": "host", "port": "port", "user": "username", "password": "password"},
        "parts": {"vhost": "a/b"}, "ca": {"secret": "rabbit-ca"},
        "certificate": {"secret": "rabbit-client", "key": "client.key"},
    },
    "redis": {
        "secret": "managed", "keys": {"password": "auth-token"},
        "parts": {"host": "redis.example", "tls": True, "user": "acl"},
    },
    "monitor": {
        "tokenSecret": "token", "allowedHosts": ["tiercel.example"],
        "management": {
            "secret": "watcher", "keys": {"user": "u", "password": "p"},
            "parts": {"host": "rabbit"},
        },
    },
    "networkPolicy": {"egress": {"enabled": True, "extra": [{"ports": [{"port": 443}]}]}},
    "env": [{"name": "TZ", "value": "UTC"}],
    "nodeSelector": {"pool": "streams"},
    "tolerations": [{"key": "streams", "operator": "Exists"}],
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "k8s": {"spark": {"mode": "kubernetes"}},
    "everything on k8s": {
        **EVERYTHING,
        "spark": {"mode": "kubernetes", "conf": {"spark.task.maxFailures": 9}},
    },
    "external": {"spark": {"mode": "external", "master": "spark://spark:7077"}},
    "keda": {**EVERYTHING, "keda": {"enabled": True, "maxReplicas": 4}},
}
# Kinds of other projects, which Kubernetes knows by their own schemas.
OTHERS = ("ScaledObject", "PrometheusRule", "ServiceMonitor")


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(find_helm(), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> dict[str, Documents]:
    """The manifests of each case."""
    return {case: helm.template(values=values) for case, values in CASES.items()}


@pytest.fixture(params=CASES)
def documents(request: pytest.FixtureRequest, rendered: dict[str, Documents]) -> Documents:
    return rendered[request.param]


@pytest.fixture
def default(rendered: dict[str, Documents]) -> Documents:
    return rendered["default"]


def of_kind(documents: Documents, *kinds: str) -> Documents:
    return [document for document in documents if document["kind"] in kinds]


def pods(documents: Documents) -> dict[str, dict[str, Any]]:
    """The pod template of each workload, by its name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in of_kind(documents, "Deployment")
    }


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def environment(pod: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a pod; one whose value the cluster or a Secret has is a 1 here."""
    return {each["name"]: each.get("value", "1") for each in container(pod).get("env", ())}


def commands(documents: Documents) -> Iterator[tuple[str, list[str]]]:
    for name, pod in pods(documents).items():
        known = environment(pod)
        yield (
            name,
            [
                re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], part)  # noqa: B023
                for part in container(pod)["command"]
            ],
        )


def refused(helm: Helm, **values: Any) -> str:
    with pytest.raises(subprocess.CalledProcessError) as error:
        helm.template(values=values)
    return str(error.value.stderr)


def test_helm_finds_no_fault(helm: Helm) -> None:
    for values in CASES.values():
        assert "0 chart(s) failed" in helm.run("lint", "--strict", CHART.as_posix(), values=values)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_manifest_is_valid(documents: Documents, version: str) -> None:
    for document in documents:
        if document["kind"] not in OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_pods_of_executors_are_valid(rendered: dict[str, Documents]) -> None:
    for case in ("k8s", "everything on k8s"):
        (found,) = (
            each
            for each in of_kind(rendered[case], "ConfigMap")
            if each["metadata"]["name"] == "tiercel-executor"
        )
        pod = yaml.safe_load(found["data"]["pod.yaml"])
        # Spark names the image.
        container({"spec": pod["spec"]})["image"] = "tiercel"
        for version in VERSIONS:
            kubernetes_validate.validate(pod, version, strict=True)
        assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_a_command_is_one_that_tiercel_takes(documents: Documents) -> None:
    roles = []
    for _, command in commands(documents):
        if command[0] == "tiercel":
            roles.append(command[1])
            with loaded(command[1]).make_context(command[1], command[2:]) as context:
                given = context.params
            if given.get("topology") == WORD_COUNT:
                load_topology(given["topology"])
            spark_options_of(given.get("conf") or ())
    count = roles.count("driver")
    assert sorted(roles) == sorted(["driver", "spout"] * count + ["monitor"])


def test_what_is_set_is_a_setting(documents: Documents) -> None:
    for pod in pods(documents).values():
        for variable in environment(pod):
            if variable.startswith("TIERCEL_"):
                assert variable.removeprefix("TIERCEL_").lower() in Settings.model_fields


def test_the_monitor_may_be_called_as_its_service_is(documents: Documents) -> None:
    (command,) = (command for name, command in commands(documents) if name == "tiercel-monitor")
    assert "tiercel-monitor" in [each["metadata"]["name"] for each in of_kind(documents, "Service")]
    assert "tiercel-monitor" in [
        name for option, name in pairwise(command) if option == "--allowed-host"
    ]


def test_no_more_spout_workers_than_there_are_tasks(default: Documents) -> None:
    (workers,) = (
        each
        for each in of_kind(default, "Deployment")
        if each["metadata"]["name"] == "tiercel-word-count-spout"
    )
    tasks = environment(workers["spec"]["template"])["TIERCEL_SPOUT_TASKS"]
    assert workers["spec"]["replicas"] <= int(tasks)


def test_there_is_one_driver_and_the_next_one_waits_for_its_end(documents: Documents) -> None:
    for each in of_kind(documents, "Deployment"):
        if each["metadata"]["name"].endswith("-driver"):
            assert (each["spec"]["replicas"], each["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_an_upgrade_of_workers_needs_no_room_for_one_more(documents: Documents) -> None:
    for each in of_kind(documents, "Deployment"):
        if each["metadata"]["name"].endswith(("-spark-worker", "-spout")):
            strategy = each["spec"]["strategy"]
            assert strategy["type"] == "RollingUpdate"
            assert strategy["rollingUpdate"]["maxSurge"] == 0


def test_a_spout_worker_has_time_to_give_back_what_is_in_flight(default: Documents) -> None:
    grace = topology().config.shutdown_grace_secs
    spec = pods(default)["tiercel-word-count-spout"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= grace + 10


def test_a_pod_is_no_more_than_an_ordinary_user(documents: Documents) -> None:
    service_accounts = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")}
    for pod in pods(documents).values():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 1000
        assert not spec["enableServiceLinks"]
        # Only a driver that makes or marks pods has a token of the cluster.
        assert spec["automountServiceAccountToken"] == ("serviceAccountName" in spec)
        assert spec.get("serviceAccountName") in {None, *service_accounts}
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"requests", "limits"} <= container(pod)["resources"].keys()


def test_no_password_stands_in_a_manifest_but_the_one_that_is_drawn_for_spark(
    documents: Documents,
) -> None:
    assert [each["metadata"]["name"] for each in of_kind(documents, "Secret")] in (
        [],
        ["tiercel-spark"],
    )
    for pod in pods(documents).values():
        for each in container(pod).get("env", ()):
            assert "value" not in each or "PASSWORD" not in each["name"]


SECRETS = {
    "tiercel-word-count-driver": {"tiercel-addresses", "tiercel-spark"},
    "tiercel-word-count-spout": {"tiercel-addresses"},
    "tiercel-monitor": {"tiercel-addresses"},
    "tiercel-spark-master": {"tiercel-spark"},
    "tiercel-spark-worker": {"tiercel-spark"},
}


def secrets(pod: dict[str, Any]) -> set[str]:
    return {
        each["valueFrom"]["secretKeyRef"]["name"]
        for each in container(pod).get("env", ())
        if "secretKeyRef" in each.get("valueFrom", {})
    } | {each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each}


def test_each_part_gets_its_own_secrets_only(
    default: Documents, rendered: dict[str, Documents]
) -> None:
    assert {name: secrets(pod) for name, pod in pods(default).items()} == SECRETS
    monitor = pods(rendered["everything"])["tiercel-monitor"]
    assert secrets(monitor) == {
        "rabbit-default-user", "rabbit-ca", "rabbit-client", "managed", "watcher", "token"
    }  # fmt: skip
    assert "watcher" not in secrets(pods(rendered["everything"])["tiercel-orders-spout"])


@pytest.mark.parametrize("part", ["spark-master", "spark-worker", "word-count-driver"])
def test_every_part_of_spark_has_its_secret_by_file(part: str, default: Documents) -> None:
    pod = pods(default)[f"tiercel-{part}"]
    told = [
        *container(pod)["command"], *environment(pod).get("PYSPARK_SUBMIT_ARGS", "").split()
    ]  # fmt: skip
    file = Path(told[told.index("--properties-file") + 1])
    [mount] = [
        each
        for each in container(pod)["volumeMounts"]
        if each["mountPath"] == file.parent.as_posix()
    ]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    assert (volume["secret"], mount["readOnly"]) == (
        {"secretName": "tiercel-spark", "defaultMode": 0o440},
        True,
    )


def test_sparks_secret_has_what_compose_draws(default: Documents, tmp_path: Path) -> None:
    [secret] = of_kind(default, "Secret")
    draw_credentials(tmp_path)
    drawn = dict(
        line.split() for line in (tmp_path / "spark" / "spark.conf").read_text().splitlines()
    )
    ours = dict(line.split() for line in secret["stringData"]["spark.conf"].splitlines())
    assert ours.keys() == drawn.keys()
    differing = {key for key, value in drawn.items() if ours[key] != value}
    assert differing == {"spark.authenticate.secret"}
    assert len(ours["spark.authenticate.secret"]) >= 32
    for key, value in drawn.items():
        assert f"      {key} {'…' if key.endswith('.secret') else value}\n" in page("deploy.md")


def test_the_page_makes_the_secrets_that_the_chart_needs_and_does_not_make(
    default: Documents,
) -> None:
    made = set(re.findall(r"create secret generic (\S+)", page("deploy.md")))
    made |= {each["metadata"]["name"] for each in of_kind(default, "Secret")}
    assert made == set().union(*SECRETS.values())


def cores(said: str) -> float:
    return float(said[:-1]) / 1000 if said.endswith("m") else float(said)


def mebibytes(said: str) -> float:
    return float(said[:-2]) * {"Mi": 1, "Gi": 1024}[said[-2:]]


def requested(documents: Documents) -> tuple[float, float]:
    """Add up the cores and mebibytes of all pods."""
    total = [0.0, 0.0]
    for each in of_kind(documents, "Deployment"):
        wanted = container(each["spec"]["template"])["resources"]["requests"]
        total[0] += each["spec"]["replicas"] * cores(wanted["cpu"])
        total[1] += each["spec"]["replicas"] * mebibytes(wanted["memory"])
    return total[0], total[1]


def test_all_pods_fit_a_node_of_two_cores_and_8_gb_beside_what_the_cluster_itself_runs(
    default: Documents,
) -> None:
    cpu, memory = requested(default)
    assert cpu <= 1.2
    assert memory <= 6 * 1024
    assert f"{cpu:.1f} cores and {memory / 1024:.1f} GiB" in page("deploy.md")


def test_the_page_says_what_all_pods_request_in_production(helm: Helm) -> None:
    text = page("deploy.md")
    values = yaml.safe_load(text.partition("    $ cat production.yaml\n")[2].partition("\n\n")[0])
    cpu, memory = requested(helm.template(values=values))
    assert f"{cpu:.1f} cores and {memory / 1024:.1f} GiB" in text


def test_nothing_but_prometheus_may_call_the_monitor(documents: Documents) -> None:
    [policy] = [
        each
        for each in of_kind(documents, "NetworkPolicy")
        if each["metadata"]["name"] == "tiercel-monitor"
    ]
    [rule] = policy["spec"]["ingress"]
    assert {
        each["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in rule["from"]
    } == {"prometheus"}


def test_selectors_ports_and_volumes_name_what_is_there(documents: Documents) -> None:
    labels = [template["metadata"]["labels"].items() for template in pods(documents).values()]
    for each in of_kind(documents, "Service", "PodDisruptionBudget"):
        selector = each["spec"]["selector"]
        assert any(selector.get("matchLabels", selector).items() <= found for found in labels), (
            each["metadata"]["name"]
        )
    made = {each["metadata"]["name"] for each in of_kind(documents, "ConfigMap")}
    for pod in pods(documents).values():
        volumes = pod["spec"]["volumes"]
        assert {mount["name"] for mount in container(pod)["volumeMounts"]} == {
            volume["name"] for volume in volumes
        }
        named = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
        assert named <= {*made, "sales-files"}
        ports = {port["name"] for port in container(pod).get("ports", ())}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for check in container(pod).get(probe, {}).values():
                assert not isinstance(check, dict) or check.get("port") in {*ports, None}


def test_a_driver_that_waits_for_redis_or_in_reserve_is_not_restarted(default: Documents) -> None:
    """It has no port of Spark then, and Kubernetes waits ever longer between restarts."""
    driver = container(pods(default)["tiercel-word-count-driver"])
    assert driver["startupProbe"]["exec"] == driver["livenessProbe"]["exec"]


def conf_of(command: list[str]) -> dict[str, str]:
    given = [after for option, after in pairwise(command) if option == "--conf"]
    return dict(each.split("=", 1) for each in given)


def test_spark_gets_each_value_as_it_is_written(helm: Helm) -> None:
    """Helm has numbers as fractions, and Spark cannot parse 1e+06."""
    conf = {"a": 1_000_000, "b": 8_388_608, "c": 0.5, "d": True, "e": "text"}
    documents = helm.template(values={"spark": {"conf": conf}})
    (driver,) = [pod for name, pod in pods(documents).items() if name.endswith("-driver")]
    found = conf_of(container(driver)["command"])
    assert [found[name] for name in "abcde"] == ["1000000", "8388608", "0.5", "true", "text"]


def test_a_topology_s_value_overrides_the_release_s_whatever_it_is(helm: Helm) -> None:
    own = {"a": False, "b": 0, "c": "", "d": 2, "spark.driver.port": 0}
    released = {"a": True, "b": 9, "c": "text", "d": 1, "e": 1}
    topologies = [
        {"name": "one", "topology": "one:topology", "cores": 1, "conf": own},
        {"name": "two", "topology": "two:topology", "cores": 1},
    ]
    documents = helm.template(values={"spark": {"conf": released}, "topologies": topologies})
    one, two = (
        conf_of(container(pods(documents)[f"tiercel-{name}-driver"])["command"])
        for name in ("one", "two")
    )
    assert [one[name] for name in "abcde"] == ["false", "0", "", "2", "1"]
    assert (one["spark.driver.port"], two["spark.driver.port"]) == ("0", "7078")
    assert [two[name] for name in "abcde"] == ["true", "9", "text", "1", "1"]


@pytest.mark.parametrize("mode", ["standalone", "kubernetes"])
@pytest.mark.parametrize("name", ["on", "null"])
def test_a_name_that_yaml_takes_for_something_else_stays_a_name(
    helm: Helm, name: str, mode: str
) -> None:
    topologies = [{"name": name, "topology": "t:t", "configMap": name, "image": name}]
    values = {
        "topologies": topologies, "spark": {"mode": mode, "secret": name},
        "redis": {"secret": name, "keys": {"host": "h"}, "ca": {"secret": name},
                  "certificate": {"secret": name}},
        "monitor": {"tokenSecret": name, "tokenKey": name}, "image": {"pullSecrets": [name]},
        "prometheus": {"serviceMonitor": {"enabled": True}, "rules": {"enabled": True}},
    }  # fmt: skip
    documents = helm.template(release=name, values=values)
    for document in documents:
        if document["kind"] not in OTHERS:
            kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        assert all(isinstance(each, str) for each in document["metadata"]["labels"].values())


def test_two_releases_in_one_namespace_share_nothing(helm: Helm) -> None:
    one, two = helm.template(release="one"), helm.template(release="two")
    names = [{(each["kind"], each["metadata"]["name"]) for each in each_} for each_ in (one, two)]
    assert not names[0] & names[1]
    for ours, theirs in ((one, two), (two, one)):
        labels = [pod["metadata"]["labels"].items() for pod in pods(theirs).values()]
        for each in of_kind(ours, "Deployment", "Service", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
            assert not any(
                selector.get("matchLabels", selector).items() <= found for found in labels
            )


def test_topologies_of_one_release_select_their_own_pods(rendered: dict[str, Documents]) -> None:
    found = pods(rendered["everything"])
    for each in of_kind(rendered["everything"], "Deployment"):
        selector = each["spec"]["selector"]["matchLabels"].items()
        assert [
            name for name, pod in found.items() if selector <= pod["metadata"]["labels"].items()
        ] == [each["metadata"]["name"]]


def settings(pod: dict[str, Any], held: dict[str, str], monkeypatch: Any) -> Settings:
    """Return what tiercel reads in this pod, if its Secrets have these values."""
    for each in container(pod)["env"]:
        if each["name"].startswith("TIERCEL_") and each["name"] != "TIERCEL_MASTER":
            source = each.get("valueFrom", {}).get("secretKeyRef")
            monkeypatch.setenv(each["name"], each["value"] if not source else held[source["key"]])
    return Settings.load()


def test_odd_characters_of_secrets_reach_tiercel(
    rendered: dict[str, Documents], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are those of RabbitMQ's operator."""
    held = {
        "host": "rabbit.streams.svc", "port": "5671", "username": "u:@/%", "password": "@/:%'\"",
        "auth-token": "'\"%:/@", "u": "w", "p": "@", "TIERCEL_TOKEN": "0123456789abcdef",
    }  # fmt: skip
    for name in ("word-count-driver", "orders-spout", "monitor"):
        with monkeypatch.context() as patch:
            found = settings(pods(rendered["everything"])[f"tiercel-{name}"], held, patch)
        assert found.amqp == (
            "amqps://u%3A%40%2F%25:%40%2F%3A%25%27%22@rabbit.streams.svc:5671/a%2Fb"
            "?cafile=/run/tiercel/ca-rabbitmq/ca.crt"
            "&certfile=/run/tiercel/certificate-rabbitmq/tls.crt"
            "&keyfile=/run/tiercel/certificate-rabbitmq/client.key"
        )
        assert found.redis == "rediss://acl:%27%22%25%3A%2F%40@redis.example"


def test_a_file_of_a_topology_stays_as_it_is(rendered: dict[str, Documents]) -> None:
    [files] = of_kind(rendered["everything"], "ConfigMap")
    assert files["data"] == EVERYTHING["topologies"][1]["files"]  # type: ignore[index]
    pod = pods(rendered["everything"])["tiercel-orders-driver"]
    assert container(pod)["image"] == "orders:1"
    assert {"name": "topology", "configMap": {"name": "tiercel-orders-files"}} in pod["spec"][
        "volumes"
    ]


def test_executors_of_kubernetes_are_made_by_a_driver_with_the_rights_for_it(
    rendered: dict[str, Documents],
) -> None:
    found = rendered["k8s"]
    assert "tiercel-spark-worker" not in pods(found)
    pod = pods(found)["tiercel-word-count-driver"]
    assert environment(pod)["TIERCEL_MASTER"] == "k8s://https://kubernetes.default.svc"
    [binding] = of_kind(found, "RoleBinding")
    assert binding["subjects"][0]["name"] == pod["spec"]["serviceAccountName"]
    [role] = of_kind(found, "Role")
    assert [rule["apiGroups"] for rule in role["rules"]] == [[""]]


def test_executors_find_their_driver_at_the_address_of_its_pod(documents: Documents) -> None:
    """On Kubernetes, Spark tells executors the address that the driver binds to."""
    for name, pod in pods(documents).items():
        if name.endswith("-driver"):
            options = container(pod)["command"]
            assert "spark.driver.host=$(POD_IP)" in options
            assert "spark.driver.bindAddress=$(POD_IP)" in options


def test_a_name_of_a_release_that_makes_no_name_of_a_service_is_refused(helm: Helm) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        helm.template(release="r" * 51)
    assert "take at most 50 characters" in error.value.stderr
    services = of_kind(helm.template(release="r" * 50), "Service")
    assert max(len(each["metadata"]["name"]) for each in services) <= 63


MONITORING = {
    "prometheus": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "p"}},
        "rules": {"enabled": True, "labels": {"release": "p"}},
    }
}


def test_prometheus_has_the_alerts_of_the_compose_file_and_their_job(helm: Helm) -> None:
    found = helm.template(values=MONITORING)
    [rule] = of_kind(found, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART.parent / "alerts.yml").read_text())
    [monitor] = of_kind(found, "ServiceMonitor")
    [service] = [
        each
        for each in of_kind(found, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "tiercel"
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert {each["metadata"]["labels"]["release"] for each in (rule, monitor)} == {"p"}


def test_keda_scales_the_workers_by_what_all_drivers_want(rendered: dict[str, Documents]) -> None:
    found = rendered["keda"]
    [scaled] = of_kind(found, "ScaledObject")
    target = scaled["spec"]["scaleTargetRef"]["name"]
    [workers] = [
        each for each in of_kind(found, "Deployment") if each["metadata"]["name"] == target
    ]
    # Helm and KEDA would set the number in turn.
    assert "replicas" not in workers["spec"]
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        'sum(max by (topology) ({__name__=~"tiercel_executors_(wanted|present)",'
        'topology=~"word-count|orders|sales"}))'
    )
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (1, 4)
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_scaled_object_is_one_by_kedas_own_schema(rendered: dict[str, Documents]) -> None:
    [scaled] = of_kind(rendered["keda"], "ScaledObject")
    [definition] = yaml.safe_load_all(
        (find_module("github.com/kedacore/keda/v2", KEDA) / SCALED_OBJECT).read_text()
    )
    [version] = definition["spec"]["versions"]
    group = definition["spec"]["group"]
    assert scaled["apiVersion"] == f"{group}/{version['name']}"
    jsonschema.validate(scaled, closed(version["schema"]["openAPIV3Schema"]))


def closed(schema: Any) -> Any:
    """Return a schema that refuses fields that it does not name, as an API server warns of them."""
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and schema.get("type") == "object":
        found["properties"] = {key: closed(value) for key, value in schema["properties"].items()}
        # A definition leaves the inside of ``metadata`` to Kubernetes.
        found.setdefault("additionalProperties", False)
    return found


def test_prometheus_answers_with_the_largest_of_wanted_and_present_per_topology(
    rendered: dict[str, Documents], tmp_path: Path
) -> None:
    [scaled] = of_kind(rendered["keda"], "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    series = {
        ("wanted", "word-count"): 7, ("present", "word-count"): 4, ("refused", "word-count"): 3,
        ("wanted", "orders"): 1, ("present", "orders"): 3, ("wanted", "anothers"): 90,
    }  # fmt: skip
    found = [
        {"series": f'tiercel_executors_{kind}{{topology="{name}"}}', "values": f"{value} {value}"}
        for (kind, name), value in series.items()
    ]
    asked = {"expr": query, "eval_time": "15s", "exp_samples": [{"labels": "{}", "value": 10}]}
    file = tmp_path / "query.yml"
    tests = [{"interval": "15s", "input_series": found, "promql_expr_test": [asked]}]
    file.write_text(yaml.safe_dump({"tests": tests}))
    install_missing("prometheus")
    done = subprocess.run(
        [find_system_program("promtool"), "test", "rules", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_drivers_may_set_the_deletion_costs_of_the_workers_that_keda_scales(
    rendered: dict[str, Documents],
) -> None:
    found = rendered["keda"]
    [role] = of_kind(found, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}]
    [binding] = of_kind(found, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    for name in ("word-count", "orders", "sales"):
        pod = pods(found)[f"tiercel-{name}-driver"]
        assert pod["spec"]["serviceAccountName"] == binding["subjects"][0]["name"]
        labels = dict(
            part.split("=") for part in environment(pod)["TIERCEL_WORKER_PODS"].split(",")
        )
        assert [
            name
            for name, each in pods(found).items()
            if labels.items() <= each["metadata"]["labels"].items()
        ] == ["tiercel-spark-worker"]
    # Without KEDA, they get no rights.
    assert not of_kind(rendered["everything"], "Role", "RoleBinding", "ServiceAccount")


ONE = {"name": "a", "topology": "a:t"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"topologys": []}, "topologys"),
        ({"topologies": []}, "minItems"),
        ({"topologies": [{"name": "A b", "topology": "a:t"}]}, "does not match pattern"),
        ({"topologies": [{"name": "a"}]}, "topology"),
        ({"topologies": [ONE, {"name": "b", "topology": "b:t"}]}, "topology a has no cores"),
        ({"topologies": [{**ONE, "cores": 1}] * 2}, "two topologies are named a"),
        (
            {"topologies": [{**ONE, "configMap": "c", "files": {"a.py": ""}}]},
            "topology a has configMap and files: give one of the two",
        ),
        ({"spark": {"mode": "yarn"}}, "mode"),
        ({"spark": {"mode": "external"}}, "set spark.master to the address of your Spark"),
        ({"redis": {"secret": ""}}, "redis: there is no address: name a Secret in redis.secret"),
        ({"redis": {"secret": "", "keys": {"host": "h"}}}, "set redis.secret to its name"),
        (
            {"rabbitmq": {"keys": {"address": "a"}, "parts": {"host": "h"}}},
            "rabbitmq: there is a whole address and a part of one: give one of the two",
        ),
        ({"rabbitmq": {"parts": {"password": "p"}}}, "password"),
        ({"spout": {"graceSeconds": 5}}, "graceSeconds"),
        ({"keda": {"enabled": True}, "spark": {"mode": "kubernetes"}}, "keda.enabled scales the"),
        (
            {"keda": {"enabled": True, "minReplicas": 20, "maxReplicas": 2}},
            "keda.minReplicas is 20, more than keda.maxReplicas, 2",
        ),
    ],
)
def test_bad_values_are_refused_with_what_to_do(
    values: dict[str, Any], said: str, helm: Helm
) -> None:
    assert said in refused(helm, **values)
