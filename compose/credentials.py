"""Draws the passwords of a stack once; existing passwords stay.

    python -m tiercel.compose.credentials FOLDER

Each role has a folder with exactly the secrets that it needs. Processes read the folder of their
role, so that no password is in an environment or on a command line. Standard library only.

rabbitmq   rabbitmq.conf, definitions.json (users, passwords hashed), erlang_cookie
redis      redis.conf
spark      spark.conf: the secret of Spark's own connections
driver     tiercel_amqp, tiercel_redis, spark.conf
spout      tiercel_amqp, tiercel_redis
monitor    tiercel_amqp, tiercel_redis, tiercel_management, tiercel_token
grafana    grafana_password, for its user admin

The hosts in the addresses are rabbitmq and redis.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_USER = "tiercel"
_WATCHER = "tiercel-monitor"
_COMPLETE = "complete"


def draw_credentials(folder: Path) -> bool:
    """Draw the credentials unless they exist; return True if they were drawn.

    Roles share passwords, so all are drawn again unless every role is complete. Every user who can
    enter a role's folder can read its files, because each server runs as a different user. Raises
    OSError.
    """
    roles = _roles()
    if all((folder / role / _COMPLETE).exists() for role in roles):
        return False
    for role in roles:
        (folder / role).mkdir(parents=True, exist_ok=True)
        (folder / role / _COMPLETE).unlink(missing_ok=True)
    for role, files in roles.items():
        for name, content in files.items():
            _write(folder / role / name, content)
    for role in roles:
        _write(folder / role / _COMPLETE, "")
    return True


def _write(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o644)


def _roles() -> Mapping[str, Mapping[str, str]]:
    """Draw the files of each role."""
    rabbitmq, watcher, redis, spark, token, grafana = (secrets.token_urlsafe(24) for _ in range(6))
    worker = {
        "tiercel_amqp": f"amqp://{_USER}:{rabbitmq}@rabbitmq:5672/%2F",
        "tiercel_redis": f"redis://:{redis}@redis:6379/0",
    }
    spark_conf = {"spark.conf": _spark_conf(spark)}
    return {
        "rabbitmq": {
            "rabbitmq.conf": _rabbitmq_conf(),
            "definitions.json": json.dumps(_definitions(rabbitmq, watcher), indent=1),
            "erlang_cookie": secrets.token_hex(32),
        },
        "redis": {"redis.conf": f"requirepass {redis}\nbind * -::*\n"},
        "spark": spark_conf,
        "driver": {**worker, **spark_conf},
        "spout": worker,
        "monitor": {
            **worker,
            "tiercel_management": f"http://{_WATCHER}:{watcher}@rabbitmq:15672",
            "tiercel_token": token,
        },
        "grafana": {"grafana_password": grafana},
    }


def _rabbitmq_conf() -> str:
    settings = {
        "load_definitions": "/run/tiercel/credentials/definitions.json",
        "loopback_users": "none",
        "log.console": "true",
        # Health checks and the monitor connect constantly.
        "log.connection.level": "error",
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


def _definitions(password: str, watchers: str) -> Mapping[str, object]:
    """Return the definitions that RabbitMQ loads at each start.

    No user is an administrator; the monitor's user may only read.
    """

    def permissions(user: str, pattern: str) -> Mapping[str, str]:
        return {"user": user, "vhost": "/", "configure": pattern, "write": pattern, "read": pattern}

    return {
        "vhosts": [{"name": "/"}],
        "users": [_user(_USER, password, ""), _user(_WATCHER, watchers, "monitoring")],
        "permissions": [permissions(_USER, ".*"), permissions(_WATCHER, "")],
    }


def _user(name: str, password: str, tags: str) -> Mapping[str, str]:
    """Return a user in RabbitMQ's format, with a salted and hashed password."""
    salt = secrets.token_bytes(4)
    digest = hashlib.sha256(salt + password.encode()).digest()
    return {
        "name": name,
        "password_hash": base64.b64encode(salt + digest).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": tags,
    }


def _spark_conf(secret: str) -> str:
    """Return the settings shared by Spark's master, its workers and the driver.

    Their web pages have no login, so actions are disabled.
    """
    settings = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.ui.killEnabled": "false",
        "spark.master.ui.decommission.allow.mode": "DENY",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    if len(arguments) != 1:
        print("tiercel: name one folder for the credentials", file=sys.stderr)  # noqa: T201 - the answer
        return 2
    try:
        drawn = draw_credentials(Path(arguments[0]))
    except OSError as error:
        print(f"tiercel: cannot write to {arguments[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - the answer
        return 2
    print("credentials were drawn" if drawn else "the credentials of an earlier start stay")  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
