"""Debian's Prometheus, which scrapes a monitor and evaluates the alert rules on a shortened time
scale.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from tests.support.entered import Entered
from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.compose.install import find_system_program, install_missing
from tiercel.compose.server import free_port

COMPOSE = Path(__file__).parents[2] / "compose"
# All durations of the rules are divided by this number: an hour passes in a minute.
QUICKER = 60
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(duration: str) -> int:
    """Parse a duration of a rule.

    >>> seconds("15m")
    900
    """
    return int(duration[:-1]) * _UNITS[duration[-1]]


def quickened(rules: str) -> str:
    """Divide each range and each ``for`` of the rules.

    >>> quickened("expr: rate(a[5m]) > 0\\nfor: 15m")
    'expr: rate(a[5s]) > 0\\nfor: 15s'
    """
    return re.sub(
        r"(for: |\[)(\d+[smh])\b",
        lambda found: f"{found[1]}{seconds(found[2]) // QUICKER}s",
        rules,
    )


class Prometheus(Entered):
    """A server with the rules and settings of ``compose``; it evaluates once per second."""

    def __init__(self, folder: Path, monitor_url: str) -> None:
        self._folder = folder
        self._target = urllib.parse.urlsplit(monitor_url).netloc
        self._api = f"http://127.0.0.1:{free_port()}"
        self.rules = {
            rule["alert"]: rule
            for group in yaml.safe_load((COMPOSE / "alerts.yml").read_text())["groups"]
            for rule in group["rules"]
            if "alert" in rule
        }

    def _enter(self, exits: ExitStack) -> None:
        install_missing("prometheus")
        settings = (COMPOSE / "prometheus.yml").read_text()
        settings = settings.replace("monitor:8710", self._target).replace("15s", "1s")
        (self._folder / "prometheus.yml").write_text(settings)
        rules = quickened((COMPOSE / "alerts.yml").read_text())
        (self._folder / "alerts.yml").write_text(rules)
        argv = [
            str(find_system_program("prometheus")),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address={urllib.parse.urlsplit(self._api).netloc}",
        ]
        process = GuardedProcess(Launch(argv=argv, output=self._folder / "prometheus.log"))
        exits.callback(process.kill)

    def for_s(self, alert: str) -> int:
        """Return how long the condition of an alert must hold, in seconds of the original rule."""
        return seconds(self.rules[alert]["for"])

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Return the firing alerts by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self._asked("alerts").get("alerts", []):
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    def pending(self) -> set[str]:
        """Return the names of the alerts whose conditions hold now."""
        return {each["labels"]["alertname"] for each in self._asked("alerts").get("alerts", [])}

    def held_s(self, last_s: float) -> dict[str, float]:
        """Return for how many of the last seconds each alert's condition held."""
        window = f"[{int(last_s)}s]"
        counted = f"max by (alertname) (sum without (alertstate) (count_over_time(ALERTS{window})))"
        return self.values(counted, "alertname")

    def values(self, question: str, label: str) -> dict[str, float]:
        """Return a query's values, by one of its labels."""
        found = self._asked(f"query?{urllib.parse.urlencode({'query': question})}")
        return {
            each["metric"].get(label, ""): float(each["value"][1])
            for each in found.get("result", [])
        }

    def _asked(self, question: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self._api}/api/v1/{question}", timeout=10) as response:
                answer: dict[str, Any] = json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it is starting
                return {}
            raise AssertionError(f"{question}: {error.read().decode()}") from error
        except OSError:  # it is starting
            return {}
        return answer
