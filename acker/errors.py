"""Errors that the acker raises.

AckerError
├── LedgerUnavailableError   Redis did not answer or takes no writes now: nothing may be
                             assumed, try again
├── LedgerRefusedError       Redis answered "no" (login, permissions): a person must act
└── LedgerVersionError       the server is too old

Expected outcomes (a late root, a repeated token, a collision) are values in the replies,
never exceptions.
"""


class AckerError(Exception):
    """An error of the ledger or of the outcome feed."""


class LedgerUnavailableError(AckerError):
    """Redis did not answer or takes no writes now.

    The call may or may not have taken effect, and may be repeated as it is.
    """


class LedgerRefusedError(AckerError):
    """Redis refused the call; repeating it does not help until the server's settings change."""


class LedgerVersionError(AckerError):
    """The server is too old for the scripts."""
