"""A clock that a test moves."""


class Clock:
    """A clock that stands still; ``now`` is the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
