"""Draws the passwords of a stack into a folder, once: what is there already stays.

    python -m compose.credentials FOLDER

Each process reads from the folder what it needs, so that no password is in an environment or on a command line. Standard
library only.

rabbitmq.conf, redis.conf                          the servers' settings
tiercel_amqp, tiercel_redis, tiercel_management    addresses, where the hosts are named rabbitmq and redis
tiercel_token                                      what the monitor asks of whoever changes anything
grafana_password                                   of its user admin
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_USER = "tiercel"


def draw_credentials(folder: Path) -> bool:
    """Whether they were drawn now, and not before. All files are there or none that anybody would read: the last one decides.

    They are readable by every user who can enter the folder, as each server runs as another one. Raises OSError.
    """
    last = folder / "complete"
    if last.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**_contents(), last.name: ""}.items():
        path = folder / name
        path.write_text(content)
        path.chmod(0o644)
    return True


def _contents() -> Mapping[str, str]:
    rabbitmq, redis, token, grafana = (secrets.token_urlsafe(24) for _ in range(4))
    settings = {
        "default_user": _USER,
        "default_pass": rabbitmq,
        "loopback_users": "none",
        "log.console": "true",
        "log.connection.level": "error",  # health checks and the monitor come and go all the time
    }
    return {
        "rabbitmq.conf": "".join(f"{name} = {value}\n" for name, value in settings.items()),
        "redis.conf": f"requirepass {redis}\nbind * -::*\n",
        "tiercel_amqp": f"amqp://{_USER}:{rabbitmq}@rabbitmq:5672/%2F",
        "tiercel_redis": f"redis://:{redis}@redis:6379/0",
        "tiercel_management": f"http://{_USER}:{rabbitmq}@rabbitmq:15672",
        "tiercel_token": token,
        "grafana_password": grafana,
    }


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    if len(arguments) != 1:
        print("tiercel: name one folder: python -m compose.credentials FOLDER", file=sys.stderr)  # noqa: T201 - the answer
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
