"""The page of ``tiercel monitor`` in a real browser at three widths, light and dark, with one and
with fifty components: its first sight, and that nothing is cut off or overlaps.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.support.broker import put, unique, wait_ready
from tests.support.monitors import chromium, give_token, monitor, rows, visit
from tests.support.staged import Part, Play, orders, staged, wide
from tests.support.waiting import wait_until
from tiercel import QueueSpout, TopologyBuilder, WorkQueue, declare_queue
from tiercel.workers.control.redis_control import RedisControl
from tiercel.workers.control.registry import Registry

pytestmark = pytest.mark.timeout(900)

WIDTHS = (360, 800, 1440)
# Texts of the page whose colour has too little contrast, {text: contrast}.
PALE = """
() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const solid = (colour) => !/, 0(\\.\\d+)?\\)$|transparent/.test(colour);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (solid(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = {};
  for (const each of document.querySelectorAll('.tiercel-page *')) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !each.getClientRects().length || each.closest('svg')) continue;
    const [one, other] = [light(getComputedStyle(each).color), light(behind(each))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.0) found[each.textContent.trim().slice(0, 40)] = contrast;
  }
  return found;
}
"""
# Texts of the graph's nodes that reach out of their boxes.
SPILT = """
() => [...document.querySelectorAll('.tiercel-graph .node')].flatMap((node) => {
  const box = node.querySelector('.box').getBoundingClientRect();
  return [...node.querySelectorAll('text')]
    .filter((text) => text.getBoundingClientRect().right > box.right + 1)
    .map((text) => text.textContent);
})
"""
# True if nothing covers the element's text.
ON_TOP = """
(each) => {
  const box = each.getBoundingClientRect();
  return document.elementFromPoint(box.x + 20, box.y + box.height / 2) === each;
}
"""
# The newest time of a chart, and the time of the figures, in seconds of the day.
CLOCKS = """
() => {
  const seconds = (text) => {
    const last = text.match(/\\d\\d:\\d\\d:\\d\\d/g).at(-1);
    const [hours, minutes, rest] = last.split(':').map(Number);
    return hours * 3600 + minutes * 60 + rest;
  };
  const found = (selector) => document.querySelector(selector).textContent;
  return [seconds(found('.tiercel-chart svg')), seconds(found('.tiercel-first .tiercel-faint'))];
}
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as open_page:
        yield open_page


@pytest.fixture(scope="module", params=[1, 5, 50])
def play(request, services):
    """Return a healthy topology with this many components."""
    name = unique(f"staged{request.param}")
    made = {1: lambda: Play(name=name), 5: lambda: orders(name), 50: lambda: wide(name)}
    declare_queue(services.amqp_url, WorkQueue(name=name))
    if request.param == 5:
        put(
            services.amqp_url,
            f"{name}.dead",
            *(f'{{"order": {at}}}'.encode() for at in range(5)),
            headers={"x-tiercel-reason": "ValueError: order 2001: amount None (orders.py:12)"},
        )
    with staged(services.redis_url, made[request.param]()) as play:
        yield play


@pytest.fixture(scope="module")
def url(services, tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitor")
    with monitor(folder, services.amqp_url, services.redis_url, services.management_url) as url:
        yield url


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(
            width,
            dark,
            id=f"{width}-{'dark' if dark else 'light'}",
            marks=pytest.mark.slow if dark and width > min(WIDTHS) else (),
        )
        for width in WIDTHS
        for dark in (False, True)
    ],
)
def test_nothing_is_cut_or_pale_at_any_width(url, play, browser, width, dark, pytestconfig):
    page = browser(f"{url}?topology={play.name}", width=width, dark=dark)
    graph = page.get_by_test_id("graph")
    expect(graph.locator("g.node")).to_have_count(1 + len(play.parts))
    wait_until(lambda: page.locator(".tiercel-chart path[d^=M]").count() >= 3, 30, "the charts")
    folder = pytestconfig.getoption("--screenshots")
    if folder:
        page.screenshot(
            path=f"{folder}/look-{len(play.parts)}-{width}-{'dark' if dark else 'light'}.png",
            full_page=True,
        )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(SPILT) == []
    assert page.evaluate(PALE) == {}
    assert page.locator(".tiercel-head").bounding_box()["height"] < 64, "one row"
    assert page.get_by_test_id("badge").bounding_box()["y"] < 120, "at first sight"
    page.context.close()


