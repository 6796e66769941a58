"""Decimal numbers for a column: exact, or refused.

Arrow makes 0 of a number that has some hundred zeros behind its point, and ends the process on one
that has millions. So it is only given numbers that have as many decimals as their column.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from numbers import Integral
from typing import Any

import pyarrow as pa

# Raised by the function that `decimal_for` returns, for a value that the column cannot hold.
MISFITS = (TypeError, ValueError, ArithmeticError)

_BITS_PER_DIGIT = 4
# Without Inexact among the traps a context rounds in silence.
_TRAPS = [InvalidOperation, Inexact]


def decimal_for(type_: pa.Decimal128Type) -> Callable[[Any], Decimal]:
    """Return a function from a ``Decimal`` or an integer to the same number as the column holds it.

    It takes microseconds and no memory to speak of, however many digits there are. It raises one of
    MISFITS for a number that would be rounded or has too many digits, and for any other value.
    """
    unit = Decimal((0, (1,), -type_.scale))
    context = Context(prec=type_.precision, traps=_TRAPS)
    bits = _BITS_PER_DIGIT * max(1, type_.precision - type_.scale)

    def exactly(value: Any) -> Decimal:
        if not isinstance(value, Decimal):
            value = _from_integer(value, bits)
        number: Decimal = value.quantize(unit, context=context)
        if not number.is_finite():
            raise ValueError("not a finite number")
        return number

    return exactly


def _from_integer(value: Any, bits: int) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("neither a Decimal nor an integer")
    number = int(value)
    if number.bit_length() > bits:
        raise ValueError("too many digits")  # before they are written out, which takes long
    return Decimal(number)
