"""What a cell says of itself to its peers, once for each of their questions.

A digest holds no time: its age is the receiver's own matter, from the moment of the question that it answers. It holds
no prompt, and of tenants hashes of their rules, and the names of those with limits, with what they use of them. What a
peer says is checked by the types here where it is read, and by `Digest.is_possible`.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

from msgspec import Meta

from deployments.scheduling import Snapshot, TenantUse
from deployments.scheduling.replica import ReplicaStatus

MAX_AMOUNT = 1e18
"""Sums and products of what a peer says stay finite."""
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Amount = Annotated[float, Meta(ge=0, le=MAX_AMOUNT)]
Name = Annotated[str, Meta(max_length=256)]


class Question(NamedTuple):
    """Names a question of one cell: the cell's epoch, and a number that grows within it."""

    epoch: Number
    number: Number


class LaneDigest(NamedTuple):
    """The wait estimate that a request would get in a lane (p50, p95), in seconds."""

    lane: Name
    p50_s: Amount
    p95_s: Amount


class Received(NamedTuple):
    """The highest number of the hand-overs that came from a cell, and that cell's epoch then."""

    cell: Name
    epoch: Number
    number: Number


@dataclass(frozen=True, slots=True)
class ModelDigest:
    """One model in one cell.

    `replicas` are ready; what follows sums over them: sequences and KV blocks (in tokens) that they can hold and that
    are free (of sequences, also for what waits), and the tokens that they can prefill in a second. `usd_per_mtok` is
    what a million tokens of work cost here (None: not known). `hands_over`: this cell cannot keep the SLO itself at
    present, and hands requests over.
    `tenants`: what those with limits have taken here since the epoch began (`tenant_use.py`).
    """

    model: Name
    lanes: Annotated[tuple[LaneDigest, ...], Meta(max_length=64)]
    replicas: Number
    max_sequences: Number
    free_sequences: Number
    max_kv_tokens: Number
    free_kv_tokens: Number
    prefill_tokens_per_s: Amount
    usd_per_mtok: Amount | None = None
    hands_over: bool = False
    tenants: tuple[TenantUse, ...] = ()

    @property
    def load(self) -> float:
        """The share of sequences or of KV blocks in use, whichever is larger; 1 without a replica."""
        shares = ((self.free_sequences, self.max_sequences), (self.free_kv_tokens, self.max_kv_tokens))
        return max(1.0 - free / maximum if maximum else 1.0 for free, maximum in shares)

    def lane(self, name: str) -> LaneDigest | None:
        """The wait in the lane of that name; None: not known."""
        return next((lane for lane in self.lanes if lane.lane == name), None)


@dataclass(frozen=True, slots=True)
class Digest:
    """One cell, as the answer to `answers`.

    `epoch` grows with each start of the cell's owner, and is never issued twice; `sequence` grows within it. `marks`
    are hashes of the parts of the spec that both sides must have alike (`rules.py`). `received`: the hand-overs that
    this digest already counts.
    """

    cell: Name
    epoch: Number
    sequence: Number
    answers: Question
    marks: frozenset[Name]
    models: tuple[ModelDigest, ...]
    received: tuple[Received, ...] = ()

    def model(self, name: str) -> ModelDigest | None:
        """The model of that name; None: the cell does not have it."""
        return next((one for one in self.models if one.model == name), None)

    @property
    def is_possible(self) -> bool:
        """Whether all its numbers can be. A peer's word steers requests, so that it is checked like a client's."""
        waits = chain.from_iterable((lane.p50_s, lane.p95_s) for one in self.models for lane in one.lanes)
        counts = chain.from_iterable(
            (one.replicas, one.free_sequences, one.free_kv_tokens, one.prefill_tokens_per_s) for one in self.models
        )
        prices = (one.usd_per_mtok for one in self.models if one.usd_per_mtok is not None)
        uses = chain.from_iterable(
            (use.requests, abs(use.tokens), use.at_once) for one in self.models for use in one.tenants
        )
        return all(0 <= value <= MAX_AMOUNT for value in chain(waits, counts, prices, uses)) and all(
            one.free_sequences <= one.max_sequences and one.free_kv_tokens <= one.max_kv_tokens for one in self.models
        )


def model_digest(
    model: str,
    snapshot: Snapshot,
    usd_per_mtok: float | None = None,
    hands_over: bool = False,
    tenants: tuple[TenantUse, ...] = (),
) -> ModelDigest:
    """What a scheduler's snapshot (with `etas`) says of a model; `tenants`: its `tenant_use`."""
    ready = [replica for replica in snapshot.replicas if replica.status == ReplicaStatus.READY]
    lanes = (LaneDigest(lane.name, *lane.eta_s) for lane in snapshot.lanes if lane.eta_s is not None)
    free = sum(max(0, replica.max_sequences - replica.sequences) for replica in ready)
    waiting = sum(lane.waiting for lane in snapshot.lanes)  # guests begin one by one, and the room is theirs
    return ModelDigest(
        model,
        tuple(lanes),
        len(ready),
        sum(replica.max_sequences for replica in ready),
        max(0, free - waiting),
        sum(replica.max_kv_tokens for replica in ready),
        sum(max(0, replica.max_kv_tokens - replica.kv_tokens) for replica in ready),
        sum(replica.prefill_tokens_per_s for replica in ready),
        usd_per_mtok,
        hands_over,
        tenants,
    )