def test_charts_and_texts_have_the_same_clock_in_a_browser_of_another_time_zone(
    url, services, browser
):
    name = unique("zone")
    with staged(services.redis_url, Play(name=name)):
        page = browser(f"{url}?topology={name}", zone="Asia/Kolkata")
        chart = page.get_by_test_id("throughput").locator("svg")
        expect(chart.get_by_text(re.compile(r"\d\d:\d\d:\d\d")).first).to_be_visible()
        drawn, said = page.evaluate(CLOCKS)
        distance = timedelta(seconds=abs(drawn - said))
        assert min(distance, timedelta(days=1) - distance) < timedelta(minutes=5)
        page.context.close()


@pytest.mark.parametrize("title", ["Bolts", "Bolt tasks"])
def test_a_long_name_leaves_room_for_the_figures_on_a_phone(url, services, browser, title):
    name, bolt = unique("long"), "normalise-customer-addresses-and-geocode-them-in-the-south"
    with staged(services.redis_url, Play(name=name, parts={bolt: Part(source="orders")})):
        page = browser(f"{url}?topology={name}", width=400)
        table = page.get_by_test_id(title)
        first = table.locator("tbody td", has_text=bolt).first
        expect(first).to_be_visible()
        table.locator(".q-table__middle").evaluate("each => { each.scrollLeft = 200 }")
        box, whole = first.bounding_box(), table.bounding_box()
        assert box["x"] == whole["x"], "it stays while the figures are moved"
        assert box["width"] < whole["width"] / 2
        heading = table.get_by_role("columnheader", name="bolt", exact=True)
        heading.scroll_into_view_if_needed()
        table.locator(".q-table__middle").evaluate("each => { each.scrollLeft = 200 }")
        assert heading.evaluate(ON_TOP)
        page.context.close()


@pytest.mark.parametrize("part", ["vue", "nicegui.js", "topology_graph"])
def test_a_page_that_is_cut_off_while_it_loads_is_loaded_again(url, services, browser, part):
    """Chromium itself does so when a container is started beside it."""
    left = [2]

    def cut_off(route):
        if left[0] and part in route.request.url:
            left[0] -= 1
            route.abort("connectionreset")
        else:
            route.continue_()

    name = unique("cut-off")
    before = len(browser.wrong)
    with staged(services.redis_url, Play(name=name)):
        page = browser("about:blank")
        page.route("**/_nicegui/**", cut_off)
        page.goto(f"{url}?topology={name}")
        expect(page.get_by_test_id("graph").locator("g.node")).to_have_count(1)
        assert left == [0]
        page.context.close()
    # The page's other scripts complained about the missing one.
    del browser.wrong[before:]


def test_the_first_screen_names_the_bottleneck_and_what_fails(url, services, browser):
    name = unique("hurts")
    with staged(services.redis_url, orders(name)):
        page = browser(f"{url}?topology={name}", width=1440)
        hurts = page.get_by_test_id("hurts")
        expect(hurts).to_contain_text("enrich is the bottleneck: its 8 tasks work")
        expect(hurts).to_contain_text("1,005 tuples wait for it")
        expect(hurts).to_contain_text("validate fails")
        expect(page.get_by_test_id("badge")).to_have_text("strained")
        graph = page.get_by_test_id("graph")
        expect(graph.locator("g.hot")).to_contain_text("enrich")
        expect(graph.locator("g.failing")).to_contain_text("validate")
        expect(graph.locator("g.failing")).to_contain_text("failed")
        expect(graph).to_contain_text(re.compile(r"\d+/s · \d+ ms"))
        for key in ("throughput", "latency", "depths"):
            box = page.get_by_test_id(key).bounding_box()
            assert box["y"] + box["height"] < 900, f"{key} is on the first screen"
        box = graph.bounding_box()
        assert box["y"] + box["height"] < 900, "and so is the graph"


