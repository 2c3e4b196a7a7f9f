"""A clock that a test turns."""


class Clock:
    """Seconds, which only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
