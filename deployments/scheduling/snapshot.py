"""What the scheduler shows of itself: read by metrics, `raylane status` and `top` and, later, the autoscaler."""

from dataclasses import dataclass

from cluster.group_key import DEFAULT_GROUP
from deployments.ladder_stats import LadderStats
from deployments.lane_stats import LaneStats
from deployments.scheduling.request import Request, Suspicion


@dataclass(frozen=True, slots=True)
class FlowStats:
    """One class in one lane, counted since the start (`tally.py`): requests that arrived, their work and prompts
    (tokens), and how many met and missed the SLO, a first token within `slo_s`."""

    lane: str
    traffic_class: str
    arrived: int
    work: float
    prompt_tokens: int
    met: int
    missed: int
    slo_s: float


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """One replica's bookings, and what it can hold at most. `held_by`: the lane for which it is kept free. `itl_class`:
    the class whose `itl_ms` caps the sequences."""

    replica_id: str
    status: str
    leases: int
    sequences: int
    kv_tokens: int
    prefill_tokens: int
    prefill_tokens_per_s: float
    held_by: str | None
    max_sequences: int
    max_kv_tokens: int
    tpot_s: float | None
    group: str = DEFAULT_GROUP
    itl_class: str | None = None


@dataclass(frozen=True, slots=True)
class DemandStats:
    """Of a model with groups: the requests of one lane that these `groups` can serve, in the order in which they are
    tried. So many wait, and `work_tokens` of work; `arrived`, `work` and `prompt_tokens` count since the start.
    `running`: how many sequences of them run in each group, by name."""

    lane: str
    groups: tuple[str, ...]
    waiting: int
    work_tokens: float
    arrived: int
    work: float
    prompt_tokens: int
    running: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One of several groups: its service rate in prefill tokens (None: not known yet); since the start, the requests
    that finished there and the work that was booked for them, and the output tokens that the engines reported for
    `counted` of them."""

    group: str
    tokens_per_s: float | None
    finished: int
    finished_work: float
    output_tokens: int
    counted: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The scheduler at one moment. Always `placed` + `adopted` = leases now + the sum of `endings`.

    `rejections` counts by lane and cause. `tokens_per_s` is the service rate in prefill tokens. `output_error` is the
    mean relative error of expected outputs, `other_lane` the share of requests that turned out to belong elsewhere,
    `prefix_trust` how much of the cache credit proved real.
    """

    lanes: tuple[LaneStats, ...]
    replicas: tuple[ReplicaStats, ...]
    submitted: int
    placed: int
    adopted: int
    promoted: int
    endings: dict[str, int]
    rejections: dict[tuple[str, str], int]
    tokens_per_s: float | None
    output_error: float | None
    other_lane: float | None
    prefix_trust: float
    flows: tuple[FlowStats, ...]
    finished: int
    finished_work: float
    output_tokens: int
    """Of the `counted` among the finished requests, those that the engines reported."""
    counted: int
    suspects: tuple[Suspicion, ...] = ()
    """Bodies that ran when replicas died (`suspects.py`), with `bans` so far, and how many requests wait `aside` of the
    lanes for it."""
    bans: int = 0
    aside: int = 0
    demands: tuple[DemandStats, ...] = ()
    """Both empty for a model with one group."""
    groups: tuple[GroupStats, ...] = ()
    withdrawn: int = 0
    """Requests that left their lanes for a peer cell, of which so many are `away` now; `guests`: those that came from
    one. Guests are in no flow and no demand: they count where they arrived."""
    away: int = 0
    guests: int = 0
    ladder: LadderStats | None = None


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits in that lane, or would: for `p95_s` still (95th percentile, in seconds; None: not known).

    `output_tokens` are expected of each of its sequences; `cached_tokens` of its prompt some replica should have
    cached.
    """

    request: Request
    lane: str
    p95_s: float | None
    output_tokens: int = 0
    cached_tokens: int = 0