def test_a_topology_that_was_forgotten_and_comes_back_is_judged_again(url, services, browser):
    name = unique("back")
    with (
        staged(services.redis_url, orders(name)) as play,
        closing(Registry(services.redis_url)) as registry,
    ):
        page = browser(f"{url}?topology={name}")
        expect(page.get_by_test_id("badge")).to_have_text("strained")
        expect(page.get_by_test_id("deactivate")).to_be_visible()
        registry.forget(name)
        expect(page.get_by_test_id("badge")).to_have_text("?")
        expect(page.get_by_test_id("state")).to_have_text("there is no such topology")
        expect(page.get_by_test_id("hurts")).to_be_empty()
        expect(page.get_by_test_id("deactivate")).to_be_hidden()
        for gone in ("tile failed", "graph", "throughput"):
            expect(page.get_by_test_id(gone)).to_be_hidden()
        registry.announce(play.topology())
        expect(page.get_by_test_id("badge")).to_have_text("strained")
        expect(page.get_by_test_id("deactivate")).to_be_visible()
        expect(page.get_by_test_id("tile failed")).to_be_visible()


def test_a_click_opens_the_component_and_its_errors(url, services, browser):
    name = unique("opened")
    with staged(services.redis_url, orders(name)):
        page = browser(f"{url}?topology={name}", width=1440)
        side = page.get_by_test_id("component")
        page.get_by_test_id("graph").locator("g.node", has_text="enrich").click()
        expect(side).to_contain_text("bolt enrich")
        expect(page.get_by_test_id("doing")).to_contain_text("1,005 tuples wait for it")
        wait_until(lambda: len(rows(page, "Its tasks")) == 8, 30, "its tasks")
        assert {row["process"] for row in rows(page, "Its tasks")} == {"node-2, pid 4002"}
        assert rows(page, "Its tasks")[0]["waiting"] == "1,005"
        side.get_by_role("button", name="close").click()
        expect(side).to_be_hidden()
        page.get_by_test_id("hurts").get_by_text("validate fails").click()
        expect(side).to_contain_text("bolt validate")
        wait_until(lambda: rows(page, "Its errors"), 30, "its errors")
        [fault] = rows(page, "Its errors")
        assert "amount None" in fault["reason"]
        side.get_by_text("amount None").click()
        page.get_by_test_id("traceback button").click()
        give_token(page)
        expect(page.get_by_test_id("traceback")).to_contain_text("orders.py, line 12")


