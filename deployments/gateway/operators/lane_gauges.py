"""Metrics of lanes, leases and suspects, read from the schedulers' snapshots when Prometheus asks."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.scheduling import Snapshot


class LaneGauges(Collector):
    """Gauges straight from the schedulers' snapshots, as they are when Prometheus asks."""

    def __init__(self, snapshots: Callable[[], Mapping[str, Snapshot]]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        snapshots = self._snapshots()
        parts = (_of_lanes, _of_rates, _of_leases, _of_groups, _of_suspects)
        return [metric for part in parts for metric in part(snapshots)]


def _of_lanes(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    waiting = GaugeMetricFamily("raylane_waiting_requests", "Requests that wait.", labels=("model", "lane"))
    work = GaugeMetricFamily("raylane_waiting_tokens", "Work that waits, in tokens.", labels=("model", "lane"))
    oldest = GaugeMetricFamily("raylane_oldest_wait_seconds", "How long the head has waited.", labels=("model", "lane"))
    seconds = GaugeMetricFamily(
        "raylane_waiting_seconds", "Work that waits, in seconds at the measured rate.", labels=("model", "lane")
    )
    eta = GaugeMetricFamily(
        "raylane_expected_wait_seconds",
        "The wait estimate that a new request would get.",
        labels=("model", "lane", "level"),
    )
    wait_estimates = CounterMetricFamily(
        "raylane_wait_estimates",
        "Wait estimates, by whether their p95 held.",
        labels=("model", "lane", "held"),
    )
    for model, snapshot in snapshots.items():
        for lane in snapshot.lanes:
            waiting.add_metric((model, lane.name), lane.waiting)
            work.add_metric((model, lane.name), lane.work_tokens)
            oldest.add_metric((model, lane.name), lane.oldest_wait_s)
            if lane.work_s is not None:
                seconds.add_metric((model, lane.name), lane.work_s)
            for level, wait_s in zip(("p50", "p95"), lane.eta_s or (), strict=False):
                eta.add_metric((model, lane.name, level), wait_s)
            for held, count in (
                ("yes", lane.covered),
                ("no", lane.estimated - lane.covered),
                ("cancelled", lane.censored),
            ):
                wait_estimates.add_metric((model, lane.name, held), count)
    return waiting, work, seconds, oldest, eta, wait_estimates


def _of_rates(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    promoted = CounterMetricFamily(
        "raylane_promoted", "Requests placed after their lane's max_wait_s.", labels=("model",)
    )
    rate = GaugeMetricFamily(
        "raylane_service_tokens_per_second", "The measured service rate, in booked tokens.", labels=("model",)
    )
    error = GaugeMetricFamily(
        "raylane_output_estimate_error_ratio", "Mean |expected - real| / real output tokens.", labels=("model",)
    )
    other = GaugeMetricFamily(
        "raylane_other_lane_ratio", "Requests that turned out to belong to another lane.", labels=("model",)
    )
    trust = GaugeMetricFamily(
        "raylane_prefix_trust_ratio", "How much of the cache credit proved real.", labels=("model",)
    )
    for model, snapshot in snapshots.items():
        promoted.add_metric((model,), snapshot.promoted)
        for family, value in (
            (rate, snapshot.tokens_per_s),
            (error, snapshot.output_error),
            (other, snapshot.other_lane),
        ):
            if value is not None:
                family.add_metric((model,), value)
        trust.add_metric((model,), snapshot.prefix_trust)
    return promoted, rate, error, other, trust


def _of_leases(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    leases = GaugeMetricFamily("raylane_leases", "Leases held now.", labels=("model", "replica", "state"))
    kv = GaugeMetricFamily("raylane_booked_kv_tokens", "KV tokens booked by leases.", labels=("model", "replica"))
    ended = CounterMetricFamily("raylane_leases_ended", "Leases that ended, by how.", labels=("model", "ending"))
    rejected = CounterMetricFamily(
        "raylane_rejections", "Requests turned away, by lane and cause.", labels=("model", "lane", "cause")
    )
    for model, snapshot in snapshots.items():
        for replica in snapshot.replicas:
            leases.add_metric((model, replica.replica_id, replica.status), replica.leases)
            kv.add_metric((model, replica.replica_id), replica.kv_tokens)
        for ending, count in snapshot.endings.items():
            ended.add_metric((model, ending), count)
        for (lane_name, cause), count in snapshot.rejections.items():
            rejected.add_metric((model, lane_name, cause), count)
    return leases, kv, ended, rejected


def _of_groups(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    """Of models with groups alone: which replica belongs to which, and what each group does."""
    labels = ("model", "group")
    info = GaugeMetricFamily("raylane_replica_group", "1 for each replica of a group.", labels=(*labels, "replica"))
    rate = GaugeMetricFamily(
        "raylane_group_tokens_per_second", "The measured service rate of a group, in booked tokens.", labels=labels
    )
    finished = CounterMetricFamily(
        "raylane_group_finished_requests", "Requests that finished on a group.", labels=labels
    )
    waiting = GaugeMetricFamily(
        "raylane_group_waiting_requests",
        "Requests that wait, by their lane and the groups that may serve them, in order.",
        labels=("model", "lane", "groups"),
    )
    for model, snapshot in snapshots.items():
        for replica in snapshot.replicas if snapshot.groups else ():
            info.add_metric((model, replica.group, replica.replica_id), 1)
        for group in snapshot.groups:
            finished.add_metric((model, group.group), group.finished)
            if group.tokens_per_s is not None:
                rate.add_metric((model, group.group), group.tokens_per_s)
        for demand in snapshot.demands:
            waiting.add_metric((model, demand.lane, ",".join(demand.groups)), demand.waiting)
    return info, rate, finished, waiting


def _of_suspects(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    suspects = GaugeMetricFamily(
        "raylane_suspects", "Bodies that ran when replicas died, by their standing.", labels=("model", "standing")
    )
    aside = GaugeMetricFamily(
        "raylane_waiting_aside", "Requests of suspects, which wait aside of the lanes.", labels=("model",)
    )
    bans = CounterMetricFamily(
        "raylane_queries_of_death", "Bodies at which two replicas died, which are refused.", labels=("model",)
    )
    for model, snapshot in snapshots.items():
        banned = sum(one.banned for one in snapshot.suspects)
        suspects.add_metric((model, "banned"), banned)
        suspects.add_metric((model, "suspect"), len(snapshot.suspects) - banned)
        aside.add_metric((model,), snapshot.aside)
        bans.add_metric((model,), snapshot.bans)
    return suspects, aside, bans
