"""Promises of compose/docker-compose.yml, read from the file."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tiercel.workers.config import Settings

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose/docker-compose.yml").read_text()
STACK = yaml.safe_load(TEXT)
SERVICES = STACK["services"]
LASTING = {name: service for name, service in SERVICES.items() if name != "credentials"}
SCALED = ("spout", "spark-worker")

each = pytest.mark.parametrize("name", SERVICES)
each_lasting = pytest.mark.parametrize("name", LASTING)


def test_the_services_are_those_of_the_picture():
    parts = {
        "rabbitmq",
        "redis",
        "spark-master",
        "spark-worker",
        "driver",
        "spout",
        "monitor",
        "prometheus",
        "grafana",
        "jaeger",
    }
    assert set(LASTING) == parts
    profiles = {
        name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service
    }
    assert profiles == {"prometheus": ["metrics"], "grafana": ["metrics"], "jaeger": ["traces"]}


def test_traces_are_off_until_a_receiver_is_named():
    for name in ("driver", "spout"):
        environment = SERVICES[name]["environment"]
        assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "${OTEL_EXPORTER_OTLP_ENDPOINT:-}"
        assert set(SERVICES[name]["networks"]) & set(SERVICES["jaeger"]["networks"])


@each
def test_a_service_has_limits_an_ordinary_user_and_no_privileges(name):
    service = SERVICES[name]
    assert {"cpus", "mem_limit", "pids_limit"} <= service.keys()
    assert not re.match(r"(0|root)\b", str(service["user"]))
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert service["read_only"] is True
    assert [place for place in service["tmpfs"] if place.startswith("/tmp")]


@each_lasting
def test_a_service_has_a_health_check_and_a_time_to_end_in(name):
    assert {"test", "interval", "timeout", "retries", "start_period"} == LASTING[name][
        "healthcheck"
    ].keys()
    assert LASTING[name]["stop_signal"] == "SIGTERM"
    chosen = r"\$\{STOP_GRACE_PERIOD:-60s\}" if name in {"driver", "spout"} else r"\d+s"
    assert re.fullmatch(chosen, LASTING[name]["stop_grace_period"])


@each_lasting
def test_what_tiercel_kill_ends_is_not_started_again_and_everything_else_is(name):
    assert LASTING[name]["restart"] == (
        "on-failure" if name in {"driver", "spout", "monitor"} else "unless-stopped"
    )


@each
def test_every_port_is_on_the_loopback_interface_and_can_be_chosen(name):
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+_PORT:-\d+\}:\d+", port), port


@pytest.mark.parametrize("name", SCALED)
def test_what_is_scaled_has_no_name_and_no_port_of_its_own(name):
    assert not {"ports", "container_name", "hostname"} & SERVICES[name].keys()


@each
def test_a_service_sees_the_secrets_of_its_own_role_only(name):
    found = {
        volume.split(":")[0]
        for volume in SERVICES[name].get("volumes", ())
        if volume.startswith("credentials")
    }
    roles = {volume for volume in STACK["volumes"] if volume.startswith("credentials")}
    if name == "credentials":
        assert found == roles
    else:
        role = "spark" if name.startswith("spark-") else name
        assert found == {f"credentials-{role}"} & roles
        assert all(
            volume.endswith(":ro")
            for volume in SERVICES[name].get("volumes", ())
            if volume.startswith("credentials")
        )


def test_what_shows_figures_reaches_neither_the_servers_nor_spark():
    networks = {name: set(service.get("networks", ())) for name, service in LASTING.items()}
    assert networks["prometheus"] == networks["grafana"] == {"monitoring"}
    assert {name for name, found in networks.items() if "monitoring" in found} == {
        "monitor",
        "prometheus",
        "grafana",
    }
    assert all(
        networks[name] == {"data"}
        for name in networks.keys() - {"prometheus", "grafana", "monitor"}
    )
    assert SERVICES["credentials"]["network_mode"] == "none"


def test_a_restarted_spark_master_knows_its_applications_whose_executors_it_would_kill():
    master = SERVICES["spark-master"]
    assert "spark.deploy.recoveryMode=FILESYSTEM" in " ".join(master["command"])
    assert "/var/lib/tiercel" in master["volumes"], "which outlives a restart, unlike a tmpfs"
    assert not [each for each in master["tmpfs"] if each.startswith("/var/lib/tiercel")]


@pytest.mark.parametrize("name", ["spark-master", "spark-worker", "driver"])
def test_every_part_of_spark_has_the_secret_by_file(name):
    told = [
        *SERVICES[name]["command"],
        *SERVICES[name]["environment"].get("PYSPARK_SUBMIT_ARGS", "").split(),
    ]
    assert told[told.index("--properties-file") + 1] == "/run/tiercel/credentials/spark.conf"
    assert "spark.authenticate" not in " ".join(told)


@each
def test_every_image_can_be_chosen_and_none_is_simply_the_latest(name):
    found = re.fullmatch(r"\$\{[A-Z]+_IMAGE:-(.+)\}", SERVICES[name]["image"])
    assert found
    assert found[1] == "tiercel" or re.search(r":v?\d+\.\d+", found[1])


def test_no_password_is_in_the_file():
    assert not re.search(r"(?i)passw(or)?d[^_\n]*[:=] *[\w$]", re.sub(r"(?m)#.*$", "", TEXT))
    assert "://" not in re.sub(r"spark://spark-master:7077|http://127\.0\.0\.1:\d+", "", TEXT)


def test_every_variable_of_ours_that_it_sets_is_a_setting():
    settings = {f"TIERCEL_{name.upper()}" for name in Settings.model_fields} | {"TIERCEL_SECRETS"}
    for service in SERVICES.values():
        assert {
            name for name in service.get("environment", {}) if name.startswith("TIERCEL_")
        } <= settings


def test_the_files_that_it_mounts_are_there():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (ROOT / "compose" / volume.split(":")[0]).is_file(), volume


def test_prometheus_scrapes_the_monitor_by_its_name():
    scrape = yaml.safe_load((ROOT / "compose/prometheus.yml").read_text())["scrape_configs"]
    assert scrape[0]["static_configs"] == [{"targets": ["monitor:8710"]}]
    command = SERVICES["monitor"]["command"]
    assert "monitor" in [
        name for option, name in pairwise(command) if option == "--allowed-host"
    ], "and is let in by it"


def test_grafana_asks_prometheus_by_its_name():
    [source] = yaml.safe_load((ROOT / "compose/grafana/datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES


def test_the_page_names_every_variable_and_no_other():
    page = (ROOT / "docs/compose.md").read_text()
    used = set(re.findall(r"\$\{([A-Z_]+):-", TEXT))
    assert (
        set(re.findall(r"`([A-Z][A-Z_]+)`", page))
        - {"TIERCEL_AMQP", "TIERCEL_HEARTBEAT", "TIERCEL_SECRETS"}
        == used
    )
