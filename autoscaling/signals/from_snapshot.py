"""From the scheduler's snapshot to signals, live (by the page on which an owner shows its books) and in the simulator alike. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from autoscaling.signals.signals import FlowSignal, Forecast, LaneSignal, Latencies, ReplicaSignal, ReplicaState, Signals
from deployments.cell.scaling_books import Books
from deployments.scheduling import Snapshot

_STATES = {
    "ready": ReplicaState.READY,
    "ejected": ReplicaState.READY,
    "suspect": ReplicaState.SILENT,
    "cordoned": ReplicaState.CORDONED,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """When and where a snapshot was taken: see `Signals`."""

    at_s: float
    unix_s: float
    applied: int
    epoch: int = 1
    age_s: float = 0.0
    schedulable: int | None = None


def signals_of(
    books: Snapshot,
    moment: Moment,
    attainment: Mapping[str, float],
    latencies: Latencies | None = None,
    forecast: Forecast | None = None,
    forecast_failed: bool = False,
) -> Signals:
    """`attainment`: what each class promises; one that is not named promises 0.99."""
    replicas = tuple(
        ReplicaSignal(
            r.replica_id,
            _STATES.get(r.status, ReplicaState.DRAINING),
            r.sequences,
            r.max_sequences,
            r.kv_tokens,
            r.max_kv_tokens,
            r.prefill_tokens,
            r.tpot_s,
        )
        for r in books.replicas
    )
    there = sum(replica.state is not ReplicaState.DRAINING for replica in replicas)
    return Signals(
        moment.at_s,
        moment.unix_s,
        moment.age_s,
        moment.epoch,
        moment.applied,
        max(0, moment.applied - there),
        moment.schedulable,
        replicas,
        tuple(LaneSignal(lane.name, lane.waiting, lane.work_tokens, lane.oldest_wait_s) for lane in books.lanes),
        tuple(
            FlowSignal(f.lane, f.traffic_class, f.arrived, f.work, f.prompt_tokens, f.kept, f.missed, f.slo_s, attainment.get(f.traffic_class, 0.99))
            for f in books.flows
        ),
        books.finished,
        books.finished_work,
        books.counted,
        books.output_tokens,
        latencies,
        forecast,
        forecast_failed,
    )


def signals_from(books: Books, moment: Moment, forecast: Forecast | None = None, forecast_failed: bool = False) -> Signals:
    """The facts of that moment, `moment.age_s` after the page was read; what the page says of epoch, classes and latencies goes over `moment`."""
    told = books.latencies
    latencies = None if told is None else Latencies(**{one.name: getattr(told, one.name) for one in dataclasses.fields(told)})
    moment = dataclasses.replace(moment, epoch=books.epoch, age_s=books.age_s + moment.age_s)
    return signals_of(books.snapshot, moment, books.attainment, latencies, forecast, forecast_failed)
