"""Signatures of snapshots: no client of Redis can make us unpickle its bytes."""

from __future__ import annotations

import hmac
import secrets

_ALGORITHM = "sha256"
_LENGTH = 32


class BadSignatureError(ValueError):
    """These bytes were not signed with this key for this purpose."""


def new_key() -> bytes:
    """A key for one run; it travels with the job, never through the server."""
    return secrets.token_bytes(_LENGTH)


def sign(key: bytes, purpose: str, content: bytes) -> bytes:
    """The content with a signature before it; ``purpose`` says which task and step it is for."""
    return _signature(key, purpose, content) + content


def verified(key: bytes, purpose: str, signed: bytes) -> bytes:
    """The content; raises BadSignatureError if anything about it was changed."""
    content = signed[_LENGTH:]
    if not hmac.compare_digest(signed[:_LENGTH], _signature(key, purpose, content)):
        raise BadSignatureError(
            f"the state of {purpose} in Redis has a wrong signature: it was written by "
            "another process"
        )
    return content


def body_of(signed: bytes) -> bytes:
    """The content unchecked: for what is safe to read from any writer."""
    return signed[_LENGTH:]


def _signature(key: bytes, purpose: str, content: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + content, _ALGORITHM)
