"""Every outcome that the scheduler can decide, as closed enums: their values are the words in logs, metric labels and
response headers."""

from enum import StrEnum


class AdmissionKind(StrEnum):
    """What became of a submitted request."""

    ADMIT = "admit"
    QUEUE = "queue"
    REJECT = "reject"


class Blame(StrEnum):
    """Who a rejection is due to."""

    ROOM = "room"
    """The cell has no room in time: another cell may have it, and more replicas help."""
    CLIENT = "client"
    """The request or its tenant: no SLO is missed."""
    RULE = "rule"
    """Where the request may be served."""


class Rung(StrEnum):
    """How a request gets less than it asked for (docs/pressure.md)."""

    CLAMP = "clamp"
    """Its answer is shorter."""
    FALLBACK = "fallback"
    """Another model answers it."""
    SHED = "shed"
    """It is rejected."""


class RejectCause(StrEnum):
    """Why a request was turned away: before it waited, or (`STARTING`, `QUERY_OF_DEATH`) once its wait was known to be
    in vain. `turned_away` in `gateway/placed.py` says what its client gets."""

    LANE_FULL = "lane_full"
    MODEL_FULL = "model_full"
    DUPLICATE_ID = "duplicate_id"
    TENANT_REQUESTS = "tenant_requests"
    TENANT_TOKENS = "tenant_tokens"
    TENANT_CONCURRENCY = "tenant_concurrency"
    STARTING = "starting"
    """There is no replica, and the next will be ready too late for it."""
    CONTEXT = "context"
    """No group that serves the model has a context that it fits."""
    QUERY_OF_DEATH = "query_of_death"
    """Two replicas died while it ran, or one with the same body (`suspects.py`)."""
    PATIENCE = "patience"
    """It would wait for longer than it may, and its gateway has another model for it."""
    LADDER = "ladder"
    """A step of the ladder sends it to another model."""
    SHED = "shed"
    """A step of the ladder sheds its class."""
    RESIDENCY = "residency"
    """Its cell may not serve it, and no cell that may takes it now (`deployments/peering`)."""

    @property
    def blame(self) -> Blame:
        match self:
            case RejectCause.LANE_FULL | RejectCause.MODEL_FULL | RejectCause.STARTING:
                return Blame.ROOM
            case RejectCause.PATIENCE | RejectCause.LADDER | RejectCause.SHED:
                return Blame.ROOM
            case RejectCause.RESIDENCY:
                return Blame.RULE
            case RejectCause.TENANT_REQUESTS | RejectCause.TENANT_TOKENS | RejectCause.TENANT_CONCURRENCY:
                return Blame.CLIENT
            case RejectCause.DUPLICATE_ID | RejectCause.CONTEXT | RejectCause.QUERY_OF_DEATH:
                return Blame.CLIENT


class Ending(StrEnum):
    """How a lease ended. `REFUSED`: the replica turned the request away before any work (it drains), and the request
    waits again at the head."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"


class PickReason(StrEnum):
    """Why this replica got the request."""

    ONLY_FIT = "only_fit"
    CACHED_PREFIX = "cached_prefix"
    STICKINESS_BROKEN = "stickiness_broken"
    LEAST_PREFILL = "least_prefill"
    LEAST_DECODE = "least_decode"
    SHORTEST_TTFT = "shortest_ttft"
    """Of replicas of different kinds, that with the least expected time to first token."""
    APART_FROM_SHORT = "apart_from_short"
    NEXT_GROUP = "next_group"
    """The groups that its lane names before this one are gone, or have no room."""
    HELD = "held"


class WaitReason(StrEnum):
    """What the head of a lane waits for."""

    NO_READY_REPLICA = "no_ready_replica"
    SEQUENCES = "sequences"
    KV_TOKENS = "kv_tokens"
    PREFILL_BUDGET = "prefill_budget"
    ITL = "itl"
    """More at once would break the time between tokens that a class aims at (`itl_cap.py`)."""
    RESERVED = "reserved"
    """What has room is held for another lane's head (placing.py)."""
    OVER_SHARE = "over_share"
    """All tenants in that lane are over their share, and others wait for the same replicas (tenants.py)."""
