"""The report of a cell: what `/raylane/status` answers, and `raylane status`, `top`, `shadow` and the commands that
wait for a cell read; and that of all cells of a cluster (`raylane status --all-regions`).

Gateways make it (`status.py`, merged by `other_gateways.py`); `wire.py` carries it as JSON. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from deployments.cell.control import Control, Cordon
from deployments.cell.departure import Departure
from deployments.cell.scaling_state import ScalingState
from deployments.ladder_stats import LadderStats
from deployments.lane_stats import LaneStats
from deployments.protocol import DrainReason
from deployments.starts.start import FailingModel, ReplicaStart
from deployments.traffic.published_drift import PublishedDrift

STATUS_PATH = "/raylane/status"
ContentT = TypeVar("ContentT")
NO_ENDINGS = {"finished": 0, "cancelled": 0, "failed": 0, "refused": 0}


@dataclass(frozen=True, slots=True)
class FailingLog:
    """A log that cannot be written now, and how many of its lines were lost by now."""

    name: str
    error: str
    lost_lines: int


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """One gateway. `url` is where clients find it, `cell_url` where the cell's other processes do."""

    id: str
    pid: int
    url: str
    cell_url: str
    uptime_s: float
    flows: int
    open_ledgers: int
    draining: bool
    failing_logs: tuple[FailingLog, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica: the scheduler's bookings, and what its feed says; None where it has said nothing yet.
    `max_num_seqs` is the engine's own limit, `max_sequences` the present one, capped for `itl_class`."""

    replica_id: str
    group: str
    state: str
    leases: int
    booked_kv_tokens: int
    max_sequences: int
    itl_class: str | None = None
    cordon: Cordon | None = None
    start: ReplicaStart | None = None
    url: str | None = None
    pid: int | None = None
    node_id: str | None = None
    zone: str | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    engine_running: int | None = None
    engine_waiting: int | None = None
    engine_exchanges: int | None = None
    kv_usage: float | None = None
    drains_for: DrainReason | None = None


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What a model's owner knows of a peer cell: how old its digest is by this cell's clock (None: there is none, or
    the connection broke since), and why nothing is handed over to it now, whatever the request."""

    cell: str
    age_s: float | None
    rtt_s: float | None
    trust: float
    barred: str | None


@dataclass(frozen=True, slots=True)
class SuspectReport:
    """A body that ran when replicas died (`scheduling/suspects.py`)."""

    digest: str
    deaths: int
    banned: bool
    forgotten_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """What scales by itself: one of a model's several groups, `model` being its `MODEL@GROUP`. `overdue_s`: how long
    ago the last decision was, where another one should have come."""

    name: str
    model: str
    desired_replicas: int
    scaling: ScalingState | None = None
    overdue_s: float | None = None
    controls: tuple[Control, ...] = ()
    ready: int = 0
    leases: int = 0
    tokens_per_s: float | None = None
    finished: int = 0


@dataclass(frozen=True, slots=True)
class Ttfts:
    """The times to first token of the last minute's requests, in milliseconds."""

    p50: float
    p95: float
    p99: float
    requests: int


@dataclass(frozen=True, slots=True)
class SloReport:
    """An SLO (`ttft` or `itl`) of a class: the `attainment` of its requests should stay within `limit_ms`; so many met
    it and missed it since the gateways started (`telemetry/slo.py`)."""

    traffic_class: str
    slo: str
    limit_ms: float
    attainment: float
    met: int
    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model. From `owner` on: what the gateway says that owns it; the defaults where nobody does.

    `groups` is empty for a model with one, which then has the decision and the controls itself. `rejections` counts by
    lane and cause. The fields that `Snapshot` has, too, mean the same. `ttft_ms`: None without a request.
    """

    name: str
    engine: str
    desired_replicas: int
    scaling: ScalingState | None = None
    overdue_s: float | None = None
    controls: tuple[Control, ...] = ()
    groups: tuple[GroupReport, ...] = ()
    starting: tuple[ReplicaStart, ...] = ()
    failing_start: FailingModel | None = None
    ttft_ms: Ttfts | None = None
    slos: tuple[SloReport, ...] = ()
    under_way: int = 0
    handed_on: int = 0
    lost_requests: int = 0
    lost_tokens: int = 0
    owner: str | None = None
    epoch: int | None = None
    reconciled: int = 0
    peers: tuple[PeerReport, ...] = ()
    lanes: tuple[LaneStats, ...] = ()
    replicas: tuple[ReplicaReport, ...] = ()
    leases: int = 0
    submitted: int = 0
    placed: int = 0
    adopted: int = 0
    promoted: int = 0
    endings: Mapping[str, int] = field(default_factory=lambda: NO_ENDINGS)
    rejections: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    waiting_aside: int = 0
    suspects: tuple[SuspectReport, ...] = ()
    ladder: LadderStats | None = None
    tokens_per_s: float | None = None
    output_error: float | None = None
    other_lane: float | None = None
    prefix_trust: float = 0.0

    @property
    def model(self) -> str:
        """As a group's: the key by which its scaling is known."""
        return self.name

    @property
    def scaled(self) -> "tuple[ModelReport | GroupReport, ...]":
        """What scales by itself."""
        return self.groups or (self,)

    @property
    def ready(self) -> int:
        return sum(replica.state == "ready" for replica in self.replicas)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class CellReport:
    """The cell as `gateway` sees it, which was asked; `gateways` are all that answered, this one first. `departures`:
    the last ones, oldest first. `drift`: what was published, if the spec names a file that can be read."""

    cluster: str
    gateway: GatewayReport
    gateways: tuple[GatewayReport, ...]
    run_dir: str
    models: tuple[ModelReport, ...]
    departures: tuple[Departure, ...] = ()
    drift: PublishedDrift | None = None
    schema: int = 3


@dataclass(frozen=True, slots=True)
class RegionAnswer(Generic[ContentT]):
    """What one cell answered. `age_s`: how old `content` is, by the asker's clock; both are None where nothing is known
    of the cell. `error`: why it is not `reachable`."""

    region: str
    endpoint: str
    reachable: bool
    age_s: float | None
    error: str
    content: ContentT | None


@dataclass(frozen=True, slots=True)
class RegionsReport(Generic[ContentT]):
    """All cells of a cluster, as the cell `home` sees them (`/raylane/regions`)."""

    home: str
    regions: tuple[RegionAnswer[ContentT], ...]


@dataclass(frozen=True, slots=True)
class TtftSample:
    """So many requests, and the percentiles of their times (0 to 100, in seconds; none without a request)."""

    requests: int
    percentiles_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """What one gateway says by itself (`?here=1`), for another one that makes the cell's report: `ttfts` by model."""

    report: CellReport
    ttfts: Mapping[str, TtftSample]
