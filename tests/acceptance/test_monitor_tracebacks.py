"""The traceback of an error on the page of ``tiercel monitor``, in a real browser."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from tests.support.broker import unique
from tests.support.monitors import chromium, give_token, monitor
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.acker.metrics.contract import ErrorReport, TraceReport, trace_counter
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.workers.control.registry import Registry

pytestmark = pytest.mark.timeout(900)

NOW = datetime.now(UTC)
REASON = "KeyError: 'deep' (helpers.py:12)"


@pytest.fixture
def name(services):
    """A topology whose bolt has raised three times."""
    name = unique("traced")
    builder = TopologyBuilder(name)
    builder.set_spout("orders", QueueSpout(name))
    builder.set_bolt("enrich", BasicBolt()).shuffle_grouping("orders")
    with closing(Registry(services.redis_url)) as registry:
        registry.announce(builder.build())
    with closing(RedisMetrics(services.redis_url, name)) as metrics:
        metrics.report(
            [
                ErrorReport(at=NOW, component="enrich", task=2, message=REASON),
                ErrorReport(
                    at=NOW - timedelta(seconds=5), component="orders", task=1, message="timeout"
                ),
            ]
        )
        metrics.trace(
            [
                TraceReport(
                    at=NOW,
                    component="enrich",
                    task=2,
                    kind="KeyError",
                    place="helpers.py:12",
                    reason=REASON,
                    text="Traceback:\n  <img src=x> price\nKeyError: 'deep' at redis://:pw@host",
                )
            ]
        )
        metrics.add("enrich", 2, {trace_counter("KeyError", "helpers.py:12"): 3})
    return name


def test_an_error_that_is_pressed_shows_its_traceback_once_the_token_is_given(
    services, name, tmp_path
):
    with (
        chromium() as open_page,
        monitor(tmp_path, services.amqp_url, services.redis_url, services.management_url) as url,
    ):
        page = open_page(f"{url}?topology={name}")
        errors = page.get_by_test_id("Errors")
        errors.get_by_text(REASON).click()
        expect(page.get_by_text("3 times")).to_contain_text(f"enrich: {REASON}")
        expect(page.get_by_test_id("traceback")).to_be_hidden()
        page.get_by_test_id("traceback button").click()
        give_token(page)
        expect(page.get_by_test_id("traceback")).to_have_text(
            "Traceback:\n  <img src=x> price\nKeyError: 'deep' at redis://:***@host"
        )
        heading = page.get_by_text("3 times")
        expect(heading).to_contain_text(f"enrich: {REASON}")
        page.get_by_role("button", name="close").click()
        errors.get_by_text("timeout").click()  # the token was entered
        expect(page.get_by_text("no traceback is kept of this error")).to_be_visible()
