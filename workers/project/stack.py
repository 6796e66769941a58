"""The compose file of a project: that of the package, without what needs a checkout of tiercel."""

from __future__ import annotations

import re
from importlib.resources import files

_HEADER = """\
# {project} in containers: docker compose up --wait
#
# It runs the image `tiercel`, which is built in a checkout of tiercel:
# docker build -f compose/Dockerfile -t tiercel . What the topology needs beside it goes into an
# image of your own, FROM tiercel, which TIERCEL_IMAGE names. Passwords are drawn at the first start
# and lie in volumes; nothing listens beyond this machine.

"""

# What is cut out, or put in another's place; each is found in the package's file exactly once.
_CHANGES = (
    # Its own heading.
    (r"\A(#[^\n]*\n)+\n", ""),
    # Built elsewhere: a project has no sources of tiercel.
    (r"(?m)^  build:\n(    .*\n)+", ""),
    # Prometheus and Grafana, which mount files of the checkout.
    (r"(?ms)^  # These two with:.*?(?=^networks:)", ""),
    (r"(?m)^  prometheus:\n  grafana:\n", ""),
)
_EVERYWHERE = (
    (r"docker compose -f compose/docker-compose\.yml", "docker compose"),
    (r"tiercel\.examples\.word_count:topology", "{module}:topology"),
    (r"\.\./examples", "."),
)


def stack_for(project: str, module: str) -> str:
    """Return the text of ``docker-compose.yml`` for the topology ``module:topology``."""
    text = (files("tiercel.compose") / "docker-compose.yml").read_text("utf-8")
    for pattern, replacement in _CHANGES:
        text, times = re.subn(pattern, replacement, text)
        if times != 1:
            raise ValueError(f"the package's compose file has {times} places for {pattern}")
    for pattern, replacement in _EVERYWHERE:
        text = re.sub(pattern, replacement.format(module=module), text)
    return _HEADER.format(project=project) + text
