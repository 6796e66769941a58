import pytest

from tiercel.queues.article import with_article


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
