"""Settings of this machine's pip that mean the same in a container: no file, no folder, no loopback
address.

Only settings on a list are passed on, so that any other one that names something of this machine
(``constraint``, ``find-links`` with a folder, ``cert``, ``cache-dir``, ``src``, …) is left out.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
from configparser import RawConfigParser
from urllib.parse import urlsplit

# pip's own sections; a build does not use the others. The environment overrides all of them.
COMMANDS = ("install", "wheel")
ENVIRONMENT = ":env:"
# Settings whose URLs are checked one by one: a URL of another machine is kept, any other value is
# left out.
LOCATIONS = ("index-url", "pypi-url", "extra-index-url", "find-links", "proxy")
TRAVELS = (
    "trusted-host",
    "timeout",
    "default-timeout",
    "retries",
    "resume-retries",
    "prefer-binary",
    *LOCATIONS,
)
LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1|0\.0\.0\.0")


def pip_settings(listed: str | None = None) -> str:
    """Return a pip.conf for a container; ``listed`` is the output of ``pip config list``, by
    default this machine's.
    """
    if listed is None:
        words = [sys.executable, "-m", "pip", "config", "list"]
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    settings = RawConfigParser()
    settings["global"] = {}
    found = re.findall(r"^(:env:|[\w-]+)\.([\w-]+)=(.*)$", listed, re.MULTILINE)
    for section, name, value in sorted(found, key=lambda each: each[0] == ENVIRONMENT):
        put(settings, section, name, ast.literal_eval(value))
    file = io.StringIO()
    settings.write(file)
    return file.getvalue()


def put(settings: RawConfigParser, section: str, name: str, value: str) -> None:
    """Add one setting if it can be used elsewhere; the environment overrides every section."""
    kept = travelling(name, value)
    if section == ENVIRONMENT:
        for command in COMMANDS:
            settings.remove_option(command, name) if settings.has_section(command) else None
        settings.remove_option("global", name)
        section = "global"
    if not kept or section not in ("global", *COMMANDS):
        return
    if not settings.has_section(section):
        settings.add_section(section)
    settings.set(section, name, kept)


def travelling(name: str, value: str) -> str:
    """Return the part of the value that means the same elsewhere; "" for nothing."""
    if name not in TRAVELS:
        return ""
    return " ".join(word for word in value.split() if name not in LOCATIONS or is_elsewhere(word))


def is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and not LOOPBACK.fullmatch(
        parts.hostname or "localhost"
    )
