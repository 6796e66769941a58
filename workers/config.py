"""The settings that the processes share, from the command line and the environment.

Only this module reads the environment.

TIERCEL_AMQP         RabbitMQ: amqp://user:password@host:5672,other:5672/vhost, or amqps://
TIERCEL_REDIS        Redis: redis://:password@host:6379/0, rediss:// or unix://; several, one per
                     shard, separated by commas; or
                     redis+sentinel://:password@host:26379,other:26379/mymaster/0, or
                     redis+cluster://:password@host:6379
TIERCEL_MASTER       Spark's master: local[2], spark://host:7077
TIERCEL_MANAGEMENT   RabbitMQ's HTTP API, if enabled: http://user:password@host:15672
TIERCEL_TOKEN        token that tiercel monitor requires for showing bodies and for changes, at
                     least 16 characters; by default the monitor draws and prints one
TIERCEL_SPOUT_TASKS  minimum number of tasks of each spout that reads a queue; the same for all
                     processes of a topology
TIERCEL_HEARTBEAT    file that spout workers and the driver touch while their loops turn,
                     for health checks
TIERCEL_SECRETS      folder with the files tiercel_amqp, tiercel_redis, …, for settings that
                     are not in the environment
TIERCEL_LOG          text or json
TIERCEL_LOG_LEVEL    debug, info, warning or error
OTEL_*               OpenTelemetry's own: OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_ENDPOINT switch
                     traces on
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tiercel.acker.errors import RedisRefusedError
from tiercel.acker.redis.pool import Form, RedisAddress, at_behind_host, split_urls
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.spark.settings import is_local
from tiercel.workers.errors import ConfigError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PREFIX = "TIERCEL_"
_OTEL_ENDPOINTS = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}
_SERVERS = {"amqp": "RabbitMQ", "redis": "Redis"}
_AFTER_PLACE = re.compile(r"[/?#]")
_SEVERAL_HOSTS = ("amqp", "amqps")
_TOKEN_CHARACTERS = 16


def _check_url(url: str, schemes: tuple[str, ...], example: str) -> str:
    if at_behind_host(url):
        raise ValueError(
            f"must look like {example}: percent-encode the password ('/' is %2F, '?' is %3F, "
            "'#' is %23, '@' is %40)"
        )
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    # Parse each host alone: since Python 3.14, urlsplit refuses a list with a host in brackets.
    place = _AFTER_PLACE.split(rest, maxsplit=1)[0]
    login, at, hosts = place.rpartition("@")
    try:
        path = urlsplit(rest[len(place) :]).path
        places = [urlsplit(f"//{login}{at}{host}") for host in hosts.split(",")]
        named = all(each.hostname for each in places) or (scheme == "unix" and bool(path))
        _ = [each.port for each in places]
        named = named and (len(places) == 1 or scheme in _SEVERAL_HOSTS)
    except ValueError:
        named = False
    if not named or scheme not in schemes:
        raise ValueError(f"must look like {example}")
    return url


def _without_controls(value: str) -> str:
    # urlsplit drops line breaks and tabs, which would silently change a password.
    value = value.strip()
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("must not have a line break, a tab or another control character")
    return value


def _amqp(value: str) -> str:
    return _check_url(
        _without_controls(value), ("amqp", "amqps"), "amqp://user:password@host:5672/vhost"
    )


def _redis(value: str) -> str:
    value = _without_controls(value)
    for url in split_urls(value) or [""]:
        try:
            address = RedisAddress.parse(url)
        except RedisRefusedError as error:
            raise ValueError(str(error)) from None
        if address.form is Form.SERVER:
            _check_url(url, ("redis", "rediss", "unix"), "redis://:password@host:6379/0")
    return value


def _management(value: str) -> str:
    return _check_url(
        _without_controls(value), ("http", "https"), "http://user:password@host:15672"
    )


def _master(value: str) -> str:
    if not value.startswith(("local", "spark://", "k8s://", "yarn")):
        raise ValueError("must look like local[2] or spark://host:7077")
    return value


class Settings(BaseSettings):
    """The settings of a process.

    Addresses contain passwords: ``repr`` redacts them, and they must never be logged.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, extra="forbid"
    )

    amqp: Annotated[str, AfterValidator(_amqp)] | None = None
    redis: Annotated[str, AfterValidator(_redis)] | None = None
    master: Annotated[str, AfterValidator(_master)] = "local[*]"
    management: Annotated[str, AfterValidator(_management)] | None = None
    token: Annotated[str, Field(min_length=_TOKEN_CHARACTERS)] | None = None
    spout_tasks: Annotated[int, Field(ge=1, le=1024)] | None = None
    heartbeat: Path | None = None
    log: LogFormat = "text"
    log_level: LogLevel = "info"

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Load each setting: from ``given`` unless it is None, then the environment, then defaults.

        Raises ConfigError, whose line names the setting and never shows a value, which may contain
        a password.
        """
        try:
            found = {name: value for name, value in given.items() if value is not None}
            return cls(**{"_secrets_dir": _secrets_folder(), **found})
        except ValidationError as error:
            raise ConfigError(_one_line(error, given)) from None

    @property
    def redis_urls(self) -> tuple[str, ...]:
        """The Redis servers: one, or one per shard."""
        return tuple(split_urls(self.redis or ""))

    def required(self, *names: Literal["amqp", "redis"]) -> Self:
        """Return these settings; raise ConfigError if a named server has no address.

        Checks both servers by default.
        """
        for name in names or ("amqp", "redis"):
            if not getattr(self, name):
                raise ConfigError(
                    f"where is {_SERVERS[name]}? Give --{name} or set {_PREFIX}{name.upper()}; "
                    "tiercel run MODULE:TOPOLOGY starts one of its own"
                )
        return self

    def with_services(self, amqp: str, redis: str, management: str | None) -> Self:
        """Return the settings with the addresses of these services."""
        return self.model_copy(update={"amqp": amqp, "redis": redis, "management": management})

    def as_environment(self) -> dict[str, str]:
        """Return the environment from which a child process loads the same settings.

        Passwords do not belong on a command line.
        """
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in self if value is not None}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            shown = "***" if name == "token" and value else value
            yield name, redact(shown) if isinstance(shown, str) else shown


def otel_settings() -> dict[str, str]:
    """Return the variables ``OTEL_*`` if they ask for traces, else an empty mapping."""
    names = [name for name, value in os.environ.items() if name.startswith("OTEL_") and value]
    found = {name: os.environ[name] for name in names}
    exporter = found.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_off = exporter == "none" or found.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    asked = exporter or found.keys() & _OTEL_ENDPOINTS
    return found if asked and not is_off else {}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, updated with ``extra``, for a child process."""
    return {**os.environ, **extra}


