"""The examples with batches, in the test kit."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.reasons import unplaced
from tiercel import TopologyBuilder
from tiercel.examples import bulk_insert, model
from tiercel.testing import FeederSpout, LocalCluster, feeder_for, with_spouts


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model._loaded.clear()


def guesses(*texts: str, parallelism: int = 1) -> tuple[LocalCluster, list[list[Any]]]:
    """Return the model's guess for each text, in order."""
    spec = model.topology()
    guess = spec.bolts["guess"]
    builder = TopologyBuilder("guesses")
    feeder = FeederSpout(fields="text string")
    for text in texts:
        feeder.feed([text], text)
    builder.set_spout("lines", feeder)
    bolt = builder.set_bolt("guess", guess.bolt, parallelism, config=guess.overrides)
    bolt.shuffle_grouping("lines")
    with LocalCluster(builder.build()) as cluster:
        cluster.run_until_idle()
        return cluster, sorted(cluster.read_tuples("guess"))


def test_the_model_knows_the_languages_of_new_lines() -> None:
    cluster, found = guesses(
        "they were there when the falcon came back",
        "der habicht ist wieder auf dem turm",
        "les faucons sont dans la tour de pierre",
        "   ",
    )
    assert [row[1] for row in found] == ["German", "French", "English"]
    assert all(0.4 < probability <= 1 for _, _, probability in found)
    assert cluster.fail_reasons("lines") == ["guess[2]: there is no text"]
    assert len(cluster.acked("lines")) == 3


def test_a_batch_of_the_model_is_as_its_lines_one_by_one() -> None:
    model.write_weights(Path("here.npz"))
    languages = model.model_at("here.npz")
    texts = ["a", "", "où", "the falcon"]
    assert languages.guess(texts) == [languages.guess([text])[0] for text in texts]


def test_a_process_loads_the_weights_once_for_all_its_tasks(monkeypatch) -> None:
    loaded = []
    load = model.Languages.load
    monkeypatch.setattr(model.Languages, "load", lambda path: loaded.append(path) or load(path))
    guesses(*map(str, range(100)), parallelism=4)
    model.write_weights(Path("here.npz"))
    threads = [threading.Thread(target=model.model_at, args=["here.npz"]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [Path(path).name for path in loaded] == ["languages.npz", "here.npz"]


def test_readings_are_stored_once_and_one_that_the_database_refuses_fails_alone() -> None:
    topology = with_spouts(
        bulk_insert.topology(), {"readings": feeder_for(bulk_insert.topology(), "readings")}
    )
    with LocalCluster(topology) as cluster:
        feeder = cluster.spout("readings")
        assert isinstance(feeder, FeederSpout)
        for number in [*range(600), 7]:
            feeder.feed([number, "mews", -300.0 if number == 9 else 19.5], number)
        cluster.run_until_idle()
        assert cluster.failed("readings") == [9]
        assert cluster.fail_reasons("readings")[0].startswith("store[2]: IntegrityError: CHECK")
    with closing(sqlite3.connect("readings.db")) as database:
        stored = database.execute("SELECT id, sensor, celsius FROM readings ORDER BY id").fetchall()
    assert stored == [(number, "mews", 19.5) for number in range(600) if number != 9]


def test_a_database_that_is_away_fails_the_batch_and_is_asked_once() -> None:
    asked = []

    class Locked:
        def __enter__(self):
            asked.append(1)
            raise sqlite3.OperationalError("database is locked")

        def __exit__(self, *_):
            pass

    class Away(bulk_insert.Store):
        def prepare(self, config, context):
            self.database = Locked()

        def cleanup(self):
            pass

    builder = TopologyBuilder("away")
    feeder = FeederSpout(fields="id long")
    for number in range(10):
        feeder.feed([number], number)
    builder.set_spout("readings", feeder)
    builder.set_bolt("store", Away()).shuffle_grouping("readings")
    with LocalCluster(builder.build()) as cluster:
        cluster.run_until_idle()
        reasons = cluster.fail_reasons("readings")
    assert {*map(unplaced, reasons)} == {"store[2]: OperationalError: database is locked"}
    assert (len(reasons), len(asked)) == (10, 1)
