"""What a request is booked with before anyone knows: prompt less cache credit, expected output, cost, KV, lane. And what the engine then teaches.

Lane and cost are set once, at submit; a better credit at lease changes what the replica is booked with, never the lane. KV is booked at the 90th
percentile of the output, not at max_tokens; an overrun comes back as a preemption in the engine, and is counted there.
"""

from dataclasses import dataclass, field

from deployments.scheduling.lease import Lease, Usage
from deployments.scheduling.outputs import OutputLengths
from deployments.scheduling.policy import Policy
from deployments.scheduling.prefixes import PrefixIndex
from deployments.scheduling.request import Job


@dataclass
class Books:
    """The learned state of one model."""

    outputs: OutputLengths = field(default_factory=OutputLengths)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    settled: int = 0
    other_lane: int = 0
    """Requests that turned out to belong to another lane than the one they were booked for, as the lanes are now; of those `settled`."""

    def book(self, job: Job, policy: Policy) -> None:
        """Sets what the job is booked with."""
        request = job.request
        chunks, _ = self.prefixes.longest(request.prefix)
        job.credit_tokens = int(chunks * request.chunk_tokens * self.prefixes.trust)
        mean, p90 = self.outputs.expect(request.prompt_tokens, request.max_tokens)
        sequences = request.sequences
        job.prefill_tokens = max(1, request.prompt_tokens - job.credit_tokens) * sequences
        job.output_tokens = mean
        job.kv_tokens = (request.prompt_tokens + p90) * sequences
        job.cost = job.prefill_tokens + policy.decode_weight * mean * sequences

    def settle(self, lease: Lease, usage: Usage, policy: Policy) -> None:
        """Learns from the engine's account of a finished request."""
        request = lease.request
        sequences = max(1, usage.sequences)
        self.outputs.observe(request.prompt_tokens, lease.output_tokens, round(usage.output_tokens / sequences))
        credited = request.prompt_tokens * request.sequences - lease.prefill_tokens
        if self.prefixes.trust > 0:
            self.prefixes.observe(round(credited / self.prefixes.trust), usage.cached_tokens)
        self.settled += 1
        booked = policy.lane_of(lease.prefill_tokens + lease.output_tokens * lease.sequences)
        self.other_lane += policy.lane_of(usage.prompt_tokens - usage.cached_tokens + usage.output_tokens) != booked
