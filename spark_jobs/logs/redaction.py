"""Keeps passwords out of logs and pages, in time linear in the length of the text."""

from __future__ import annotations

import re

# Text that is redacted, at most: strangers write some of it, and every log line
# passes through here.
LONGEST = 16 * 1024

# An address that the cut goes through would show half a password: the cut is before it instead.
_LONGEST_ADDRESS = 2 * 1024

# user:password@ after ://, the password up to the last @ before the path. What settings accept ends
# at / ? and #, as urlsplit ends a login there; quotes, commas and blanks belong to the password. No
# two matches begin in one stretch without a slash, which makes this linear: what stands before ://
# is not looked for, as that would begin anew at every letter.
_CREDENTIALS = re.compile(r"://([^/?#:\r\n]*):[^/?#\r\n]*@")

# Redis knows no user without a password: it is the password, and its colon was forgotten.
_LONE = re.compile(r"(?<=redis)(s?(?:\+sentinel|\+cluster)?)://[^/?#:@\s]+@", re.IGNORECASE)

# redis+sentinel://…?sentinel_password=…, and what other clients take: password, ssl_password,
# sslpassword.
# It may have blanks, commas and quotes too, so it ends with the option, the line or the address.
_OPTION = re.compile(
    r"([?&]\w{0,64}password=)(?:(?!,\s*[a-z][a-z0-9+.-]{0,20}://)[^&\r\n])*", re.IGNORECASE
)


def redact(text: str) -> str:
    """``text`` with the password of every URL in it replaced, and cut where it is
    longer than LONGEST.

    >>> redact("connecting to amqp://guest:s3cret@rabbit:5672/%2F")
    'connecting to amqp://guest:***@rabbit:5672/%2F'
    >>> redact("redis+sentinel://:a@host/name?sentinel_password=b&client_name=c")
    'redis+sentinel://:***@host/name?sentinel_password=***&client_name=c'
    """
    if len(text) > LONGEST:
        return f"{_replaced(_cut(text))}… and {len(text) - LONGEST:,} characters more"
    return _replaced(text)


def _cut(text: str) -> str:
    kept = text[:LONGEST]
    begins = kept.rfind("://", LONGEST - _LONGEST_ADDRESS)
    return kept[:begins] if begins >= 0 else kept


def _replaced(text: str) -> str:
    if "://" not in text and "password=" not in text.lower():
        return text
    text = _CREDENTIALS.sub(r"://\1:***@", text)
    return _OPTION.sub(r"\1***", _LONE.sub(r"\1://***@", text))
