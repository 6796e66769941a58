"""Keeps passwords out of what people and machines read."""

from __future__ import annotations

import re

# scheme://user:password@ or scheme://:password@; the password goes up to the last @ before the path.
_CREDENTIALS = re.compile(r"""([a-z][a-z0-9+.-]*://)([^\s/:@"']*):[^\s/"']*@""", re.IGNORECASE)

# redis+sentinel://…?sentinel_password=…, and what redis-py takes besides: password, ssl_password.
_OPTION = re.compile(r"""([?&](?:\w+_)?password=)[^\s&"',]*""", re.IGNORECASE)


def redact(text: str) -> str:
    """``text`` with the password of every URL in it replaced.

    >>> redact("connecting to amqp://guest:s3cret@rabbit:5672/%2F")
    'connecting to amqp://guest:***@rabbit:5672/%2F'
    >>> redact("redis+sentinel://:a@host/name?sentinel_password=b&client_name=c")
    'redis+sentinel://:***@host/name?sentinel_password=***&client_name=c'
    """
    return _OPTION.sub(r"\1***", _CREDENTIALS.sub(r"\1\2:***@", text))
