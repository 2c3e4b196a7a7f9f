"""What Dynamo's planner measures of the traffic, from the scheduler's counters: requests, and their mean prompt and output, an interval at a time."""

from dataclasses import dataclass

from autoscaling.signals.signals import Signals


@dataclass(frozen=True, slots=True)
class Interval:
    """`requests` came in `seconds`, of `isl` tokens of prompt on average; those that ended had `osl` of output."""

    seconds: float
    requests: int
    isl: float
    osl: float


@dataclass(frozen=True, slots=True)
class _Counts:
    at_s: float
    epoch: int
    requests: int
    prompt_tokens: int
    ended: int
    output_tokens: int


class Traffic:
    """The interval that is open, and the mean lengths of the last requests that were seen."""

    def __init__(self) -> None:
        self._opened: _Counts | None = None
        self.isl = 0.0
        self.osl = 0.0

    def look(self, signals: Signals) -> None:
        """Counts on. A scheduler that started again opens a new interval."""
        now = _counts(signals)
        if self._opened is None or self._opened.epoch != now.epoch:
            self._learn(now.requests, now.prompt_tokens, now.ended, now.output_tokens)
            self._opened = now
            return
        since = self._opened
        self._learn(
            now.requests - since.requests,
            now.prompt_tokens - since.prompt_tokens,
            now.ended - since.ended,
            now.output_tokens - since.output_tokens,
        )

    def close(self, signals: Signals) -> Interval | None:
        """Ends the interval and opens the next; None where it has no length. Requests of an idle one are taken to be as long as the last."""
        since, now = self._opened, _counts(signals)
        self._opened = now
        if since is None or now.at_s <= since.at_s:
            return None
        return Interval(now.at_s - since.at_s, max(0, now.requests - since.requests), self.isl, self.osl)

    def seconds(self, now: float) -> float:
        """How long the interval has been open."""
        return 0.0 if self._opened is None else now - self._opened.at_s

    def _learn(self, requests: int, prompt_tokens: int, ended: int, output_tokens: int) -> None:
        if requests > 0 and prompt_tokens > 0:
            self.isl = prompt_tokens / requests
        if ended > 0 and output_tokens > 0:
            self.osl = output_tokens / ended


def _counts(signals: Signals) -> _Counts:
    prompt_tokens = sum(flow.prompt_tokens for flow in signals.flows)
    return _Counts(signals.at_s, signals.epoch, signals.arrived, prompt_tokens, signals.counted, signals.output_tokens)
