"""``tiercel monitor`` in a separate process, and a real browser for its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Error, expect, sync_playwright

from tests.support.waiting import wait_until
from tiercel.compose.install import find_system_program, install_missing

TOKEN = "a token of the tests"
_CUT_OFF = "ERR_NETWORK_CHANGED"
_OURS = re.compile(r"\w+://(127\.0\.0\.1|localhost)[:/]")
_VISITS = 20


@contextmanager
def monitor(folder, amqp_url, redis_url, management_url=None, options=(), most_files=None):
    """Yield the address of the page; the log is monitor.log in ``folder``.

    ``most_files`` is its limit on open files.
    """
    environment = {
        **os.environ,
        "TIERCEL_AMQP": amqp_url,
        "TIERCEL_REDIS": redis_url,
        "TIERCEL_TOKEN": TOKEN,
    }
    if management_url:
        environment["TIERCEL_MANAGEMENT"] = management_url
    log = folder / "monitor.log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "tiercel", "monitor", "--port", "0", *options]
        if most_files:
            command = ["sh", "-c", f'ulimit -n {most_files} && exec "$@"', "sh", *command]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        found = wait_until(
            lambda: re.search(r"http://[0-9.:]+/", log.read_text()), 300, "the monitor to serve"
        )
        yield found[0].replace("0.0.0.0", "127.0.0.1")
        assert "Traceback" not in log.read_text()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def port_of(url):
    return int(re.search(r":(\d+)/", url)[1])


def pid_of(url):
    """Return the process that listens on this address's port, found by the socket's number."""
    sockets = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port_of(url):04X}")
    }
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink()))
        except OSError:
            continue
        if found and found[1] in sockets:
            return int(entry.parts[2])
    raise AssertionError(f"nobody listens at {url}")


def rss_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


@contextmanager
def chromium(*arguments):
    """``open_page(url, width=…, dark=…, zone=…)``; complaints of the pages and foreign requests
    fail the test.

    So does anything that the page's content security policy forbids, which our own page never does.
    A test that provokes such events finds them in ``open_page.wrong``.
    """
    install_missing("chromium")
    # The default of five seconds is too short: the monitor's look and the page's take as long.
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        # Without its sandbox, which needs rights that root and containers lack; it loads only our
        # page.
        browser = playwright.chromium.launch(
            executable_path=find_system_program("chromium"), args=["--no-sandbox", *arguments]
        )
        wrong = []

        def open_page(url, width=1280, *, dark=False, zone=None):
            context = browser.new_context(
                timezone_id=zone,
                viewport={"width": width, "height": 900},
                color_scheme="dark" if dark else "light",
                is_mobile=width < 600,
            )
            page = context.new_page()
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "console",
                lambda said: "Content Security Policy" in said.text and wrong.append(said.text),
            )
            page.on(
                "request", lambda request: _OURS.match(request.url) or wrong.append(request.url)
            )
            visit(page, url, wrong)
            return page

        open_page.wrong = wrong
        yield open_page
        browser.close()
        assert not [each for each in wrong if not each.startswith(("data:", "blob:"))]


def visit(page, url, wrong=None):
    """Load a page and return the answer to its own request.

    While a network of this machine comes or goes, for example a container's, Chromium aborts
    whatever it is loading, even from loopback. Then the page is loaded again, as it reloads itself
    after a moment, and its complaints in ``wrong`` are dropped.
    """
    wrong = [] if wrong is None else wrong
    for _ in range(_VISITS):
        before = len(wrong)
        answer, cut_off = _visit_once(page, url)
        if not cut_off:
            return answer
        del wrong[before:]
    raise AssertionError(f"{url} was cut off {_VISITS} times")


def _visit_once(page, url):
    failures = []

    def note(request):
        failures.append(request.failure or "")

    answer = None
    page.on("requestfailed", note)
    try:
        answer = page.goto(url)
    except Error as error:
        if _CUT_OFF not in str(error):
            raise
        failures.append(str(error))
    finally:
        page.remove_listener("requestfailed", note)
    return answer, any(_CUT_OFF in failure for failure in failures)


def give_token(page, token=TOKEN):
    """Enter the token, which the page requires before it shows bodies or changes anything."""
    page.get_by_label("token").fill(token)
    page.get_by_test_id("token ok").click()


def rows(page, title):
    """Return the rows of a table as {column: text}."""
    table = page.get_by_test_id(title)
    columns = table.locator("thead th").all_inner_texts()
    cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    return [dict(zip(columns, row, strict=True)) for row in cells if len(row) == len(columns)]


def number(text):
    return int(text.replace(",", ""))
