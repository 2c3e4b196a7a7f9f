"""Every outcome of peering, as closed enums: their values are the words in logs, metric labels and response headers."""

from enum import StrEnum


class HandOverReason(StrEnum):
    """Why a request is handed over to a peer."""

    SOONER = "sooner"
    """Its home would miss the SLO, and the peer is not late."""
    CHEAPER = "cheaper"
    """Its class prefers price, and the peer holds the SLO for less."""
    NO_REPLICA = "no_replica"
    """Its home has no replica that could serve it."""
    RESIDENCY = "residency"
    """Its home may not serve it, and the peer may."""


class StayReason(StrEnum):
    """Why a request stays in the cell where it is. Of several peers the one that came furthest in this order says
    why."""

    NO_PEER = "no_peer"
    """The cluster has no other cell."""
    HANDED_OVER = "handed_over"
    """It has had its one hop."""
    IN_TIME = "in_time"
    """Its home meets the SLO, and no cheaper cell is preferred."""
    NO_ESTIMATE = "no_estimate"
    """Its wait at home is not known yet."""
    RESIDENCY = "residency"
    """No other cell may serve it."""
    TENANT = "tenant"
    """Its tenant may not use the capacity of another cell."""
    REJECTED = "rejected"
    """The peer has rejected it before."""
    NO_DIGEST = "no_digest"
    """Nothing is known of the peer, or nothing fresh."""
    SPEC = "spec"
    """The peer's spec differs in what the request needs."""
    NO_REPLICA_THERE = "no_replica_there"
    QUIET = "quiet"
    """The peer hands over requests itself, or has done so to this cell a moment ago."""
    LOADED = "loaded"
    """The peer has no room to spare."""
    PREFILLING = "prefilling"
    """What was sent to the peer before is still being prefilled: more would hold up the peer's own clients."""
    LATE_THERE = "late_there"
    """The peer would be late, too."""
    NOT_SOONER = "not_sooner"
    """The peer would be sooner, but not by the margin."""
    NOT_CHEAPER = "not_cheaper"
    """The peer would be in time, but is not cheaper by the share that is asked for."""


class DigestRefusal(StrEnum):
    """Why a digest is not taken over."""

    UNKNOWN_CELL = "unknown_cell"
    NO_ANSWER = "no_answer"
    """It answers no open question of this cell: it was sent before, or to another cell."""
    OLD_EPOCH = "old_epoch"
    """Its cell has restarted since."""
    OLD_SEQUENCE = "old_sequence"
    """A later one was taken over before, or the same."""
    BAD_VALUE = "bad_value"
    """It holds a number that cannot be."""


class HopRefusal(StrEnum):
    """Why a request that is handed over comes back: what the peer says, or what its home finds."""

    UNKNOWN_CELL = "unknown_cell"
    LOOP = "loop"
    """It has crossed a hop before, or comes from this cell."""
    TWICE = "twice"
    """A guest of that id is here, or was."""
    SPEC = "spec"
    """The specs differ in what the request needs."""
    RESIDENCY = "residency"
    """This cell may not serve it."""
    LATE = "late"
    """This cell would be late."""
    LOADED = "loaded"
    """This cell has no room to spare."""
    REJECTED = "rejected"
    """This cell's scheduler rejects it."""
    UNREACHABLE = "unreachable"
    """The peer did not answer, so that it never had the request."""
    LOST = "lost"
    """The peer had it, and broke off before the client had a byte."""
