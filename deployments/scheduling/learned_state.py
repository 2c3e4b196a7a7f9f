"""What a request is booked with before anyone knows: prompt less cache credit, expected output, cost, KV, lane. What
the engine then teaches; and the service rate.

Lane and cost are set once, at submit; a better credit at lease changes what the replica is booked with, never the lane.
KV is booked at the 90th percentile of the output, not at max_tokens; an overrun comes back as a preemption in the
engine, and is counted there.

Output lengths: a decayed histogram for each power of two of the prompt length (AIBrix's length-bucketed histograms;
ranking needs no more). Each observation ages all before it by `_DECAY`, so about the last thousand count. Bins are a
quarter of a power of two wide; a length stands for its bin's upper bound, so the estimate errs on the long side.
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import accumulate

from deployments.protocol import Usage
from deployments.scheduling.policy import SchedulingPolicy
from deployments.scheduling.request import Job, Lease, Request

_DECAY = 0.999


_BINS = tuple(sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 18 + 1)}))


_PRIOR_TOKENS = 256


_REFRESH = 16


class _Lengths:
    """The histogram of one prompt bucket, with its cumulative sums refreshed every few observations."""

    __slots__ = ("_counts", "_gain", "_mass", "_seen", "_weighted")

    def __init__(self) -> None:
        self._counts = [0.0] * len(_BINS)
        self._gain = 1.0
        self._seen = 0
        self._mass: list[float] = []
        self._weighted: list[float] = []

    def observe(self, tokens: int) -> None:
        self._gain /= _DECAY  # growing the new is ageing the old
        self._counts[min(bisect_left(_BINS, tokens), len(_BINS) - 1)] += self._gain
        self._seen += 1
        if self._gain > 1e12:
            self._counts = [count / self._gain for count in self._counts]
            self._gain = 1.0
        if self._seen % _REFRESH == 0 or self._seen < _REFRESH:
            self._refresh()

    def mean(self, limit: int | None) -> float:
        """E[min(length, limit)]."""
        if limit is None:
            return self._weighted[-1]
        below = bisect_left(_BINS, limit)
        if below == 0:
            return float(limit)
        return self._weighted[below - 1] + limit * (1.0 - self._mass[below - 1])

    def quantile(self, share: float) -> int:
        """The length that `share` of the answers do not exceed."""
        return _BINS[min(bisect_left(self._mass, share), len(_BINS) - 1)]

    def _refresh(self) -> None:
        total = sum(self._counts)
        self._mass = list(accumulate([count / total for count in self._counts]))
        self._weighted = list(
            accumulate([bound * count / total for bound, count in zip(_BINS, self._counts, strict=True)])
        )


class OutputLengths:
    """Expected output tokens of one model. `error` is the decayed mean of |expected - real| / real."""

    def __init__(self) -> None:
        self.error: float | None = None
        self._buckets: dict[int, _Lengths] = {}

    def expect(self, prompt_tokens: int, limit: int | None) -> tuple[int, int]:
        """The mean and the 90th percentile of a sequence's output, both bounded by `limit`."""
        lengths = self._buckets.get(prompt_tokens.bit_length())
        if lengths is None:
            prior = _PRIOR_TOKENS if limit is None else min(limit, _PRIOR_TOKENS)
            return prior, prior
        p90 = lengths.quantile(0.9)
        return round(lengths.mean(limit)), p90 if limit is None else min(limit, p90)

    def observe(self, prompt_tokens: int, expected: int, tokens: int) -> None:
        """A sequence with that prompt gave `tokens`, where `expected` were expected."""
        self._buckets.setdefault(prompt_tokens.bit_length(), _Lengths()).observe(tokens)
        off = abs(expected - tokens) / max(1, tokens)
        self.error = off if self.error is None else self.error + 0.01 * (off - self.error)


_TRUST_WEIGHT = 0.02


