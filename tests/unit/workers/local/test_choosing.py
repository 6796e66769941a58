"""Commands without an address find the private run that is meant, or list the existing ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from typer.testing import CliRunner

from tiercel.workers.check import findings
from tiercel.workers.cli.app import app
from tiercel.workers.config import Settings
from tiercel.workers.errors import UsageError
from tiercel.workers.local.addresses import claimed, with_run

NOTHING = Settings()


@pytest.fixture(autouse=True)
def no_runs_yet(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def servers_of(name: str) -> Settings:
    return Settings(amqp=f"amqp://u:p@{name}/", redis=f"redis://:p@{name}/0")


@pytest.fixture
def orders() -> Iterator[None]:
    with claimed("orders", ("new", "done")) as claim, claim.announced(servers_of("orders")):
        yield


@pytest.fixture
def letters() -> Iterator[None]:
    with claimed("letters", ("post", "done")) as claim, claim.announced(servers_of("letters")):
        yield


def host(**meant) -> str:
    settings, run = with_run(NOTHING, **meant)
    assert run is not None
    assert settings == servers_of(run.topology)
    return run.topology


def test_without_a_run_the_settings_are_what_they_were():
    assert with_run(NOTHING) == (NOTHING, None)


def test_addresses_that_are_given_go_before_a_run_unless_it_is_named(orders):
    given = Settings(amqp="amqp://u:p@elsewhere/")
    assert with_run(given, topology="orders", queues=["new"]) == (given, None)
    settings, _ = with_run(given, run="orders")
    assert settings == servers_of("orders")


def test_the_only_run_is_meant_by_whatever_is_asked(orders):
    assert host() == "orders"
    assert host(topology="ordrs") == "orders"
    assert host(queues=["other"]) == "orders"


@pytest.mark.parametrize(
    ("meant", "found"),
    [
        ({"run": "letters"}, "letters"),
        ({"topology": "letters"}, "letters"),
        ({"queues": ["post"]}, "letters"),
        ({"queues": ["new", "done"]}, "orders"),
        ({"queues": ["new"], "run": "letters"}, "letters"),
    ],
)
def test_of_several_the_one_is_meant_that_has_what_is_named(orders, letters, meant, found):
    assert host(**meant) == found


@pytest.mark.parametrize(
    "meant",
    [{}, {"topology": "ordrs"}, {"queues": ["done"]}, {"queues": ["new", "post"]}, {"run": "x"}],
)
def test_of_several_none_is_guessed_and_all_are_named(orders, letters, meant):
    with pytest.raises(UsageError) as raised:
        with_run(NOTHING, **meant)
    said = str(raised.value)
    assert "letters (process " in said
    assert "orders (process " in said
    assert "\n" not in said
    assert ":p@" not in said


@pytest.mark.parametrize("name", ["ordrs", "word-count"])
def test_only_its_own_run_is_meant_where_other_runs_are_none_of_its_business(orders, letters, name):
    assert with_run(NOTHING, topology=name, others=False) == (NOTHING, None)
    assert host(topology="orders", others=False) == "orders"
    with claimed("starts"):
        assert with_run(NOTHING, topology=name, others=False) == (NOTHING, None)


@pytest.mark.parametrize("module", ["tiercel.examples.word_count", "missing"])
def test_a_check_is_not_stopped_by_private_runs_of_other_topologies(orders, letters, module):
    said = list(findings(NOTHING, f"{module}:topology"))
    assert [each.said for each in said if each.subject == "settings"] == [
        "no server is named: only tiercel run works, with private servers"
    ]
    result = CliRunner().invoke(app, ["check", f"{module}:topology"])
    assert "several runs" not in result.output
    assert "no server is named" in result.output


def test_a_run_that_is_named_and_not_there_is_not_replaced_by_another(orders):
    with pytest.raises(UsageError, match=r"no private run of 'letters' here; there are orders \("):
        with_run(NOTHING, run="letters")


def test_a_run_whose_servers_still_start_is_named():
    with ExitStack() as stack:
        stack.enter_context(claimed("orders"))
        with pytest.raises(UsageError, match=r"orders \(process \d+\) has no servers yet"):
            with_run(NOTHING)


def test_a_run_on_servers_that_were_named_is_no_private_one(orders):
    with claimed("letters", at="redis://elsewhere/0"):
        assert host() == "orders"


def test_a_run_on_servers_that_were_named_has_none_to_wait_for():
    with claimed("letters", at="redis://elsewhere/0"):
        assert with_run(NOTHING) == (NOTHING, None)
