"""What a replica says of its work, in the scheduler's words: what it runs, told to whoever becomes its owner, and what a request took."""

from dataclasses import dataclass

from deployments.protocol import Finished
from deployments.scheduling import Lease, Usage


@dataclass(frozen=True, slots=True)
class Running:
    """A lease that a replica says to run. `started`: its answer has begun."""

    lease: Lease
    started: bool


def usage_of(done: Finished) -> Usage:
    """What an engine's account says that a request took."""
    return Usage(done.prompt_tokens, done.cached_tokens, done.output_tokens, done.preemptions, done.sequences, done.prefill_s, done.decode_s)
