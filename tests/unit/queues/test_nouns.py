import pytest

from tiercel.queues.nouns import counted, with_article


@pytest.mark.parametrize(
    ("noun", "written"),
    [
        ("long", "a long"),
        ("int", "an int"),
        ("array<long>", "an array<long>"),
        ("OSError", "an OSError"),
        ("decimal(10,2)", "a decimal(10,2)"),
    ],
)
def test_a_noun_has_its_article(noun, written):
    assert with_article(noun) == written


@pytest.mark.parametrize(
    ("number", "written"), [(0, "0 messages"), (1, "1 message"), (26_151, "26,151 messages")]
)
def test_a_noun_is_counted(number, written):
    assert counted(number, "message") == written
