"""Sources of settings, and the secrecy of passwords."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiercel.workers.config import Settings, check_spark_python, otel_settings
from tiercel.workers.errors import ConfigError

AMQP = "amqp://guest:s3cret@rabbit:5672/%2F"
REDIS = "redis://:s3cret@redis:6379/0"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMQP", "REDIS", "MASTER", "MANAGEMENT", "LOG", "LOG_LEVEL"):
        monkeypatch.delenv(f"TIERCEL_{name}", raising=False)


def test_without_anything_given_there_are_no_servers() -> None:
    settings = Settings.load()
    assert (settings.amqp, settings.redis, settings.redis_urls) == (None, None, ())


def test_the_environment_gives_the_addresses(monkeypatch) -> None:
    monkeypatch.setenv("TIERCEL_AMQP", AMQP)
    assert Settings.load().amqp == AMQP


def test_an_empty_variable_is_as_good_as_none(monkeypatch) -> None:
    monkeypatch.setenv("TIERCEL_AMQP", "")
    assert Settings.load().amqp is None


def test_the_command_line_goes_before_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("TIERCEL_MASTER", "local[1]")
    assert Settings.load(master="local[2]").master == "local[2]"
    assert Settings.load(master=None).master == "local[1]"


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[*]", "local[2,3]", "local-cluster[2,4,1024]", "spark://[::1]:7077",
        "spark://one:7077,two:7077", "yarn", "k8s://https://host:6443", "k8s://host",
    ],
)  # fmt: skip
def test_a_master_has_one_of_sparks_forms(master: str) -> None:
    assert Settings.load(master=master).master == master


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis_password", "p\udcff"),
        ("amqp_user", "p\udcff"),
        ("redis", "redis://:p\udcff@host/0"),
        ("amqp", "amqp://u:p\udcff@host/"),
        ("management", "http://u:p\udcff@host/"),
    ],
)
def test_a_variable_that_is_not_utf_8_is_one_line(name: str, value: str, monkeypatch) -> None:
    """Python reads bytes that are not UTF-8 as lone surrogates."""
    monkeypatch.setenv("TIERCEL_REDIS_HOST" if name == "redis_password" else "TIERCEL_LOG", "text")
    monkeypatch.setenv(f"TIERCEL_{name.upper()}", value)
    with pytest.raises(ConfigError, match=f"^TIERCEL_{name.upper()}: must be UTF-8$"):
        Settings.load()


def test_a_secret_that_is_not_utf_8_is_one_line(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tiercel_redis_password").write_bytes(b"p\xff")
    monkeypatch.setenv("TIERCEL_SECRETS", str(tmp_path))
    with pytest.raises(ConfigError, match="a file there cannot be read as UTF-8"):
        Settings.load()


def test_several_redis_servers_are_separated_by_commas() -> None:
    assert Settings.load(redis=f"{REDIS}, redis://other").redis_urls == (REDIS, "redis://other")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("amqp", "rabbit:5672"),
        ("amqp", "http://user:s3cret@rabbit"),
        ("amqp", "amqp://user:s3cret@rabbit:port/"),
        ("amqp", "amqp://user:p@ss/s3cret:1@rabbit:5672/"),
        ("management", "http://user:p@ss/s3cret@rabbit:15672"),
        ("redis", "redis://:p@ss/s3cret:1@host:6379"),
        ("redis", "amqp://user:s3cret@rabbit"),
        ("redis", "redis://"),
        ("redis", ","),
        ("management", "rabbit:15672"),
        ("master", "sparky"),
        ("master", "localhost:7077"),
        ("master", "local[x]"),
        ("master", "local[0]"),
        ("master", "local[]"),
        ("master", "local-cluster[2]"),
        ("master", "spark://host"),
        ("master", "spark://one:7077,two"),
        ("master", "yarny"),
        ("master", "k8s://"),
        ("log", "xml"),
        ("log_level", "loud"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_setting_and_shows_no_password(
    name: str, value: str, monkeypatch
) -> None:
    with pytest.raises(ConfigError) as given:
        Settings.load(**{name: value})
    monkeypatch.setenv(f"TIERCEL_{name.upper()}", value)
    with pytest.raises(ConfigError) as found:
        Settings.load()
    for error, where in (
        (given, f"--{name.replace('_', '-')}: "),
        (found, f"TIERCEL_{name.upper()}: "),
    ):
        assert str(error.value).startswith(where)
        assert "\n" not in str(error.value)
        assert "s3cret" not in str(error.value)
        assert ("percent-encode" in str(error.value)) == ("p@ss" in value)


def test_no_password_is_shown_by_repr_or_str() -> None:
    settings = Settings.load(
        amqp=AMQP, redis=f"{REDIS},{REDIS}", management="http://guest:s3cret@rabbit:15672"
    )
    assert "s3cret" not in repr(settings) + str(settings)
    assert "guest:***@rabbit" in repr(settings)


def test_a_child_loads_the_same_settings_from_its_environment(monkeypatch) -> None:
    settings = Settings.load(amqp=AMQP, redis=REDIS, log="json")
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings


def test_a_required_server_without_an_address_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^where is Redis\? Give --redis or set TIERCEL_REDIS; tiercel run"
    ):
        Settings.load(amqp=AMQP).required()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("amqp", "amqp://user:s3cret@one:5672,two,[::1]:5673/vhost"),
        (
            "redis",
            "redis+sentinel://:s3cret@one:26379,two:26379/mymaster/0?sentinel_password=s3cret",
        ),
        ("redis", "redis+cluster://:s3cret@one:6379,two,redis://other"),
    ],
)
def test_several_hosts_may_stand_in_one_url(name: str, value: str) -> None:
    settings = Settings.load(**{name: value})
    assert getattr(settings, name) == value
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("value", ["amqp://one,two:port", "amqp://one,,two", "amqp://one,"])
def test_each_of_several_hosts_is_looked_at(value: str) -> None:
    with pytest.raises(ConfigError, match="--amqp"):
        Settings.load(amqp=value)


def test_a_service_that_is_left_out_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"--redis: malformed .*redis\+sentinel://"):
        Settings.load(redis="redis+sentinel://one,two")


@pytest.mark.parametrize(
    ("named", "master"),
    [
        (None, "local[2]"),
        ("", "local[2]"),
        ("python3", "local[2]"),
        ("/nowhere/python", "spark://host:7077"),
        ("/nowhere/python", "local-cluster[2,1,1024]"),
    ],
)
def test_the_python_of_this_machine_must_be_there_and_that_of_a_cluster_is_elsewhere(
    monkeypatch, named, master
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if named is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    check_spark_python(master)


def test_a_python_that_is_not_there_is_named_with_what_to_do(monkeypatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    with pytest.raises(ConfigError, match="PYSPARK_PYTHON: there is no program '/nowhere/python'"):
        check_spark_python("local[*]")


@pytest.mark.parametrize(
    ("variables", "on"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_on_if_opentelemetrys_own_settings_ask_for_them(variables, on, monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert otel_settings() == (variables if on else {})
