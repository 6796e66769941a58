"""Tuples that a bolt task has taken and not committed: in order, split anywhere, and released
exactly once.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tiercel.acker.errors import BadChunkError
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, decode, encode
from tiercel.acker.inbox.contract import Entry
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.running.backlog import Backlog, Share, part_of, rows_in, rows_left

ROUTE = Route(component="spout", stream="default", source_task=1, target_task=2)


def chunk_of(*numbers: int) -> Chunk:
    count = len(numbers)
    ids = np.array(numbers, np.uint64)
    lineage = Lineage(
        offsets=np.arange(count + 1, dtype=np.int32), roots=ids + np.uint64(1000), edges=ids
    )
    return Chunk(
        route=ROUTE, values=Schema.parse("n long").batch([[n] for n in numbers]), lineage=lineage
    )


def entry(position: int, *numbers: int) -> Entry:
    return Entry(position=f"{position}-0", tuples=len(numbers), payload=encode(chunk_of(*numbers)))


def read(payload: bytes) -> tuple[Chunk | None, list[int]]:
    try:
        return decode(payload), []
    except BadChunkError:
        return None, [77]


def backlog(*entries: Entry, done: dict[str, bytes] | None = None) -> Backlog:
    made = Backlog(done or {})
    made.add(entries, read)
    return made


def numbers_in(shares: list[Share]) -> list[int]:
    return [n for share in shares for n in share.chunk.values.column(0).to_pylist()]


def test_the_first_tuples_come_first_over_the_borders_of_entries() -> None:
    one = backlog(entry(1, 10, 11, 12), entry(2, 20, 21))
    assert one.tuples == 5
    assert one.oldest == "1-0"
    assert numbers_in(one.first(4)) == [10, 11, 12, 20]
    assert numbers_in(one.first(100)) == [10, 11, 12, 20, 21]
    assert one.first(0) == []


def test_a_step_covers_whole_entries_and_all_done_rows_of_the_others() -> None:
    one = backlog(entry(1, 10, 11), entry(2, 20, 21, 22))
    shares = one.first(3)
    covered = one.take_out(shares, step=1, ticks=0)
    assert covered.whole == ["1-0"]
    assert rows_in(covered.part["2-0"]).tolist() == [0]
    assert covered.tuples == 2
    second = one.first(1)
    covered = one.take_out(second, step=2, ticks=0)
    assert rows_in(covered.part["2-0"]).tolist() == [0, 1], (
        "the bitmap has the rows of earlier steps too"
    )
    last = one.first(9)
    covered = one.take_out(last, step=3, ticks=0)
    assert (covered.whole, covered.part, covered.tuples) == (["2-0"], {}, 3)
    assert not one
    assert one.oldest is None


def test_what_earlier_attempts_covered_in_part_does_not_come_again() -> None:
    one = backlog(entry(1, 10, 11, 12), done={"1-0": b"\x05"})
    assert numbers_in(one.first(9)) == [11]
    assert one.tuples == 1


def test_a_sealed_step_is_found_again_exactly() -> None:
    entries = [entry(1, 10, 11), entry(2, 20, 21, 22)]
    first = backlog(*entries)
    shares = first.first(2)
    first.take_out(shares, step=1, ticks=0)
    shares = first.first(2)
    sealed = first.take_out(shares, step=2, ticks=0)
    again = backlog(*entries[1:], done={})
    assert numbers_in(again.exactly(sealed)) == [20, 21]
    again.cover(sealed)
    later = backlog(done={})
    later.cover(sealed)
    later.add(entries[1:], read)
    assert numbers_in(later.first(9)) == [22]


def test_what_cannot_be_read_is_passed_over_and_goes_with_the_next_step() -> None:
    one = Backlog({})
    garbage = Entry(position="1-0", tuples=3, payload=b"no chunk")
    assert one.add([garbage, entry(2, 20)], read) == [77]
    assert one.tuples == 1
    shares = one.first(9)
    covered = one.take_out(shares, step=1, ticks=0)
    assert covered.whole == ["1-0", "2-0"]
    assert covered.tuples == 4
    assert not one


def test_what_was_passed_over_alone_makes_a_step_necessary() -> None:
    one = Backlog({})
    one.add([Entry(position="1-0", tuples=3, payload=b"no chunk")], read)
    assert one
    assert one.take_out([], step=1, ticks=0).whole == ["1-0"]
    assert not one


def test_one_of_many_is_found_by_its_identity_and_taken_alone() -> None:
    one = backlog(entry(1, 10, 11, 12))
    [wanted] = chunk_of(11).lineage.seeds.tolist()
    share = one.one_of({wanted})
    assert share is not None
    assert numbers_in([share]) == [11]
    covered = one.take_out([share], step=1, ticks=0)
    assert rows_in(covered.part["1-0"]).tolist() == [1]
    assert one.one_of({wanted}) is None
    assert numbers_in(one.first(9)) == [10, 12]


@given(st.lists(st.integers(1, 20), max_size=8), st.data())
def test_however_it_is_cut_each_tuple_is_covered_once(
    sizes: list[int], data: st.DataObject
) -> None:
    entries = [
        entry(at, *range(100 * at, 100 * at + size)) for at, size in enumerate(sizes, start=1)
    ]
    one = backlog(*entries)
    seen: list[int] = []
    whole: list[str] = []
    step = 0
    while one:
        step += 1
        shares = one.first(data.draw(st.integers(1, 30)))
        seen += numbers_in(shares)
        whole += one.take_out(shares, step, 0).whole
    assert seen == [
        n for at, size in enumerate(sizes, start=1) for n in range(100 * at, 100 * at + size)
    ]
    assert whole == [each.position for each in entries]
    assert one.tuples == 0


def test_a_bitmap_may_be_shorter_than_its_chunk() -> None:
    assert rows_left(12, b"\x03").tolist() == list(range(2, 12))


def test_a_part_has_the_trees_of_its_rows_also_where_these_are_apart() -> None:
    part = part_of(chunk_of(10, 11, 12, 13), np.array([0, 2]))
    assert part.values.column(0).to_pylist() == [10, 12]
    assert part.lineage.roots.tolist() == [1010, 1012]


def test_any_tuples_may_be_covered_and_an_entry_is_gone_with_its_last_one() -> None:
    one = backlog(entry(1, 10, 11, 12), entry(2, 20, 21), entry(3, 30))
    shares = one.of({"1-0": [0, 2], "2-0": [0, 1]})
    assert numbers_in(shares) == [10, 12, 20, 21]
    covered = one.take_out(shares, step=1, ticks=0)
    assert covered.whole == ["2-0"]
    assert rows_in(covered.part["1-0"]).tolist() == [0, 2]
    assert (one.tuples, one.entries, one.oldest) == (2, 2, "1-0")
    assert numbers_in(one.first(10)) == [11, 30]
    one.take_out(one.of({"1-0": [1]}), step=1, ticks=0)
    assert (one.entries, one.oldest) == (1, "3-0")


def test_the_latest_entries_come_in_order() -> None:
    one = backlog(entry(1, 10), entry(2, 20), entry(3, 30))
    assert [each.position for each in one.latest(2)] == ["2-0", "3-0"]
    assert one.latest(0) == []
