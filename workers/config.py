"""The settings that the processes share, from the command line, the environment and files.

Only this module reads them. Each setting is taken from the first of these that has it: the command
line, the environment, ``.env``, the folder ``TIERCEL_SECRETS``, and either ``tiercel.toml`` or the
table ``[tool.tiercel]`` of ``pyproject.toml``. The files are those in the current folder. In TOML
the names are without the prefix, in small letters.

TIERCEL_AMQP         RabbitMQ: amqp://user:password@host:5672,other:5672/vhost, or amqps://
TIERCEL_REDIS        Redis: redis://:password@host:6379/0, rediss:// or unix://; several, one per
                     shard, separated by commas; or
                     redis+sentinel://:password@host:26379,other:26379/mymaster/0, or
                     redis+cluster://:password@host:6379
TIERCEL_MASTER       Spark's master: local[2], spark://host:7077
TIERCEL_MANAGEMENT   RabbitMQ's HTTP API, if enabled: http://user:password@host:15672
TIERCEL_AMQP_USER, TIERCEL_AMQP_PASSWORD, and the same for REDIS and MANAGEMENT
                     login for an address that has none, with any characters
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
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tiercel.acker.errors import RedisRefusedError
from tiercel.acker.redis.pool import Form, RedisAddress, at_behind_host, split_urls
from tiercel.queues.nouns import did_you_mean
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.spark.settings import is_local
from tiercel.workers.errors import ConfigError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PREFIX = "TIERCEL_"
_SERVERS = {"amqp": "RabbitMQ", "redis": "Redis"}
_AFTER_PLACE = re.compile(r"[/?#]")
_SEVERAL_HOSTS = ("amqp", "amqps")
_TOKEN_CHARACTERS = 16
FILE = "tiercel.toml"
PYPROJECT = "pyproject.toml"
DOTENV = ".env"
_TABLE = ("tool", "tiercel")
# Least likeness of two names, of 1: less means that a variable is meant for another program.
_ALIKE = 0.8
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_LOGINS = ("amqp", "redis", "management")
_PARTS = ("_user", "_password")
# Variables that are no settings: of this module, of the compose file and of the manifests.
_OTHER_VARIABLES = ("secrets", "topology", "topology_dir", "image")
# Variables that Kubernetes makes from the name of a Service, such as tiercel-monitor.
_OF_KUBERNETES = re.compile(r".*_(?:port|port_\d+_.*|service_(?:host|port.*))")


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
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        pyproject_toml_table_header=_TABLE,
    )

    amqp: Annotated[str, AfterValidator(_amqp)] | None = None
    amqp_user: str | None = None
    amqp_password: str | None = None
    redis: Annotated[str, AfterValidator(_redis)] | None = None
    redis_user: str | None = None
    redis_password: str | None = None
    master: Annotated[str, AfterValidator(_master)] = "local[*]"
    management: Annotated[str, AfterValidator(_management)] | None = None
    management_user: str | None = None
    management_password: str | None = None
    token: Annotated[str, Field(min_length=_TOKEN_CHARACTERS)] | None = None
    spout_tasks: Annotated[int, Field(ge=1, le=1024)] | None = None
    heartbeat: Path | None = None
    log: LogFormat = "text"
    log_level: LogLevel = "info"

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Load each setting: from ``given`` unless it is None, else as the module says.

        Raises ConfigError, whose line names the setting and never shows a value, which may contain
        a password.
        """
        found = {name: value for name, value in given.items() if value is not None}
        _refuse_typos("", os.environ)
        try:
            return cls(**{"_secrets_dir": _secrets_folder(), **found})
        except ValidationError as error:
            raise ConfigError(_one_line(error, found)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - see ``_files``
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say where settings are looked for: pydantic-settings calls this."""
        dotenv, *tables = _files(settings_cls).values()
        return init_settings, env_settings, dotenv, file_secret_settings, *tables

    @model_validator(mode="before")
    @classmethod
    def _add_logins(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Write user and password into each address that has none."""
        for name in _LOGINS:
            url, user, password = (values.get(f"{name}{part}") for part in ("", *_PARTS))
            if isinstance(url, str) and (user or password):
                urls = [_with_login(each, user, password) for each in split_urls(url)]
                values = {**values, name: ",".join(urls)}
        return values

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
            shown = "***" if _is_secret(name or "") and value else value
            yield name, redact(shown) if isinstance(shown, str) else shown


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


def spark_python(master: str) -> str:
    """Return the program that ``PYSPARK_PYTHON`` names on this machine; empty if it names none."""
    return os.environ.get("PYSPARK_PYTHON", "") if is_local(master) else ""


def check_hadoop(master: str) -> None:
    """Raise ConfigError for YARN if no variable names the folder of Hadoop's settings."""
    if master.startswith("yarn") and not any(map(os.environ.get, _HADOOP)):
        raise ConfigError(
            f"--master {master} needs {' or '.join(_HADOOP)}: set it to the folder of Hadoop's "
            "settings"
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
    _refuse_typos(f"{folder}: ", [path.name for path in Path(folder).iterdir()] if folder else ())
    return folder


class _DotEnv(DotEnvSettingsSource):
    """The file ``.env``, whose other variables are for other programs."""

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__call__().items() if name in _names()}


def _files(of: type[BaseSettings]) -> dict[str, PydanticBaseSettingsSource]:
    """Read the files in the current folder; ``.env`` is the first. Raises ConfigError."""
    with _named(DOTENV):
        dotenv = _DotEnv(of, env_file=DOTENV)
    _refuse_typos(f"{DOTENV}: ", dotenv.env_vars)
    with _named(FILE):
        own = TomlConfigSettingsSource(of, FILE)
    with _named(PYPROJECT):
        table = PyprojectTomlConfigSettingsSource(of)
    if own.toml_data and table.toml_data:
        raise ConfigError(
            f"both {FILE} and [tool.tiercel] in {PYPROJECT} have settings: keep one of the two"
        )
    for place, source in ((FILE, own), (PYPROJECT, table)):
        for key in source.toml_data.keys() - _names():
            near = did_you_mean(key, _names())
            known = "" if near else f"; the settings are {', '.join(sorted(_names()))}"
            raise ConfigError(f"{place}: there is no setting {key!r:.80}{near}{known}")
    return {DOTENV: dotenv, FILE: own, PYPROJECT: table}


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Translate errors of reading a file, without its lines, which may have passwords."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} cannot be read: it is not UTF-8") from None
    except (ValueError, AttributeError, TypeError) as error:
        told = error if isinstance(error, ValueError) else "[tool.tiercel] must be a table"
        raise ConfigError(f"{file} cannot be read as TOML: {told}") from None


