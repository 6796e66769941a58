"""The listener finds a query's readers in its progress, in the notation of each Spark version."""

from types import SimpleNamespace

import pytest

from tests.support.waiting import wait_until
from tiercel.frames.post import Post
from tiercel.frames.register import CommitListener

READER = "0123456789abcdef"


@pytest.fixture
def heard():
    words = []
    post = Post(READER, lambda word: words.append(dict(word)) or {})
    yield words
    post.close()


def progress(*ends):
    sources = [SimpleNamespace(endOffset=end) for end in ends]
    return SimpleNamespace(progress=SimpleNamespace(runId="run", sources=sources))


@pytest.mark.parametrize(
    "offset",
    [
        f'{{"reader":"{READER}","messages":7}}',
        # As a client of Spark Connect gets it from PySpark 4.1.
        f"{{'reader': '{READER}', 'messages': 7}}",
    ],
    ids=["JSON", "Python"],
)
def test_a_reader_is_told_of_its_commit_and_of_the_end(heard, offset):
    listener = CommitListener()
    listener.onQueryProgress(progress("None", offset))
    listener.onQueryTerminated(SimpleNamespace(runId="run"))
    wait_until(lambda: len(heard) == 2)
    assert heard == [{"committed": 7}, {"ended": True}]


@pytest.mark.parametrize("offset", [None, "None", "null", "12", "[1]", "{'a'", '{"a": {"0": 3}}'])
def test_offsets_of_other_sources_are_passed_over(heard, offset):
    listener = CommitListener()
    listener.onQueryProgress(progress(offset))
    listener.onQueryTerminated(SimpleNamespace(runId="run"))
    assert heard == []
