"""The settings that the processes share, from the command line, the environment and files.

Only this module reads them. Each setting is taken from the first of these that has it: the command
line, the environment, the folder ``TIERCEL_SECRETS``, else ``.env``, and either ``tiercel.toml`` or
the table ``[tool.tiercel]`` of ``pyproject.toml``. The files are those in the current folder. In
TOML the names are without the prefix, in small letters.

TIERCEL_AMQP         RabbitMQ: amqp://user:password@host:5672,other:5672/vhost, or amqps://
TIERCEL_REDIS        Redis: redis://:password@host:6379/0, rediss:// or unix://; several, one per
                     shard, separated by commas; redis+sentinel://host,other:26379/mymaster/0; or
                     redis+cluster://:password@host:6379
TIERCEL_MASTER       Spark's master: local[2], spark://host:7077
TIERCEL_MANAGEMENT   RabbitMQ's HTTP API, if enabled: http://user:password@host:15672
TIERCEL_AMQP_USER, TIERCEL_AMQP_PASSWORD, and the same for REDIS and MANAGEMENT
                     login for an address that has none, with any characters
TIERCEL_AMQP_HOST, _PORT, _VHOST, _TLS, _CA, _CERT, _KEY;
TIERCEL_REDIS_HOST, _PORT, _DATABASE, _TLS, _CA, _CERT, _KEY; TIERCEL_MANAGEMENT_HOST, _PORT, _TLS
                     parts of an address, in place of the whole one, with any characters
TIERCEL_TOKEN        token that tiercel monitor requires for showing bodies and for changes, at
                     least 16 characters; by default the monitor draws and prints one
TIERCEL_SPOUT_TASKS  minimum number of tasks of each spout that reads a queue; the same for all
                     processes of a topology
TIERCEL_EXECUTORS    least and most executors, 2..20, or one number; overrides the topology's
TIERCEL_WORKER_PODS  labels of the pods of Spark's workers; the Helm chart sets it for KEDA
TIERCEL_HEARTBEAT    file that spout workers and the driver touch while they work, for probes
TIERCEL_SECRETS      folder with files tiercel_amqp, …, for settings not in the environment
TIERCEL_LOG, TIERCEL_LOG_LEVEL
                     text or json; debug, info, warning or error
OTEL_*               OpenTelemetry's own; OTEL_TRACES_EXPORTER or an endpoint switches traces on
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
from ipaddress import IPv6Address
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tiercel.acker.errors import RedisRefusedError
from tiercel.acker.redis.pool import Form, RedisAddress, at_behind_host, split_urls
from tiercel.queues.nouns import did_you_mean
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.spark.settings import check_master, is_local
from tiercel.spark_jobs.topology.config import parse_executors
from tiercel.workers.errors import ConfigError

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PREFIX = "TIERCEL_"
_OTEL_ENDPOINTS = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}
_SERVERS = {"amqp": "RabbitMQ", "redis": "Redis"}
_AFTER_PLACE = re.compile(r"[/?#]")
_SEVERAL_HOSTS = ("amqp", "amqps")
_TOKEN_CHARACTERS = 16
FILE = "tiercel.toml"
PYPROJECT = "pyproject.toml"
DOTENV = ".env"
_TABLE = ("tool", "tiercel")
_ALIKE = 0.8  # of 1; a variable less like a name is no typo, but meant for another program
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_ADDRESSES = ("amqp", "redis", "management")
# Files for TLS: of the authority that signed the server's certificate, and of the client's own.
_FILES = ("ca", "cert", "key")
_PARTS = ("host", "port", "vhost", "database", "tls", *_FILES)
# Of each address: its scheme, the scheme with TLS, the port that means TLS, the options with files.
_SCHEMES = {
    "amqp": ("amqp", "amqps", 5671, ("cafile", "certfile", "keyfile")),
    "redis": ("redis", "rediss", None, ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")),
    "management": ("http", "https", 15671, ()),
}
_HOST = re.compile(r"[\w.-]+")
# Variables that are no settings: of this module and of the compose file.
_OTHER_VARIABLES = ("secrets", "topology", "topology_dir", "image")
# Variables that Kubernetes makes from the name of a Service, such as tiercel-monitor.
_OF_KUBERNETES = re.compile(r".*_(?:port|port_\d+_.*|service_(?:host|port.*))")


def _check_url(url: str, schemes: tuple[str, ...], example: str) -> str:
    url = _without_controls(url)
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


def _utf8(value: str) -> str:
    # Python reads a variable that is not UTF-8 with characters that no server can be sent.
    if any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise ValueError("must be UTF-8")
    return value


def _without_controls(value: str) -> str:
    # urlsplit drops line breaks and tabs, which would silently change a password.
    value = _utf8(value).strip()
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError("must not have a line break, a tab or another control character")
    return value


def _amqp(value: str) -> str:
    return _check_url(value, ("amqp", "amqps"), "amqp://user:password@host:5672/vhost")


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
    return _check_url(value, ("http", "https"), "http://user:password@host:15672")


def _hosts(value: str) -> str:
    for host in _without_controls(value).split(","):
        if not _HOST.fullmatch(host.strip()) and not _is_ipv6(host):
            raise ValueError(
                "must be the name or the IP address of a host, or several separated by commas, "
                "without a scheme, a login or a port"
            )
    return value


def _is_ipv6(host: str) -> bool:
    try:
        return bool(IPv6Address(host.strip().strip("[]")))
    except ValueError:
        return False


def _port(value: object) -> object:
    """Ignore the variable that Kubernetes makes of a Service that is named ``tiercel-redis``."""
    return None if isinstance(value, str) and value.startswith(("tcp://", "udp://")) else value


Hosts = Annotated[str, AfterValidator(_hosts)] | None
Port = Annotated[Annotated[int, Field(ge=1, le=65535)] | None, BeforeValidator(_port)]
Plain = Annotated[str, AfterValidator(_without_controls)] | None
Executors = Annotated[str, AfterValidator(lambda said: parse_executors(said) and said)] | None
Login = Annotated[str, AfterValidator(_utf8)] | None


class Settings(BaseSettings):
    """The settings of a process. Addresses have passwords, which only ``repr`` redacts."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        pyproject_toml_table_header=_TABLE,
    )

    # The parts of an address stand before it: its validator puts them together.
    amqp_host: Hosts = None
    amqp_port: Port = None
    amqp_vhost: Plain = None
    amqp_tls: bool | None = None
    amqp_ca: Plain = None
    amqp_cert: Plain = None
    amqp_key: Plain = None
    amqp_user: Login = None
    amqp_password: Login = None
    amqp: Annotated[str, AfterValidator(_amqp)] | None = Field(default=None, validate_default=True)
    redis_host: Hosts = None
    redis_port: Port = None
    redis_database: Annotated[int, Field(ge=0)] | None = None
    redis_tls: bool | None = None
    redis_ca: Plain = None
    redis_cert: Plain = None
    redis_key: Plain = None
    redis_user: Login = None
    redis_password: Login = None
    redis: Annotated[str, AfterValidator(_redis)] | None = Field(
        default=None, validate_default=True
    )
    management_host: Hosts = None
    management_port: Port = None
    management_tls: bool | None = None
    management_user: Login = None
    management_password: Login = None
    management: Annotated[str, AfterValidator(_management)] | None = Field(
        default=None, validate_default=True
    )
    master: Annotated[str, AfterValidator(check_master)] = "local[*]"
    token: Annotated[str, Field(min_length=_TOKEN_CHARACTERS)] | None = None
    spout_tasks: Annotated[int, Field(ge=1, le=1024)] | None = None
    executors: Executors = None
    worker_pods: Plain = None
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
            return cls(**{"_secrets_dir": _secrets_folder(), **_other_form(found), **found})
        except ValidationError as error:
            raise ConfigError(_one_line(error, found)) from None
        except SettingsError:
            raise ConfigError(f"{_PREFIX}SECRETS: a file there cannot be read as UTF-8") from None

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
        places = (env_settings, dotenv, file_secret_settings, *tables)
        # A place's other form of an address stands behind it, before the later places.
        both = [(place, _OtherForm(settings_cls, place)) for place in places]
        return init_settings, *chain.from_iterable(both)

    @field_validator(*_ADDRESSES, mode="before")
    @classmethod
    def _put_together(cls, url: object, info: ValidationInfo) -> object:
        """Make an address of its parts, and write user and password into one that has none."""
        name = info.field_name or ""
        parts = {part: info.data.get(f"{name}_{part}") for part in (*_PARTS, "user", "password")}
        given = [part for part in _PARTS if parts[part] is not None]
        if url and given:
            raise ValueError(
                f"this is the whole address, and {_variable(f'{name}_{given[0]}')} is a part of "
                "one: give one of the two"
            )
        if given:
            _check_parts(name, parts, given[0])
            url = _address(name, parts)
        if isinstance(url, str) and (parts["user"] or parts["password"]):
            urls = [_with_login(each, parts["user"], parts["password"]) for each in split_urls(url)]
            return ",".join(urls)
        return url

    @property
    def redis_urls(self) -> tuple[str, ...]:
        """The Redis servers: one, or one per shard."""
        return tuple(split_urls(self.redis or ""))

    def required(self, *names: Literal["amqp", "redis"]) -> Self:
        """Return these settings; raise ConfigError if a named server, or either, has no address."""
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

        Passwords do not belong on a command line. Parts of an address are empty: the whole one has
        them.
        """
        found = {_variable(name): str(value) for name, value in self if value is not None}
        return {**found, **{_variable(part): "" for name in _ADDRESSES for part in _parts(name)}}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            shown = "***" if _is_secret(name or "") and value else value
            yield name, redact(shown) if isinstance(shown, str) else shown


def otel_settings() -> dict[str, str]:
    """Return the variables ``OTEL_*`` if they ask for traces, else an empty mapping."""
    found = {name: value for name, value in os.environ.items() if value and name[:5] == "OTEL_"}
    exporter = found.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_off = exporter == "none" or found.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    asked = exporter or found.keys() & _OTEL_ENDPOINTS
    return found if asked and not is_off else {}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, updated with ``extra``, for a child process."""
    return {**os.environ, **extra}


