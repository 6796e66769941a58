"""Errors that the acker raises.

AckerError
├── RedisUnavailableError    Redis did not answer or takes no writes now: the call may have
                             taken effect, try again
│   └── RedisPassingRefusalError
│                            a login or a certificate is refused that was accepted before: try again
│                            for some minutes
├── RedisRefusedError        Redis answered "no" (login, permissions): a person must act
├── RedisVersionError        the server is too old
└── BadChunkError            an entry of an inbox is not a chunk of tuples

Expected outcomes (a late root, a repeated token, a collision) are values in the replies,
never exceptions.
"""


class AckerError(Exception):
    """An error of data in Redis: ledger, inboxes, states, metrics, control."""


class RedisUnavailableError(AckerError):
    """Redis did not answer or takes no writes now.

    The call may or may not have taken effect, and may be repeated unchanged.
    """


class RedisPassingRefusalError(RedisUnavailableError):
    """For now, Redis refuses a login, or has a certificate that is not trusted, although it worked
    before.
    """

    # An outage with this error is logged even if the server was away before.
    refused = True


class RedisRefusedError(AckerError):
    """Redis refused the call; repeating it does not help until the server's settings change."""


class RedisVersionError(AckerError):
    """Redis is too old for the scripts."""


class BadChunkError(AckerError, ValueError):
    """Bytes in Redis are damaged or not a chunk of tuples; no part of them may be used."""