class PrefixIndex:
    """Which replicas have which prompt prefixes cached, as far as the gateway can know: what it sent where (some 400
    bytes a hash), no more of each replica than its KV cache can hold.

    A prompt is cut into chunks; each chunk's hash chains the one before, so a hash names a whole prefix. The longest
    known one is found by bisection, since where a prefix is known its shorter ones are too (eviction takes the least
    recently used hash, which keeps that true but for rare gaps; a gap only makes a credit smaller). What the engine
    really had cached teaches `trust`, which scales every credit.
    """

    def __init__(self) -> None:
        self.trust = 1.0
        self._by_hash: dict[int, set[str]] = {}
        self._by_replica: dict[str, OrderedDict[int, None]] = {}

    def longest(self, prefix: tuple[int, ...]) -> tuple[int, frozenset[str]]:
        """How many leading chunks some replica knows, and which replicas know that many."""
        count = _known_chunks(prefix, self._by_hash)
        return count, frozenset(self._by_hash[prefix[count - 1]]) if count else frozenset()

    def known(self, prefix: tuple[int, ...], replica_id: str) -> int:
        """How many leading chunks that replica knows."""
        return _known_chunks(prefix, self._by_replica.get(replica_id, ()))

    def add(self, prefix: tuple[int, ...], replica_id: str, maximum: int) -> None:
        """The prompt with that prefix goes to the replica, whose cache holds `maximum` chunks: what it had before them
        is evicted."""
        known = self._by_replica.setdefault(replica_id, OrderedDict())
        # From the longest to the shortest, so that the shortest, which most prompts share, are the last to be evicted.
        for chunk in reversed(prefix):
            if chunk in known:
                known.move_to_end(chunk)
            else:
                known[chunk] = None
                self._by_hash.setdefault(chunk, set()).add(replica_id)
        while len(known) > max(1, maximum):
            self._drop(known.popitem(last=False)[0], replica_id)

    def forget(self, replica_id: str) -> None:
        """The replica is gone, and its cache with it."""
        for chunk in self._by_replica.pop(replica_id, ()):
            self._drop(chunk, replica_id)

    def observe(self, credited_tokens: int, cached_tokens: int) -> None:
        """The engine had `cached_tokens` of a prompt cached for which `credited_tokens` were expected before
        `trust`."""
        if credited_tokens > 0:
            self.trust += _TRUST_WEIGHT * (min(1.0, cached_tokens / credited_tokens) - self.trust)

    def _drop(self, chunk: int, replica_id: str) -> None:
        submitters = self._by_hash[chunk]
        submitters.discard(replica_id)
        if not submitters:
            del self._by_hash[chunk]


def _known_chunks(prefix: tuple[int, ...], known: Container[int]) -> int:
    """How many leading chunks are known, by bisection."""
    if not prefix or prefix[0] not in known:
        return 0
    low, high = 0, len(prefix) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if prefix[middle] in known:
            low = middle
        else:
            high = middle - 1
    return low + 1


def needed_context(request: Request, p90: int, largest: int) -> int:
    """The context that one sequence of the request needs, where `largest` is the largest that there is (tokens).

    That is its prompt and what it may generate: `max_tokens`, because vLLM refuses a request whose prompt and
    `max_tokens` exceed the context. A request without `max_tokens` counts with the 90th percentile of the outputs of
    prompts of its length, as its KV is booked: vLLM ends its output at the context's end, wherever that is.

    An estimated prompt counts with its likely maximum, but no more than `largest`, whose engine knows better.
    """
    output = p90 if request.max_tokens is None else request.max_tokens
    at_least = request.prompt_tokens + (1 if request.max_tokens is None else output)
    if at_least > largest:
        return at_least
    return min(largest, max(request.prompt_tokens, request.max_prompt_tokens) + output)


