"""The stack that tiercel runs on: private servers for one machine, and what containers need.

embedded.py      all embedded services together
rabbitmq.py      a private RabbitMQ
redis_server.py  a private Redis or Valkey
server.py        what embedded servers have in common: folder, readiness, restart
guard.py         child processes that cannot outlive this one
ports.py         free loopback ports
install.py       finds the programs, installs missing ones
apt.py           apt, without starting what it installs
images.py        container images of the servers, pulled or built
debian.py        what they are built from
credentials.py   passwords of the compose file's stack
engine.py        a Docker engine, found or started
__main__.py      the installer as a command, for make
errors.py        what is raised
"""

from compose.embedded import EmbeddedServices
from compose.errors import ServiceError, ServiceMissingError, ServiceStartError
from compose.guard import GuardedProcess, Launch
from compose.rabbitmq import EmbeddedRabbitMQ
from compose.redis_server import EmbeddedRedis

__all__ = [
    "EmbeddedRabbitMQ",
    "EmbeddedRedis",
    "EmbeddedServices",
    "GuardedProcess",
    "Launch",
    "ServiceError",
    "ServiceMissingError",
    "ServiceStartError",
]
