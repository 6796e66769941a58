"""``/metrics`` names and labels, and that alerts and dashboard ask for nothing else."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import generate_latest

from tests.support.overviews import NO_PROBLEMS, health_of
from tests.support.pages import page
from tiercel import QueueDepth
from tiercel.acker.ids import line_of
from tiercel.acker.inbox.contract import InboxFigures, OpenWindows
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import Counted
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import ExecutorReport
from tiercel.workers.control.registry import Component, Edge, Graph
from tiercel.workers.monitoring.exposition import TiercelCollector
from tiercel.workers.monitoring.findings import (
    OF_SERVERS,
    FindingKind,
    ServerProblems,
)
from tiercel.workers.monitoring.overview import overview_of
from tiercel.workers.monitoring.rows import Readings
from tiercel.workers.monitoring.watcher import Look

COMPOSE = Path(__file__).parents[4] / "compose"
EDGE = Edge(source="lines", stream="default", target="split", grouping="shuffle")
GRAPH = Graph(
    spouts=(Component(name="lines", tasks=(1,), queue="q"),),
    bolts=(Component(name="split", tasks=(2, 3)),),
    edges=(EDGE,),
    shards=1,
)
DEPTH = QueueDepth(
    name="q",
    ready=1,
    unacked=2,
    delayed=0,
    consumers=1,
    in_rate=None,
    out_rate=None,
    dead_lettered=0,
)


class Seen:
    """Stands for a watcher that has looked."""

    def __init__(self, *overviews, problems=NO_PROBLEMS):
        self.looks = {
            each.name: Look(
                at=each.at,
                overview=each,
                problems=problems,
                health=health_of(each, problems),
            )
            for each in overviews
        }
        self.up = {"redis": problems.redis is None, "rabbitmq": problems.rabbitmq is None}

    def all(self):
        return self.looks, self.up


def exposed(*, problems: ServerProblems = NO_PROBLEMS, **changed: Any) -> dict[str, float]:
    """{metric{labels}: value} of one topology."""
    given: dict[str, Any] = {
        "graph": GRAPH,
        "counted": Counted(counts={}, seconds=10),
        "present": {},
        "state": None,
        "driver": True,
        "inboxes": {},
        "census": Census(pending=0, memory_bytes=0, feed_entries=0, feed_lag_s=0),
        "errors": [],
    }
    seen = overview_of("t", Readings(**{**given, **changed}))
    watcher = Seen(replace(seen, queues=(DEPTH,)), problems=problems)
    whole = generate_latest(TiercelCollector(watcher)).decode()
    lines = [line.rsplit(" ", 1) for line in whole.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_the_page_on_monitoring_describes_each_metric():
    families = list(TiercelCollector(Seen()).collect())
    names = [each.name + "_total" * (each.type == "counter") for each in families]
    text = page("monitor.md")
    assert len(names) > 50
    assert [each for each in names if f"`{each}`" not in text] == []


def of_task(found: dict[str, float], task: int) -> dict[str, float]:
    labels = f'{{component="split",task="{task}",topology="t"}}'
    return {
        name.removesuffix(labels): value for name, value in found.items() if name.endswith(labels)
    }


def test_each_bolt_task_has_figures_of_its_own():
    counts = {
        "split": {2: {"executed": 8, "execute_ns": 5 * 10**9, "steps": 4, "step_ns": 6 * 10**9}}
    }
    inbox = InboxFigures(
        tuples=70, bytes=900, adopted=True, oldest_s=1.5, attempts=3, seen_s=0.5, doing_s=7.0,
        retrying=6,
    )  # fmt: skip
    found = exposed(counted=Counted(counts=counts, seconds=10), inboxes={2: inbox})
    assert of_task(found, 2) == {
        "tiercel_task_executed_total": 8,
        "tiercel_task_execute_seconds_total": 5,
        "tiercel_task_steps_total": 4,
        "tiercel_task_step_seconds_total": 6,
        "tiercel_inbox_tuples": 70,
        "tiercel_inbox_bytes": 900,
        "tiercel_inbox_oldest_seconds": 1.5,
        "tiercel_task_attempts": 3,
        "tiercel_task_attended": 1,
        "tiercel_task_seen_seconds": 0.5,
        "tiercel_task_call_seconds": 7.0,
        "tiercel_task_waiting_for_retry": 6,
    }
    missing = of_task(found, 3)
    assert (missing["tiercel_task_attended"], missing["tiercel_inbox_tuples"]) == (0, 0)
    assert "tiercel_task_seen_seconds" not in missing, "no process was ever seen"
    assert "tiercel_task_call_seconds" not in missing


def test_the_tuples_in_the_line_of_a_bolt_count_as_waiting():
    figures = {"adopted": True, "attempts": 1, "seen_s": 0.5}
    inboxes = {
        2: InboxFigures(tuples=1, bytes=90, oldest_s=0.1, **figures),
        line_of((2, 3)): InboxFigures(tuples=350, bytes=9_000, oldest_s=7.5, **figures),
    }
    found = exposed(inboxes=inboxes)
    assert found['tiercel_bolt_waiting_tuples{bolt="split",topology="t"}'] == 351
    assert found['tiercel_bolt_oldest_waiting_seconds{bolt="split",topology="t"}'] == 7.5


def of_windows(found: dict[str, float]) -> dict[str, float]:
    labels = '{component="split",topology="t"}'
    return {
        name.removesuffix(labels): value
        for name, value in found.items()
        if name.startswith("tiercel_windows_") and name.endswith(labels)
    }


def test_a_windowed_bolt_has_gauges_while_its_tasks_have_processes():
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    counters = {
        f"tiercel_windows_{each}_total": 0.0 for each in ("closed", "failed", "late", "refused")
    }
    windows = OpenWindows(
        number=12, tuples=345, watermark_us=round(1e6 * at.timestamp()) - 2_500_000
    )
    inbox = InboxFigures(
        tuples=0, bytes=0, adopted=True, oldest_s=1.5, attempts=1, seen_s=0.5, windows=windows
    )
    assert of_windows(exposed(inboxes={2: inbox}, at=at)) == counters | {
        "tiercel_windows_open": 12,
        "tiercel_windows_held_tuples": 345,
        "tiercel_windows_oldest_seconds": 1.5,
        "tiercel_windows_watermark_timestamp_seconds": at.timestamp() - 2.5,
        "tiercel_windows_watermark_lag_seconds": 2.5,
    }
    assert of_task(exposed(inboxes={2: inbox}), 2)["tiercel_inbox_oldest_seconds"] == 0
    unmarked = replace(inbox, windows=OpenWindows(number=0, tuples=0))
    assert of_task(exposed(inboxes={2: unmarked}), 2)["tiercel_inbox_oldest_seconds"] == 1.5
    assert of_windows(exposed(inboxes={2: unmarked}, at=at)) == counters | {
        "tiercel_windows_open": 0,
        "tiercel_windows_held_tuples": 0,
        "tiercel_windows_oldest_seconds": 0,
    }
    gone = replace(inbox, seen_s=60.0)
    assert of_windows(exposed(inboxes={2: gone}, at=at)) == {}
    assert of_windows(exposed(inboxes={2: replace(inbox, windows=None)}, at=at)) == {}


def test_attempts_that_a_bolt_retried_are_no_failures():
    counts = {"split": {2: {"executed": 8, "acked": 5, "retried": 2, "failed": 1}}}
    found = exposed(counted=Counted(counts=counts, seconds=10))
    labels = '{bolt="split",topology="t"}'
    assert found[f"tiercel_bolt_retried_total{labels}"] == 2
    assert found[f"tiercel_bolt_failed_total{labels}"] == 1


def test_executors_are_fit_until_the_driver_says_that_none_can_run_bolts():
    name = 'tiercel_executors_fit{topology="t"}'
    assert exposed()[name] == 1
    assert exposed(trouble="executor 1 on h cannot start Python")[name] == 0


def test_executors_are_shown_only_where_the_load_decides_on_them():
    assert not any(name.startswith("tiercel_executors_wanted") for name in exposed())

    found = exposed(executors=ExecutorReport(wanted=7, present=4, refused=3, why="load"))
    assert [
        found[f'tiercel_executors_{each}{{topology="t"}}']
        for each in ("wanted", "present", "refused")
    ] == [7, 4, 3]


def health(found: dict[str, float]) -> dict[tuple[str, str], float]:
    """{(kind, level): number of findings}."""
    pattern = re.compile(r'tiercel_health\{kind="(\w+)",level="(\w+)",topology="t"\}')
    matches = {pattern.fullmatch(name): value for name, value in found.items()}
    return {match.groups(): value for match, value in matches.items() if match}


def test_each_kind_of_finding_is_a_series_whether_there_is_one_or_not():
    found = health(exposed())
    assert {kind for kind, _ in found} == {kind.value for kind in FindingKind}
    assert all(found[kind.value, kind.level.label] >= 0 for kind in FindingKind)
    assert found["spout_without_worker", "in_trouble"] == 1
    assert found["task_without_process", "in_trouble"] == 1
    assert found["dead_letters", "strained"] == 0


def test_while_redis_is_away_only_the_findings_about_servers_are_known():
    found = exposed(problems=ServerProblems(redis="Redis does not answer"))
    assert found['tiercel_up{server="redis"}'] == 0
    assert found['tiercel_up{server="rabbitmq"}'] == 1, "it is not gone because Redis is"
    assert {kind for kind, _ in health(found)} == {kind.value for kind in OF_SERVERS}
    assert health(found)["redis_away", "in_trouble"] == 1
    assert found['tiercel_topology_ordered{order="active",topology="t"}'] == 1


def test_the_order_that_stands_is_exposed_also_for_a_topology_that_does_not_run():
    def ordered(**changed):
        found = exposed(**changed)
        name = 'tiercel_topology_ordered{{order="{}",topology="t"}}'
        return [found[name.format(order.value)] for order in State]

    assert ordered(driver=False) == [1, 0, 0]
    assert ordered(driver=False, state=State.DEACTIVATED) == [0, 1, 0]
    assert ordered(driver=False, killed=True) == [0, 0, 1]
    assert ordered(driver=True, killed=True) == [1, 0, 0], "it was started again"


def test_alerts_and_dashboard_ask_only_for_what_there_is():
    names = {name.partition("{")[0] for name in exposed()}
    alerts = yaml.safe_load((COMPOSE / "alerts.yml").read_text())["groups"][0]["rules"]
    dashboard = json.loads((COMPOSE / "grafana-dashboard.json").read_text())
    questions = [rule["expr"] for rule in alerts]
    questions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for question in questions for name in re.findall(r"tiercel_\w+", question)}
    assert asked
    assert asked <= names


def test_alerts_and_dashboard_ask_only_for_findings_that_there_are():
    known = {kind.value for kind in FindingKind}
    for name in ("alerts.yml", "grafana-dashboard.json"):
        asked = re.findall(r'kind=~?\\?"([^"\\]+)', (COMPOSE / name).read_text())
        assert {kind for each in asked for kind in each.split("|")} <= known


def test_the_panels_of_the_dashboard_do_not_cover_each_other():
    panels = json.loads((COMPOSE / "grafana-dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {(panel["gridPos"]["w"], panel["gridPos"]["h"]) for panel in panels} == {(12, 8)}
