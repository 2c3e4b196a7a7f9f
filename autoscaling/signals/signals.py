"""The facts of one moment from which a scaling law decides. Pure data: shells make them (`from_snapshot.py`), laws read them, logs keep them.

Counts are cumulative since the scheduler's start, so that a law takes differences over whatever span it likes and a lost reading loses nothing. They
start again when the scheduler does (`epoch` changes): whoever takes differences looks at that first. Work is in prefill tokens: uncached prompt plus
weighted expected output, as the scheduler books it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class ReplicaState(StrEnum):
    """As the scheduler sees a replica. `SILENT`: its feed is; what it has stands, nothing new is placed there. `CORDONED`: nothing new is placed
    there, by an operator's word; it is applied all the same. `DRAINING`: it goes, and is not among the applied any more."""

    READY = "ready"
    SILENT = "silent"
    DRAINING = "draining"
    CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class ReplicaSignal:
    """One replica: sequences and KV tokens booked, of how many it can hold; prompt tokens that wait for prefill there."""

    name: str
    state: ReplicaState
    sequences: int
    max_sequences: int
    kv_tokens: int
    max_kv_tokens: int
    prefill_tokens: int
    tpot_s: float | None


@dataclass(frozen=True, slots=True)
class LaneSignal:
    """One lane: requests that wait and their work, the age of the oldest."""

    name: str
    waiting: int
    work: float
    oldest_wait_s: float


@dataclass(frozen=True, slots=True)
class FlowSignal:
    """One class in one lane, counted: requests that arrived, their work and prompt tokens, first tokens in time (`kept`) and not (`missed`).

    `slo_s`: within how many seconds the class promises the first token; `attainment`: of what share of the requests.
    """

    lane: str
    traffic_class: str
    arrived: int
    work: float
    prompt_tokens: int
    kept: int
    missed: int
    slo_s: float
    attainment: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the requests whose first token (TTFT) or end (TPOT) fell into the last `span_s` seconds; 0 where there were none."""

    span_s: float
    requests: int
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p90_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of the arrival of work: the rate (tokens a second) from `at_s` on in even steps of `step_s`, and its standard error.

    Made outside the law, from history, and an input of it like any other: a replayed log has it.
    """

    at_s: float
    step_s: float
    work_per_s: tuple[float, ...]
    error: tuple[float, ...]

    def most_between(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """The largest expected rate, with its standard error, in that span; None where the forecast does not reach."""
        first = max(0, int((start_s - self.at_s) // self.step_s))
        last = int((end_s - self.at_s) // self.step_s)
        if last < 0 or first >= len(self.work_per_s):
            return None
        found = range(first, min(last, len(self.work_per_s) - 1) + 1)
        best = max(found, key=lambda index: self.work_per_s[index])
        return self.work_per_s[best], self.error[best]


@dataclass(frozen=True, slots=True)
class Signals:
    """One moment of one model in one cell.

    `at_s` runs evenly from an arbitrary start, `unix_s` is the time of day; `age_s`: how old the scheduler's books were when they were read.
    `applied`: how many replicas the platform was last told to run; of those, `starting` are not ready yet. `schedulable`: how many could run at most
    on what there is (None: nobody knows). `latencies` and `forecast` are None where the law asks for none, or nobody made one; `forecast_failed`:
    there should be a forecast, and making it went wrong.
    """

    at_s: float
    unix_s: float
    age_s: float
    epoch: int
    applied: int
    starting: int
    schedulable: int | None
    replicas: tuple[ReplicaSignal, ...]
    lanes: tuple[LaneSignal, ...]
    flows: tuple[FlowSignal, ...]
    finished: int
    finished_work: float
    counted: int
    output_tokens: int
    latencies: Latencies | None = None
    forecast: Forecast | None = None
    forecast_failed: bool = False

    def count(self, state: ReplicaState) -> int:
        return sum(replica.state is state for replica in self.replicas)

    @property
    def ready(self) -> int:
        return self.count(ReplicaState.READY)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.lanes)

    @property
    def running(self) -> int:
        return sum(replica.sequences for replica in self.replicas)

    @property
    def backlog(self) -> float:
        return sum(lane.work for lane in self.lanes)

    @property
    def arrived(self) -> int:
        return sum(flow.arrived for flow in self.flows)

    @property
    def arrived_work(self) -> float:
        return sum(flow.work for flow in self.flows)


def unseen(at_s: float, unix_s: float, applied: int) -> Signals:
    """Nothing is known but the number of replicas: infinitely old."""
    return Signals(at_s, unix_s, math.inf, 0, applied, 0, None, (), (), (), 0, 0.0, 0, 0)
