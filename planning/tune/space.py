"""Where the settings are looked for, and how a sampler's numbers become settings that one would write into a file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from autoscaling.policies.settings import Range, Value
from planning.tune.trial import Candidate

MIN = "replicas.min"


@dataclass(frozen=True, slots=True)
class Space:
    """Numbers within `ranges`, and `replicas.min` between two values. What is not named stays as in `base`."""

    ranges: Mapping[str, Range]
    minimum: tuple[int, int]
    base: Mapping[str, Value]

    def distributions(self) -> dict[str, BaseDistribution]:
        found: dict[str, BaseDistribution] = {name: _distribution(span) for name, span in self.ranges.items()}
        if self.minimum[0] < self.minimum[1]:
            found[MIN] = IntDistribution(*self.minimum)
        return found

    def candidate(self, drawn: Mapping[str, Value]) -> Candidate:
        """The settings for what the sampler drew, rounded as a person would write them: what is tried is what is
        proposed."""
        settings = dict(self.base)
        for name, span in self.ranges.items():
            settings[name] = rounded(float(drawn[name] or 0.0), span)
        return Candidate(settings, int(drawn.get(MIN) or 0) if MIN in drawn else self.minimum[0])

    def drawn(self, candidate: Candidate) -> dict[str, Value]:
        """What the sampler would have drawn; what lies outside is moved to the nearest that it could have."""
        found: dict[str, Value] = {}
        for name, span in self.ranges.items():
            value = min(span.high, max(span.low, float(candidate.settings[name] or 0.0)))
            found[name] = round(value) if span.integer else value
        if self.minimum[0] < self.minimum[1]:
            found[MIN] = min(self.minimum[1], max(self.minimum[0], candidate.minimum))
        return found

    def place(self, candidate: Candidate) -> list[float]:
        """Where in the space it lies: 0 to 1 for each setting, in the order of `distributions`."""
        drawn = self.drawn(candidate)
        found = [_share(float(drawn[name] or 0.0), span) for name, span in self.ranges.items()]
        low, high = self.minimum
        return [*found, *([(int(drawn[MIN] or 0) - low) / (high - low)] if low < high else [])]

    def at(self, place: Sequence[float]) -> dict[str, Value]:
        """What the sampler would have drawn there."""
        found: dict[str, Value] = {
            name: _value(share, span) for (name, span), share in zip(self.ranges.items(), place, strict=False)
        }
        low, high = self.minimum
        if low < high:
            found[MIN] = low + round(place[-1] * (high - low))
        return found


def _share(value: float, span: Range) -> float:
    if span.log:
        return math.log(value / span.low) / math.log(span.high / span.low)
    return (value - span.low) / (span.high - span.low)


def _value(share: float, span: Range) -> float | int:
    value = span.low * (span.high / span.low) ** share if span.log else span.low + share * (span.high - span.low)
    value = min(span.high, max(span.low, value))
    return round(value) if span.integer else value


def rounded(value: float, span: Range) -> float | int:
    """To two digits where factors count, else to a hundredth of a range of one; never out of the range."""
    if span.integer:
        return round(value)
    digits = (
        1 - math.floor(math.log10(abs(value)))
        if span.log and value
        else 2 - math.floor(math.log10(span.high - span.low))
    )
    near = round(value, digits)
    return min(span.high, max(span.low, float(near)))


def _distribution(span: Range) -> BaseDistribution:
    if span.integer:
        return IntDistribution(round(span.low), round(span.high), log=span.log)
    return FloatDistribution(span.low, span.high, log=span.log)