@pytest.mark.parametrize("width", [390, 1400])
def test_the_first_page_lists_all_topologies_the_worst_first(
    url, services, browser, width, pytestconfig
):
    names = {"fine": unique("a-fine"), "strained": unique("b-strained"), "down": unique("c-down")}
    with (
        staged(services.redis_url, Play(name=names["fine"])),
        staged(services.redis_url, orders(names["strained"])),
        closing(Registry(services.redis_url)) as registry,
    ):
        builder = TopologyBuilder(names["down"])
        builder.set_spout("orders", QueueSpout(names["down"]))
        registry.announce(builder.build())
        page = browser(url, width=width)
        table = page.get_by_test_id("Topologies")

        def shown():
            return {
                row["topology"]: row
                for row in rows(page, "Topologies")
                if row["topology"] in names.values()
            }

        wait_until(lambda: len(shown()) == 3, 30, "all three")
        wait_until(lambda: shown()[names["fine"]]["acked/s"] != "0.0", 30, "its pace")
        wait_until(
            lambda: (
                [shown()[name]["health"] for name in names.values()]
                == ["well", "strained", "in trouble"]
            ),
            30,
            "the health of each",
        )
        assert list(shown()) == [names["down"], names["strained"], names["fine"]]
        assert shown()[names["fine"]]["worst problem"] == ""
        assert "nothing runs" in shown()[names["down"]]["worst problem"]
        # Its errors are counted at once, its load over some seconds.
        wait_until(
            lambda: "enrich" in shown()[names["strained"]]["worst problem"], 30, "the bottleneck"
        )
        if folder := pytestconfig.getoption("--screenshots"):
            page.screenshot(path=f"{folder}/look-all-{width}.png")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(PALE) == {}
        table.get_by_role("link", name=names["strained"]).click()
        expect(page.get_by_test_id("state")).to_contain_text(names["strained"])
        page.get_by_role("link", name="all topologies").click()
        expect(table.get_by_role("link", name=names["down"])).to_be_visible()
        page.go_back()
        expect(page.get_by_test_id("state")).to_contain_text(names["strained"])


def test_each_component_error_and_dead_letter_has_an_address(url, services, browser):
    name = unique("addressed&more?")
    declare_queue(services.amqp_url, WorkQueue(name=name))
    put(services.amqp_url, f"{name}.dead", b"one", b"two")
    with staged(services.redis_url, orders(name)):
        page = browser(f"{url}?{urlencode({'topology': name})}", width=1400)
        page.get_by_test_id("graph").locator("g.node", has_text="validate").click()
        expect(page).to_have_url(re.compile("component=validate"))
        component = page.url
        page.get_by_test_id("component").get_by_text("amount None").click()
        expect(page).to_have_url(re.compile("error="))
        error = page.url
        page.go_back()
        expect(page.get_by_test_id("component")).to_contain_text("bolt validate")
        expect(page).to_have_url(component)
        page.get_by_role("button", name="close").click()
        expect(page).not_to_have_url(re.compile("component="))
        letters = page.get_by_test_id("Dead letters")
        letters.get_by_role("button", name="whole body").nth(1).click()
        give_token(page)
        expect(page.get_by_test_id("whole body")).to_have_text("two")
        expect(page).to_have_url(re.compile("letter="))
        letter = page.url

        # A colleague opens the links.
        other = browser(component, width=390)
        expect(other.get_by_test_id("component")).to_contain_text("bolt validate")
        visit(other, error)
        expect(other.get_by_text("validate: ValueError")).to_be_visible()
        other.go_back()
        expect(other.get_by_test_id("component")).to_contain_text("bolt validate")
        other.go_forward()
        expect(other.get_by_text("validate: ValueError")).to_be_visible()
        expect(other.get_by_test_id("traceback")).to_be_hidden()
        visit(other, letter)
        expect(other.get_by_text("dead letter").last).to_be_visible()
        other.get_by_test_id("whole body button").click()
        give_token(other)
        expect(other.get_by_test_id("whole body")).to_have_text("two")
        for gone, said in (
            (error[:-8] + "00000000", "is no longer among the last errors"),
            (letter[:-4] + "0000", "is not among the oldest 50"),
            (component + "x", "the topology has no such component"),
            (letter.replace("queue=", "queue=x"), "this topology does not read the queue"),
        ):
            visit(other, gone)
            expect(other.get_by_text(said)).to_be_visible()


