"""One sequence that a simulated engine works on, and what its answer is told."""

from typing import Protocol

from deployments.engine_model.sequence import Sequence


class Listener(Protocol):
    """Whoever waits for a sequence. Called in the event loop, and quick."""

    def reached(self, job: "Job", tokens: int) -> None:
        """So many of its tokens are there; the last of them comes by `ended`."""

    def ended(self, job: "Job") -> None:
        """All are there; its times are known."""

    def failed(self) -> None:
        """The engine has died."""


class Job:
    """One sequence. Times are the engine's seconds; `began_s`: when it left the engine's own queue first."""

    __slots__ = ("added_s", "began_s", "ended_s", "first_s", "first_step", "is_prefilling", "listener", "open", "order", "sequence", "stepwise")

    def __init__(self, listener: Listener, prompt: int, output: int, stepwise: bool, prefix: tuple[int, ...] = ()) -> None:
        self.listener = listener
        self.sequence = Sequence(self, prompt, 0, output, prefix)
        self.stepwise = stepwise
        """Whether its tokens are to be told as they come, and not only at the end."""
        self.open = True
        self.is_prefilling = True
        self.added_s = self.began_s = self.first_s = self.ended_s = 0.0
        self.first_step = 0
        """The engine's count of steps when its first token was there."""
        self.order = 0
        """The place in the engine's order that it had first: another one at its end shows that it was preempted."""
