"""``parse_rate`` accepts the usual notations, and refuses others in one line with advice."""

from __future__ import annotations

import math

import pytest

from tiercel.acker.limits import Rate
from tiercel.spark_jobs.errors import ConfigValueError
from tiercel.spark_jobs.topology.config import parse_rate


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("100/s", Rate(permits=100)),
        ("5/min", Rate(permits=5, seconds=60)),
        ("1/h", Rate(permits=1, seconds=3600)),
        (" 2.5 / s ", Rate(permits=2.5)),
        (100, Rate(permits=100)),
        (0.5, Rate(permits=0.5)),
        (1_000_000, Rate(permits=1_000_000)),
        ("0.002/h", Rate(permits=0.002, seconds=3600)),
    ],
)
def test_a_rate_is_a_number_per_time(written, rate):
    assert parse_rate(written) == rate


@pytest.mark.parametrize(
    ("written", "message"),
    [
        *((written, "a rate must be more than 0") for written in (0, 0.0, -0.0, "0/s", "0.0/h")),
        *((written, "a rate must be more than 0") for written in (-1, -0.5)),
        *(
            (written, 'write a rate as "100/s", "5/min" or "1/h", or as a number per second, not')
            for written in (
                "-1/s",
                "",
                "100",
                "100/",
                "/s",
                "fast",
                "100/sec",
                "100/day",
                "100/s/s",
                "1e3/s",
                "1,000/s",
                "1_000/s",
                "\u0661\u0660/s",
                ".5/s",
                "1/s\n1/h",
                math.nan,
                math.inf,
                -math.inf,
                True,
                False,
                b"1/s",
                ["1/s"],
                {},
                object(),
            )
        ),
        (1_000_001, "more than 1000000 per second: leave the limit out"),
        ("61000000000/min", "leave the limit out"),
        pytest.param(10**400, "leave the limit out", id="an integer that is no double"),
        pytest.param("9" * 400 + "/s", "write a rate as", id="a number that is no double"),
        ("0.001/h", "less than one in 30 days"),
        (5e-324, "less than one in 30 days"),
    ],
)
def test_what_is_no_rate_is_refused_in_one_line(written, message):
    with pytest.raises(ConfigValueError, match=message) as caught:
        parse_rate(written)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