def test_chosen_letters_are_deleted_once_it_is_confirmed(url, services, browser):
    name = unique("deleted")
    declare_queue(services.amqp_url, WorkQueue(name=name))
    reason = {"x-tiercel-reason": "ValueError: amount None"}
    put(services.amqp_url, f"{name}.dead", b"one")
    put(services.amqp_url, f"{name}.dead", b"two", b"three", headers=reason)
    with staged(services.redis_url, orders(name)):
        page = browser(f"{url}?topology={name}", width=1400)
        letters = page.get_by_test_id("Dead letters").locator("tbody tr")
        expect(letters).to_have_count(3)
        letters.nth(0).get_by_role("checkbox").click()
        page.get_by_label("reason contains").fill("AMOUNT")
        expect(letters).to_have_count(2)
        # A letter that is not shown is not selected.
        expect(page.get_by_test_id("delete chosen")).to_be_hidden()
        expect(page.get_by_test_id("requeue all")).to_be_hidden()
        letters.nth(1).get_by_role("checkbox").click()
        expect(page.get_by_test_id("delete chosen")).to_have_text("delete the 1 chosen")
        page.get_by_test_id("delete chosen").click()
        expect(page.get_by_text(f"Delete 1 dead letter of {name} for good?")).to_be_visible()
        give_token(page)
        expect(page.get_by_text("deleted 1 dead letter")).to_be_visible()
        expect(letters).to_have_count(1)
        page.get_by_label("reason contains").fill("")
        expect(letters).to_have_count(2)
        expect(page.get_by_test_id("requeue all")).to_be_visible()
        letters.nth(1).get_by_role("checkbox").click()
        page.get_by_test_id("delete chosen").click()
        page.get_by_role("button", name="cancel").click()
        wait_ready(services.amqp_url, f"{name}.dead", 2)
        page.get_by_test_id("delete chosen").click()
        page.get_by_test_id("token ok").click()
        wait_ready(services.amqp_url, f"{name}.dead", 1)


def test_what_was_typed_and_chosen_stays(url, services, browser):
    name = unique("kept")
    declare_queue(services.amqp_url, WorkQueue(name=name))
    put(services.amqp_url, f"{name}.dead", b"one", b"two")
    with staged(services.redis_url, orders(name)):
        page = browser(f"{url}?topology={name}", width=800)
        letters = page.get_by_test_id("Dead letters")
        expect(letters.locator("tbody tr")).to_have_count(2)
        letters.locator("tbody tr").nth(1).get_by_role("checkbox").click()
        chosen = page.get_by_test_id("requeue chosen")
        expect(chosen).to_have_text("put the 1 chosen back into the queue")
        put(services.amqp_url, f"{name}.dead", b"three")
        expect(letters.locator("tbody tr")).to_have_count(3)
        expect(chosen).to_have_text("put the 1 chosen back into the queue")
        chosen.click()
        expect(page.get_by_text(f"Requeue 1 dead letter to '{name}'?")).to_be_visible()
        give_token(page, "nearly right")
        expect(page.get_by_label("token")).to_have_value("nearly right")
        give_token(page)
        expect(page.get_by_text(f"put 1 message back into {name}")).to_be_visible()
        expect(letters.locator("tbody tr")).to_have_count(2)


def test_a_bolt_is_paused_and_resumed_with_the_token(url, services, browser):
    name = unique("paused")
    with (
        staged(services.redis_url, orders(name)),
        closing(RedisControl(services.redis_url, name)) as control,
    ):
        page = browser(f"{url}?topology={name}&component=enrich", width=1400)
        button = page.get_by_test_id("component").get_by_test_id("pause")
        expect(button).to_have_text("pause: take no more tuples")
        button.click()
        assert control.paused() == frozenset()
        give_token(page)
        wait_until(lambda: control.paused() == {"enrich"}, 30, "the order")
        expect(page.get_by_test_id("doing")).to_contain_text("is paused by order since")
        expect(page.get_by_test_id("hurts")).to_contain_text("enrich is paused by order")
        expect(page.get_by_test_id("hurts")).not_to_contain_text("bottleneck")
        expect(button).to_have_text("resume: take tuples again")
        button.click()
        wait_until(lambda: control.paused() == frozenset(), 30, "the order")
        expect(button).to_have_text("pause: take no more tuples")
        page.context.close()
