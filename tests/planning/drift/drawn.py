"""Traffic that is drawn from what a worksheet expects, or from something else."""

from dataclasses import dataclass, replace

import numpy as np

from deployments.traffic.counts import Stream, Stretches
from planning.drift.comparison import ExpectedStream
from planning.drift.recording import stretches_of_trace
from planning.workload.lengths import LogNormal
from planning.workload.trace import Trace

CHAT = Stream("demo", "interactive", "eu")
MONDAY_S = 4 * 86_400
"""A Monday's midnight (unix seconds)."""


@dataclass(frozen=True)
class Traffic:
    """Independent log-normal lengths."""

    per_s: float = 2.0
    prompt: float = 1_000
    output: float = 250
    prefix_share: float = 0.4

    def draw(self, minutes: int, seed: int, from_minute: int = 0) -> Stretches:
        rng = np.random.default_rng(seed)
        span_s = 60.0 * minutes
        arrived_s = np.sort(rng.random(rng.poisson(self.per_s * span_s))) * span_s
        prompt, output = (LogNormal(mean, 1.0).sample(len(arrived_s), rng) for mean in (self.prompt, self.output))
        begin_s = MONDAY_S + 60.0 * from_minute
        found = stretches_of_trace(Trace(arrived_s, prompt, output), CHAT, begin_s)
        for counts in found.counts.values():
            counts.cached_tokens = round(
                counts.prompt_tokens * rng.binomial(counts.finished, self.prefix_share) / counts.finished
            )
        found.seconds.clear()
        found.watch(begin_s, begin_s + span_s)
        return found


def sheet_of(traffic: Traffic, **changes: object) -> tuple[ExpectedStream, ...]:
    """A worksheet that states that traffic, at all hours alike."""
    lengths = (traffic.prompt,) * 24, (traffic.output,) * 24
    stream = ExpectedStream(CHAT, (traffic.per_s,) * 24, *lengths, traffic.prefix_share)
    return (replace(stream, **changes),)  # type: ignore[arg-type]


def then(first: Stretches, second: Stretches) -> Stretches:
    """Both, one after the other."""
    first.merge(second)
    return first
