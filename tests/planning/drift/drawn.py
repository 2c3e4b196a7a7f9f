"""Traffic that is drawn from what a worksheet expects, or from something else."""

from dataclasses import dataclass, replace

import numpy as np

from deployments.traffic.counts import LengthCounts, Stream, Stretches
from planning.drift.expected import Expected, ExpectedLengths, ExpectedStream, Tolerance, lengths_of
from planning.drift.recording import stretches_of_trace
from planning.workload.lengths import LogNormal
from planning.workload.trace import Trace

CHAT = Stream("demo", "interactive", "eu")
MONDAY_S = 4 * 86_400
"""A Monday's midnight (unix seconds)."""


PROMPT, OUTPUT = LogNormal(1_000, 1.0), LogNormal(250, 0.8)


@dataclass(frozen=True)
class Traffic:
    """Independent log-normal lengths; `cluster` requests arrive at once, so that counts disperse by so much."""

    per_s: float = 2.0
    prompt: LogNormal = PROMPT
    output: LogNormal = OUTPUT
    prefix_share: float = 0.4
    cluster: int = 1

    def scaled(
        self, per_s: float = 1.0, prompt: float = 1.0, output: float = 1.0, prefix_share: float = 1.0
    ) -> "Traffic":
        return replace(
            self,
            per_s=self.per_s * per_s,
            prompt=replace(self.prompt, mean=self.prompt.mean * prompt),
            output=replace(self.output, mean=self.output.mean * output),
            prefix_share=self.prefix_share * prefix_share,
        )

    def draw(self, minutes: int, seed: int, from_minute: int = 0) -> Stretches:
        rng = np.random.default_rng(seed)
        span_s = 60.0 * minutes
        arrived_s = np.repeat(
            np.sort(rng.random(rng.poisson(self.per_s * span_s / self.cluster))) * span_s, self.cluster
        )
        prompt, output = (lengths.sample(len(arrived_s), rng) for lengths in (self.prompt, self.output))
        begin_s = MONDAY_S + 60.0 * from_minute
        found = stretches_of_trace(Trace(arrived_s, prompt, output), CHAT, begin_s)
        for counts in found.counts.values():
            counts.cached_tokens = round(
                counts.prompt_tokens * rng.binomial(counts.finished, self.prefix_share) / counts.finished
            )
        found.seconds.clear()
        found.watch(begin_s, begin_s + span_s)
        return found


def expected_lengths(lengths: LogNormal) -> ExpectedLengths:
    """As a worksheet states them: the distribution itself, by a large sample."""
    counts = LengthCounts()
    for tokens in lengths.sample(20_000, np.random.default_rng(5)).tolist():
        counts.add(tokens)
    return replace(lengths_of(counts), mean=lengths.mean)


def sheet_of(traffic: Traffic, tolerance: Tolerance | None = None) -> Expected:
    """A worksheet that states that traffic, at all hours alike."""
    lengths = expected_lengths(traffic.prompt), expected_lengths(traffic.output)
    stream = ExpectedStream(CHAT, (traffic.per_s,) * 24, *lengths, traffic.prefix_share)
    return Expected((stream,), tolerance or Tolerance())


def then(first: Stretches, second: Stretches) -> Stretches:
    """Both, one after the other."""
    first.merge(second)
    return first