def python_path(folder: Path) -> dict[str, str]:
    """Return the variable that lets child processes and Spark's Python workers import from
    ``folder``.
    """
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    }


def check_spark_python(master: str) -> None:
    """Raise ConfigError in local mode if ``PYSPARK_PYTHON`` names no program.

    On a cluster, it names a program on the executors' machines.
    """
    named = os.environ.get("PYSPARK_PYTHON")
    if named and is_local(master) and shutil.which(named) is None:
        raise ConfigError(
            f"PYSPARK_PYTHON: there is no program {named!r}: name a Python that has tiercel "
            "installed, or unset it to use this one"
        )


def use_this_python_for_spark(folder: Path) -> None:
    """Have Spark's workers use this Python, and import modules from ``folder``.

    A ``PYSPARK_PYTHON`` set by the user takes precedence. Call it before the context starts.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ.update(python_path(folder))


def runtime_folder() -> Path:
    """Return the folder where this user's running processes leave notes for each other."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


def _secrets_folder() -> str | None:
    folder = os.environ.get(f"{_PREFIX}SECRETS") or None
    if folder is not None and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"{_PREFIX}SECRETS: {folder} is not a readable folder")
    return folder


def _one_line(error: ValidationError, given: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(first["loc"][0])
    where = (
        f"--{name.replace('_', '-')}" if given.get(name) is not None else f"{_PREFIX}{name.upper()}"
    )
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"