def _refuse_typos(place: str, variables: Iterable[str]) -> None:
    """Raise ConfigError for a variable whose name is almost that of a setting.

    Other names are left alone: Kubernetes makes variables from the names of Services.
    """
    known = [_variable(name) for name in (*_names(), *_OTHER_VARIABLES)]
    for name in variables:
        variable = name.upper()
        if (
            variable.startswith(_PREFIX)
            and variable not in known
            and _OF_KUBERNETES.fullmatch(name.lower()) is None
            and (near := did_you_mean(variable, known, least=_ALIKE))
        ):
            raise ConfigError(f"{place}{variable} is no setting{near}")


def exposed(given: Mapping[str, Any]) -> list[str]:
    """Return one line per file whose password is used here and which every user can read.

    ``given`` is what ``Settings.load`` was given, which overrides files as the environment does. A
    file in a folder that others cannot enter is safe.
    """
    lines = []
    for place, source in _files(Settings).items():
        used = {
            name: value
            for name, value in source().items()
            if given.get(name) is None and not os.environ.get(_variable(name))
        }
        if any(
            _is_secret(name) or redact(f"{value}") != f"{value}" for name, value in used.items()
        ):
            path = Path(place).resolve()
            folders = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
            if folders and path.stat().st_mode & stat.S_IROTH:
                lines.append(
                    f"{place} has a password, and every user of this machine can read it: "
                    f"chmod o-r {place}"
                )
    return lines


def _names() -> frozenset[str]:
    return frozenset(Settings.model_fields)


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _is_secret(name: str) -> bool:
    return name == "token" or name.endswith("_password")


def _with_login(url: str, user: object, password: object) -> str:
    """Return the address with this login, unless it has one."""
    scheme, separator, rest = url.partition("://")
    if not separator or "@" in _AFTER_PLACE.split(rest, maxsplit=1)[0]:
        return url
    login = quote(f"{user or ''}", safe="")
    if password:
        login += f":{quote(f'{password}', safe='')}"
    return f"{scheme}://{login}@{rest}"


def _one_line(error: ValidationError, given: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(first["loc"][0])
    return f"{_place_of(name, given)}: {first['msg'].removeprefix('Value error, ')}"


def _place_of(name: str, given: Mapping[str, Any]) -> str:
    """Say where the value of a setting comes from."""
    if name in given:
        return f"--{name.replace('_', '-')}"
    if not os.environ.get(_variable(name)):
        dotenv, *tables = _files(Settings).items()
        if name in dotenv[1]():
            return f"{_variable(name)} in {dotenv[0]}"
        if not _is_in_secrets(name):
            for place, source in tables:
                if name in source():
                    return f"{name} in {place}"
    return _variable(name)


def _is_in_secrets(name: str) -> bool:
    folder = _secrets_folder()
    return folder is not None and Path(folder, _variable(name).lower()).exists()
