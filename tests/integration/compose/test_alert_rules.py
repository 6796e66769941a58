"""The alert rules in Prometheus' own ``promtool``: each alert fires on its condition, once, and on
nothing else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tiercel.compose.install import find_system_program, install_missing

RULES_FILE = Path(__file__).parents[3] / "compose/alerts.yml"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES_FILE.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
EVERY_S = 15
# Number of samples before the fault and after it.
BEFORE = 80
AFTER = 400
BROKEN_AT_S = BEFORE * EVERY_S
# An alert fires within this time after its condition has held for long enough.
WITHIN_S = 60
KINDS = sorted(
    set(re.findall(r"[a-z_]+", " ".join(re.findall(r'kind=~?"([^"]+)"', RULES_FILE.read_text()))))
)
UNITS = {"s": 1, "m": 60, "h": 3600}
Series = dict[str, str]


def seconds(duration: str) -> int:
    """Parse a duration of a rule, such as 5m."""
    return int(duration[:-1]) * UNITS[duration[-1]]


def window_s(alert: str) -> int:
    """Return the longest range that the rule looks back over, in seconds."""
    ranges = re.findall(r"\[(\w+)\]", RULES[alert]["expr"])
    return max([0, *map(seconds, ranges)])


def steady(value: float) -> str:
    return f"{value}+0x{BEFORE + AFTER}"


def then(before: float, after: float, grows: float = 0) -> str:
    """Return a gauge that changes at the fault."""
    return f"{before}+0x{BEFORE - 1} {after}+{grows}x{AFTER}"


def counter(before: float, after: float) -> str:
    """Return a counter that grows by these steps per sample, before and after the fault."""
    at = before * BEFORE
    return f"0+{before}x{BEFORE - 1} {at}+{after}x{AFTER}"


def gone(value: float) -> str:
    """Return a gauge that vanishes at the fault."""
    return f"{value}+0x{BEFORE - 1} stale _x{AFTER}"


def of(metric: str, topology: str = "a", **labels: str) -> str:
    pairs = ",".join(
        f'{name}="{value}"' for name, value in {"topology": topology, **labels}.items()
    )
    return f"{metric}{{{pairs}}}"


def health(kind: str, topology: str = "a") -> str:
    return of("tiercel_health", topology, kind=kind)


def bucket(le: str, topology: str = "a") -> str:
    return of("tiercel_spout_complete_latency_seconds_bucket", topology, spout="s", le=le)


def working(topology: str) -> Series:
    """Return the series of a healthy topology; queue q belongs to another topology too."""
    spout = {"spout": "s"}
    task = {"component": "b", "task": "2"}
    queue = {"queue": "q"}
    return {
        **{health(kind, topology): steady(0) for kind in KINDS},
        of("tiercel_topology_in_flight_limit_seconds", topology): steady(30),
        of("tiercel_topology_active", topology): steady(1),
        of("tiercel_driver_up", topology): steady(1),
        of("tiercel_spout_acked_total", topology, **spout): counter(150, 150),
        of("tiercel_spout_failed_total", topology, **spout): counter(1, 1),
        of("tiercel_spout_timeouts_total", topology, **spout): counter(0, 0),
        bucket("1", topology): counter(150, 150),
        bucket("20", topology): counter(150, 150),
        bucket("+Inf", topology): counter(150, 150),
        of("tiercel_spout_oldest_pending_seconds", topology, **spout): steady(1),
        of("tiercel_spout_messages_in_back_off", topology, **spout): steady(3),
        of("tiercel_task_attended", topology, **task): steady(1),
        of("tiercel_bolt_paused", topology, bolt="b"): steady(0),
        of("tiercel_bolt_waiting_tuples", topology, bolt="b"): steady(200),
        of("tiercel_queue_messages_ready", topology, **queue): steady(5),
        of("tiercel_queue_messages_delayed", topology, **queue): steady(3),
        of("tiercel_queue_messages_dead", topology, **queue): steady(0),
        of("tiercel_queue_consumers", topology, **queue): steady(1),
    }


HEALTHY: Series = {
    'up{job="tiercel"}': steady(1),
    'tiercel_up{server="redis"}': steady(1),
    'tiercel_up{server="rabbitmq"}': steady(1),
    **working("a"),
    **working("b"),
}


def on_both(metric: str, values: str) -> Series:
    """Return a series of queue q as both topologies export it."""
    return {of(metric, topology, queue="q"): values for topology in "ab"}


def vanished(*but: str) -> Series:
    """Let all series of topologies vanish, except series with these prefixes."""
    return {name: gone(0) for name in HEALTHY if name.startswith("tiercel_")} | {
        name: HEALTHY[name] for name in HEALTHY if name.startswith(but)
    }


# Each fault, and the only alert that it raises.
BREAKS: Mapping[str, tuple[str, Series]] = {
    "all processes end": (
        "TiercelNothingRuns",
        {
            health("nothing_runs"): then(0, 1),
            health("nothing_acked"): then(0, 1),
            of("tiercel_topology_active"): then(1, 0),
            of("tiercel_driver_up"): then(1, 0),
            of("tiercel_task_attended", component="b", task="2"): then(1, 0),
            **on_both("tiercel_queue_consumers", steady(1)),
            of("tiercel_queue_consumers", queue="q"): then(1, 0),
            of("tiercel_queue_consumers", "b", queue="q"): steady(1),
        },
    ),
    "nothing is acked": ("TiercelNothingAcked", {health("nothing_acked"): then(0, 1)}),
    "all messages fail": ("TiercelNothingAcked", {health("all_fail"): then(0, 1)}),
    "Redis does not answer": (
        "TiercelServerAway",
        {**vanished("tiercel_up"), 'tiercel_up{server="redis"}': then(1, 0)},
    ),
    "RabbitMQ does not answer": (
        "TiercelServerAway",
        {'tiercel_up{server="rabbitmq"}': then(1, 0)},
    ),
    "Redis is full, for two topologies": (
        "TiercelServerRefusesWrites",
        {health("redis_full"): then(0, 1), health("redis_full", "b"): then(0, 1)},
    ),
    "RabbitMQ has an alarm": (
        "TiercelServerRefusesWrites",
        {health("rabbitmq_blocked"): then(0, 1)},
    ),
    "states are lost": ("TiercelStatesLost", {health("states_lost"): then(0, 1)}),
    "another version wrote the data": ("TiercelUnreadable", {health("unreadable"): then(0, 1)}),
    "one message in eleven fails": (
        "TiercelFailures",
        {of("tiercel_spout_failed_total", spout="s"): counter(1, 15)},
    ),
    "one message in fifty times out": (
        "TiercelTimeouts",
        {of("tiercel_spout_timeouts_total", spout="s"): counter(0, 3)},
    ),
    "messages take long": ("TiercelLatency", {bucket("1"): counter(150, 120)}),
    "spouts hold failed messages": (
        "TiercelBackOff",
        {of("tiercel_spout_messages_in_back_off", spout="s"): then(3, 101)},
    ),
    "delay queues hold failed messages": (
        "TiercelBackOff",
        on_both("tiercel_queue_messages_delayed", then(3, 101)),
    ),
    "a queue rises": (
        "TiercelQueueRising",
        on_both("tiercel_queue_messages_ready", then(5, 1001, grows=1)),
    ),
    "a message is in flight for too long": (
        "TiercelPendingTooOld",
        {of("tiercel_spout_oldest_pending_seconds", spout="s"): then(1, 31)},
    ),
    "a message is dead-lettered": (
        "TiercelDeadLetters",
        on_both("tiercel_queue_messages_dead", then(0, 1)),
    ),
    "spout workers end": ("TiercelNoConsumers", on_both("tiercel_queue_consumers", then(1, 0))),
    "the driver ends": (
        "TiercelNoDriver",
        {
            health("no_driver"): then(0, 1),
            health("nothing_acked"): then(0, 1),
            of("tiercel_driver_up"): then(1, 0),
            of("tiercel_task_attended", component="b", task="2"): then(1, 0),
        },
    ),
    "no executor fits": ("TiercelNoExecutor", {health("no_executor"): then(0, 1)}),
    "a bolt task has no process": (
        "TiercelTaskWithoutProcess",
        {of("tiercel_task_attended", component="b", task="2"): then(1, 0)},
    ),
    "more and more tuples wait for a bolt": (
        "TiercelInboxGrowing",
        {of("tiercel_bolt_waiting_tuples", bolt="b"): then(200, 201, grows=1)},
    ),
    "a bolt stays paused": ("TiercelBoltPaused", {of("tiercel_bolt_paused", bolt="b"): then(0, 1)}),
    "windows stand still": ("TiercelWindowsStand", {health("windows_stand"): then(0, 1)}),
    "the monitor ends": (
        "TiercelMonitorGone",
        {**vanished(), 'up{job="tiercel"}': then(1, 0)},
    ),
    "the monitor is not scraped": (
        "TiercelMonitorGone",
        {**vanished(), 'up{job="tiercel"}': gone(1)},
    ),
}


def case(name: str, series: Series, firing: Mapping[int, tuple[str, ...]]) -> dict[str, Any]:
    """Return a test case of promtool: at each time, in seconds, these alerts fire, each once."""
    return {
        "name": name,
        "interval": f"{EVERY_S}s",
        "input_series": [
            {"series": each, "values": values} for each, values in {**HEALTHY, **series}.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{at_s}s",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts
                ],
            }
            for at_s, alerts in firing.items()
        ],
    }


def broken(name: str, alert: str, series: Series) -> dict[str, Any]:
    for_s = seconds(RULES[alert]["for"])
    raised_s = BROKEN_AT_S + for_s + window_s(alert) + WITHIN_S
    times = {BROKEN_AT_S: (), BROKEN_AT_S + for_s - EVERY_S: (), raised_s: (alert,)}
    return case(name, series, times)


def passing(name: str, alert: str, series: Series) -> dict[str, Any]:
    """Return a case in which the condition ends before the alert is due."""
    lasts = seconds(RULES[alert]["for"]) // EVERY_S - 1
    brief = {
        each: f"0+0x{BEFORE - 1} 1+0x{lasts - 1} 0+0x{AFTER}"
        for each in series
        if each.startswith("tiercel_health")
    }
    ends_s = BROKEN_AT_S + lasts * EVERY_S
    return case(name, brief, dict.fromkeys(range(BROKEN_AT_S, ends_s + 120, EVERY_S), ()))


@pytest.fixture(scope="module")
def promtool() -> str:
    install_missing("prometheus")
    found = find_system_program("promtool")
    assert found is not None
    return str(found)


def evaluated(promtool: str, folder: Path, cases: list[dict[str, Any]]) -> None:
    """Run promtool, which must pass every case."""
    whole = {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": f"{EVERY_S}s",
        "tests": cases,
    }
    path = folder / "tests.yml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules(promtool):
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES_FILE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case():
    assert {alert for alert, _ in BREAKS.values()} == RULES.keys()


def test_a_break_raises_its_alert_once_and_no_other(promtool, tmp_path):
    cases = [broken(name, alert, series) for name, (alert, series) in BREAKS.items()]
    evaluated(promtool, tmp_path, cases)


def test_an_hour_of_health_raises_none(promtool, tmp_path):
    evaluated(promtool, tmp_path, [case("health", {}, dict.fromkeys(range(0, 3600, 60), ()))])


def test_a_finding_that_is_over_in_time_raises_none(promtool, tmp_path):
    cases = [
        passing(name, alert, series)
        for name, (alert, series) in BREAKS.items()
        if any(each.startswith("tiercel_health") for each in series)
        and alert != "TiercelServerAway"
        and alert != "TiercelMonitorGone"
    ]
    evaluated(promtool, tmp_path, cases)


def test_a_topology_can_have_a_target_of_its_own(promtool, tmp_path):
    """docs/runbook.md describes this setting."""
    runbook = (RULES_FILE.parents[1] / "docs/runbook.md").read_text()
    own = re.search(r"expr: >-\n((?: +\S.*\n)+)", runbook)
    assert own is not None
    expression = " ".join(own[1].split()).replace('"orders"', '"a"')
    whole = yaml.safe_load(RULES_FILE.read_text())
    target = next(rule for rule in whole["groups"][0]["rules"] if "record" in rule)
    target["expr"] = expression
    rules = tmp_path / "alerts.yml"
    rules.write_text(yaml.safe_dump(whole))
    tests = {
        "rule_files": [str(rules)],
        "evaluation_interval": "15s",
        "tests": [
            {
                **case("targets", {}, {}),
                "promql_expr_test": [
                    {
                        "expr": "tiercel:latency_target_seconds",
                        "eval_time": "5m",
                        "exp_samples": [
                            {"labels": of("tiercel:latency_target_seconds", each), "value": value}
                            for each, value in (("a", 2), ("b", 15))
                        ],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_text_names_what_it_is_about(promtool, tmp_path):
    """Templates query Prometheus for the topologies of a queue, and for a target."""
    at = BROKEN_AT_S + 3600
    noted = {
        "TiercelNoConsumers": "No spout worker consumes q, and a b is active",
        "TiercelServerRefusesWrites": "Redis is full: it refuses writes",
    }
    series = {
        **BREAKS["spout workers end"][1],
        **BREAKS["Redis is full, for two topologies"][1],
    }
    whole = case("texts", series, {at: tuple(sorted(noted))})
    labels = {"TiercelNoConsumers": {"queue": "q"}, "TiercelServerRefusesWrites": {}}
    labels["TiercelServerRefusesWrites"]["kind"] = "redis_full"
    whole["alert_rule_test"] = [
        {
            "eval_time": f"{at}s",
            "alertname": alert,
            "exp_alerts": [
                {
                    "exp_labels": {"severity": "critical", **labels[alert]},
                    "exp_annotations": {**RULES[alert]["annotations"], "summary": summary},
                }
            ],
        }
        for alert, summary in noted.items()
    ]
    evaluated(promtool, tmp_path, [whole])
