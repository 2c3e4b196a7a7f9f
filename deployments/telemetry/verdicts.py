"""What can be decided on one request: the words of `raylane why`, the trace file and its readers."""

from enum import StrEnum


class RequestVerdict(StrEnum):
    """What was decided. The first three are the scheduler's admission; `REFUSED`, `RESUBMITTED` and `EXPIRED` end a
    request or an attempt. `DROPPED_TURNS`: the oldest turns of its conversation went, before it was submitted.

    `REFUSED`: a replica took no work. `RESUBMITTED`: it died at the work, or its engine did. After either the request
    waits again. The rest is of hand-overs between cells. `OFFERED`: to a peer, which has rejected it (`HOP_REJECTED`),
    has it (`HANDED_OVER`) or was lost (`HOP_BROKE`). `GUEST`: a peer has handed it over to this cell.
    `ESTIMATED`: what the peer's engine counted has not come, and what was booked stands. `FELL_BACK`: another model
    is asked in the place of its own. `CLAMPED`: its answer is to be shorter than it asked for. `EXTERNAL`: the
    external tier was to answer it. `CACHED`: a kept answer was given again.
    """

    ADMITTED = "admitted"
    QUEUED = "queued"
    REJECTED = "rejected"
    PROMOTED = "promoted"
    PLACED = "placed"
    REFUSED = "refused"
    RESUBMITTED = "resubmitted"
    EXPIRED = "expired"
    OFFERED = "offered"
    HOP_REJECTED = "hop_rejected"
    HANDED_OVER = "handed_over"
    HOP_BROKE = "hop_broke"
    GUEST = "guest"
    ESTIMATED = "estimated"
    FELL_BACK = "fell_back"
    CLAMPED = "clamped"
    EXTERNAL = "external"
    DROPPED_TURNS = "dropped_turns"
    CACHED = "cached"