def python_path(folder: Path) -> dict[str, str]:
    """Return the variable that lets child processes and Spark's Python import from ``folder``."""
    folders = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(folders)}


def check_spark_python(master: str) -> None:
    """Raise ConfigError if ``PYSPARK_PYTHON`` names no program; on a cluster it names theirs."""
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


class _OtherForm(PydanticBaseSettingsSource):
    """Sets parts to None where a place has the whole address, and the whole where it has parts.

    So an address overrides one of later places that is given in the other form.
    """

    def __init__(self, of: type[BaseSettings], place: PydanticBaseSettingsSource) -> None:
        super().__init__(of)
        self._place = place

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return a field of the place itself: the base class asks for this method."""
        return self._place.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        return _other_form(self._place())


def _other_form(values: Mapping[str, Any]) -> dict[str, None]:
    """Return the parts of each address that is given whole, and the whole of one given by host."""
    other: dict[str, None] = {}
    for name in _ADDRESSES:
        if name in values:
            other |= dict.fromkeys(_parts(name))
        elif f"{name}_host" in values:
            other[name] = None
    return other


def _files(of: type[BaseSettings]) -> dict[str, PydanticBaseSettingsSource]:
    """Read the files in the current folder; ``.env`` is the first. Raises ConfigError."""
    # In a folder mounted by a container it is a developer's: other servers, and often unreadable.
    with _named(DOTENV):
        dotenv = _DotEnv(of, env_file=None if os.environ.get(_variable("secrets")) else DOTENV)
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
    """Raise ConfigError for a variable whose name is almost that of a setting."""
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


def _parts(name: str) -> list[str]:
    """Return the settings that are parts of this address, without the login."""
    names = [f"{name}_{part}" for part in _PARTS]
    return [each for each in names if each in _names()]


def _check_parts(name: str, parts: Mapping[str, Any], first: str) -> None:
    """Raise ValueError for parts that belong together and are not; ``first`` is one that is."""
    for needed, part in (("host", first), ("cert", "key")):
        if parts[part] is not None and not parts[needed]:
            raise ValueError(
                f"there is {_variable(f'{name}_{part}')}, but no {_variable(f'{name}_{needed}')}"
            )
    for file in _FILES:
        if parts[file] and parts["tls"] is False:
            raise ValueError(
                f"there is {_variable(f'{name}_{file}')}, but {_variable(f'{name}_tls')} is false: "
                "without TLS there are no certificates, leave one of the two out"
            )


def _address(name: str, parts: Mapping[str, Any]) -> str:
    """Put an address together from its parts, without the login."""
    plain, secure, secure_port, file_options = _SCHEMES[name]
    files = [
        f"{option}={quote(parts[file], safe='/')}"
        for file, option in zip(_FILES, file_options, strict=False)
        if parts[file]
    ]
    tls = parts["tls"]
    if tls is None:
        tls = bool(files) or (parts["port"] is not None and parts["port"] == secure_port)
    port = parts["port"] or ((secure_port if tls else 15672) if name == "management" else None)
    hosts = [each.strip(" []") for each in parts["host"].split(",")]
    hosts = [f"[{host}]" if ":" in host else host for host in hosts]
    hosts = [f"{host}:{port}" if port else host for host in hosts]
    path = "" if parts["vhost"] is None else f"/{quote(parts['vhost'], safe='')}"
    path += "" if parts["database"] is None else f"/{parts['database']}"
    if files:
        path = f"{path or '/'}?{'&'.join(files)}"
    # Several hosts are one cluster of RabbitMQ, but one Redis server per shard.
    places = hosts if name == "redis" else [",".join(hosts)]
    return ",".join(f"{secure if tls else plain}://{place}{path}" for place in places)


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
        folder = _secrets_folder()
        if folder is None or not Path(folder, _variable(name).lower()).exists():
            for place, source in tables:
                if name in source():
                    return f"{name} in {place}"
    return _variable(name)