@dataclass
class LearnedState:
    """The learned state of one model."""

    outputs: OutputLengths = field(default_factory=OutputLengths)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    settled: int = 0
    other_lane: int = 0
    """Requests that turned out to belong to another lane than the one they were booked for, as the lanes are now; of
    those `settled`."""

    def book(self, job: Job, policy: SchedulingPolicy) -> None:
        request = job.request
        chunks, _ = self.prefixes.longest(request.prefix)
        job.credit_tokens = int(chunks * request.chunk_tokens * self.prefixes.trust)
        limit = request.max_tokens
        if policy.contexts and limit is None:
            limit = max(1, max(policy.contexts.values()) - request.prompt_tokens)
        mean, p90 = self.outputs.expect(request.prompt_tokens, limit)
        sequences = request.sequences
        job.prefill_tokens = max(1, request.prompt_tokens - job.credit_tokens) * sequences
        job.output_tokens = mean
        job.kv_tokens = (request.prompt_tokens + p90) * sequences
        job.cost = job.prefill_tokens + policy.decode_weight * mean * sequences
        if policy.contexts:
            job.context_tokens = needed_context(request, p90, max(policy.contexts.values()))

    def book_as(self, job: Job, reported: Lease, policy: SchedulingPolicy) -> None:
        """An adopted job is booked as its first owner booked it."""
        job.attempt = reported.attempt - reported.request.attempts
        job.prefill_tokens, job.kv_tokens = reported.prefill_tokens, reported.kv_tokens
        job.output_tokens = reported.output_tokens
        job.cost = job.prefill_tokens + policy.decode_weight * job.output_tokens * reported.request.sequences

    def settle(self, lease: Lease, usage: Usage, policy: SchedulingPolicy) -> None:
        """Learns from the engine's account of a finished request."""
        request = lease.request
        sequences = max(1, usage.sequences)
        self.outputs.observe(request.prompt_tokens, lease.output_tokens, round(usage.output_tokens / sequences))
        credited = request.prompt_tokens * request.sequences - lease.prefill_tokens
        if self.prefixes.trust > 0:
            self.prefixes.observe(round(credited / self.prefixes.trust), usage.cached_tokens)
        self.settled += 1
        booked = policy.lane_of(lease.prefill_tokens + lease.output_tokens * lease.request.sequences)
        self.other_lane += policy.lane_of(usage.prompt_tokens - usage.cached_tokens + usage.output_tokens) != booked


_LAMBDA = math.log(2) / 20.0


@dataclass(eq=False, slots=True)
class Meter:
    """A decayed rate over the time in which it runs:

    rate = sum(w_i * work_i) / integral of w over the time that counts,  w(t) = 2 ** (-(now - t) / half_life)
    """

    _work: float = 0.0
    _time_s: float = 0.0
    _at_s: float = 0.0
    running: bool = False

    def run(self, running: bool, now: float) -> None:
        """Whether the time from now on counts."""
        if running is not self.running:
            self._advance(now)
            self.running = running
            self._at_s = now

    def add(self, work: float, now: float) -> None:
        """That much was done."""
        if self.running:
            self._advance(now)
            self._work += work

    @property
    def per_s(self) -> float | None:
        """Work a second; None until a tenth of a second counted."""
        return self._work / self._time_s if self._time_s > 0.1 and self._work > 0 else None

    def _advance(self, now: float) -> None:
        if self.running and now > self._at_s:
            decay = math.exp(-_LAMBDA * (now - self._at_s))
            self._work *= decay
            self._time_s = self._time_s * decay + (1.0 - decay) / _LAMBDA
            self._at_s = now


class ServiceRate:
    """How fast work is placed while some waits. `placed`: while backlogged; `finished`: while anything runs.

    Only time in which a request waits for room of a replica that is there counts: a cluster with little to do is not
    slow, nor is one that starts. Until there was any such time the rate is what was finished a second while anything
    ran, which is at most too small.
    """

    def __init__(self) -> None:
        self.placed = Meter()
        self.finished = Meter()

    def forget_idle(self) -> None:
        """What a little traffic took is no measure of what a crowd is served with: for the end of a waiting room."""
        self.finished = Meter()

    @property
    def per_s(self) -> float | None:
        """The best known rate, in units of `Job.cost` a second."""
        return self.placed.per_s or self.finished.per_s
