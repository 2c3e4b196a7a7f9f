"""Metrics that are read when Prometheus asks: departures, ownership and scaling."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.spec import group_of, model_of
from deployments.cell.departure import DepartureTally
from deployments.cell.listing import Announced
from deployments.ownership.owner_tracker import OwnerTracker

_WORDS = ("kind", "model", "cause")


def new_registry() -> CollectorRegistry:
    """One that tells of this process and its Python already."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for collector in (PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


class DepartureMetrics(Collector):
    """Read when Prometheus asks. The directory counts for the whole cell, so one gateway tells it: the first of
    `gateways` by id, of which this one's own comes first."""

    def __init__(self, announced: Announced, gateways: Callable[[], list[str]]) -> None:
        self._announced = announced
        self._gateways = gateways

    def collect(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "raylane_departures", "What ended, by cause; planned: somebody wanted it.", labels=(*_WORDS, "planned")
        )
        requests = CounterMetricFamily(
            "raylane_departed_requests", "Requests that ran there, by what became of them.", labels=(*_WORDS, "fate")
        )
        tokens = CounterMetricFamily("raylane_departed_tokens", "...and their booked tokens.", labels=_WORDS)
        gateways = self._gateways()
        for tally in self._announced.departures.tallies if gateways[0] == min(gateways) else ():
            words = _words(tally)
            ended.add_metric((*words, "yes" if tally.cause.planned else "no"), tally.count)
            for fate in ("broken", "placed_again"):
                requests.add_metric((*words, fate), getattr(tally.lost, fate))
            tokens.add_metric(words, tally.lost.tokens)
        return ended, requests, tokens


def _words(tally: DepartureTally) -> tuple[str, str, str]:
    return tally.kind.value, tally.model, tally.cause.value


@dataclass(frozen=True, slots=True)
class OwnershipStatus:
    """One model at one gateway. `epoch`: under which it owns the model; None: it does not. `lost_requests` and
    `lost_tokens` are what gateways that died took with them, `reconciled` how often a replica's report disagreed with
    the scheduler."""

    epoch: int | None
    follows: bool
    taken_over: int
    handed_on: int
    reconciled: int
    lost_requests: int
    lost_tokens: int


def standing_of(owner_tracker: OwnerTracker) -> OwnershipStatus:
    dispatcher = owner_tracker.dispatcher
    own = dispatcher.own
    losses = dispatcher.losses
    reconciled = own.reconciled if own is not None else 0
    return OwnershipStatus(
        owner_tracker.epoch,
        dispatcher.owner is not None,
        owner_tracker.taken_over,
        dispatcher.handed_on,
        reconciled,
        losses.requests,
        losses.tokens,
    )


class OwnershipMetrics(Collector):
    """Read when Prometheus asks."""

    def __init__(self, standings: Callable[[], Mapping[str, OwnershipStatus]]) -> None:
        self._standings = standings

    def collect(self) -> Iterable[Metric]:
        epoch = GaugeMetricFamily(
            "raylane_owner_epoch",
            "The epoch under which this gateway owns the model; 0: it does not.",
            labels=("model",),
        )
        follows = GaugeMetricFamily(
            "raylane_owner_known", "1 while this gateway knows an owner that answers.", labels=("model",)
        )
        taken = CounterMetricFamily("raylane_takeovers", "How often this gateway became the owner.", labels=("model",))
        handed = CounterMetricFamily(
            "raylane_handed_on", "Waiting requests that were handed to another owner.", labels=("model",)
        )
        reconciled = CounterMetricFamily(
            "raylane_reconciled_leases", "Leases corrected after a replica's own word.", labels=("model",)
        )
        lost = CounterMetricFamily(
            "raylane_lost_requests", "Running requests that died with their gateway.", labels=("model",)
        )
        tokens = CounterMetricFamily("raylane_lost_tokens", "...and their booked tokens.", labels=("model",))
        for model, standing in self._standings().items():
            epoch.add_metric((model,), standing.epoch or 0)
            follows.add_metric((model,), float(standing.follows))
            for family, value in (
                (taken, standing.taken_over),
                (handed, standing.handed_on),
                (reconciled, standing.reconciled),
                (lost, standing.lost_requests),
                (tokens, standing.lost_tokens),
            ):
                family.add_metric((model,), value)
        return (epoch, follows, taken, handed, reconciled, lost, tokens)


class StartMetrics(Collector):
    """Read when Prometheus asks. The directory counts for the whole cell, so one gateway tells it, as with
    `DepartureMetrics`."""

    def __init__(self, announced: Announced, gateways: Callable[[], list[str]]) -> None:
        self._announced = announced
        self._gateways = gateways

    def collect(self) -> Iterable[Metric]:
        labels = ("model", "phase")
        starting = GaugeMetricFamily("raylane_starting_replicas", "Replicas that start, by phase.", labels=labels)
        started = CounterMetricFamily("raylane_starts", "Starts that went well.", labels=("model",))
        seconds = CounterMetricFamily("raylane_start_seconds", "...and their time, by phase.", labels=labels)
        failed = CounterMetricFamily("raylane_failed_starts", "Starts that failed, by phase.", labels=labels)
        last = GaugeMetricFamily("raylane_last_start_seconds", "The model's last start, by phase.", labels=labels)
        starts, gateways = self._announced.starts, self._gateways()
        if gateways[0] != min(gateways):
            return starting, started, seconds, failed, last
        counts = Counter((start.model, start.phase.value) for start in starts.running)
        for (model, phase), count in sorted(counts.items()):
            starting.add_metric((model, phase), count)
        for tally in starts.tallies:
            started.add_metric((tally.model,), tally.ready)
            for name, spent_s in tally.seconds.items():
                seconds.add_metric((tally.model, name.value), spent_s)
            for name, number in tally.failed_in.items():
                failed.add_metric((tally.model, name.value), number)
        for model, start in {start.model: start for start in starts.done}.items():
            for name, spent_s in start.seconds.items():
                last.add_metric((model, name.value), spent_s)
        return starting, started, seconds, failed, last


class ScalingMetrics(Collector):
    """Read when Prometheus asks. `owned` names the models."""

    def __init__(self, announced: Announced, owned: Callable[[], Iterable[str]]) -> None:
        self._announced = announced
        self._owned = owned

    def collect(self) -> Iterable[Metric]:
        owned = frozenset(self._owned())
        return (*self._orders(owned), *self._scaling(owned))

    def _orders(self, owned: frozenset[str]) -> Iterable[Metric]:
        orders = self._announced.orders
        number = GaugeMetricFamily(
            "raylane_control",
            "Replicas that an operator holds (at least) or pins (exactly).",
            labels=("model", "kind"),
        )
        until = GaugeMetricFamily(
            "raylane_control_until_seconds", "When that ends, as a Unix time.", labels=("model", "kind")
        )
        cordoned = GaugeMetricFamily(
            "raylane_cordoned_replicas", "Replicas that an operator keeps new work off.", labels=("model",)
        )
        acts = CounterMetricFamily(
            "raylane_operator_acts", "What operators did, by kind, as the audit has it.", labels=("model", "kind")
        )
        for model in sorted(owned):
            cordoned.add_metric((model,), len(orders.cordoned(model)))
        for key in sorted({key for key, _ in orders.controls if model_of(key) in owned}):
            for control in self._announced.controls_of(key):
                number.add_metric((key, control.kind.value), control.replicas)
                until.add_metric((key, control.kind.value), control.until_unix_s)
        for model, kind, count in orders.acts:
            if model_of(model) in owned:
                acts.add_metric((model, kind.value), count)
        return number, until, cordoned, acts

    def _scaling(self, owned: frozenset[str]) -> Iterable[Metric]:
        scaling = self._announced.scaling
        replicas = GaugeMetricFamily(
            "raylane_replicas", "Replicas as their autoscaler sees them.", labels=("model", "state")
        )
        decided = GaugeMetricFamily(
            "raylane_scaling_decided_seconds", "When it last decided something new, as a Unix time.", labels=("model",)
        )
        decisions = CounterMetricFamily(
            "raylane_scaling_decisions", "Its decisions, by reason.", labels=("model", "reason")
        )
        alarms = CounterMetricFamily(
            "raylane_scaling_alarms", "What was wrong when it decided, by kind.", labels=("model", "kind")
        )
        overflow = GaugeMetricFamily(
            "raylane_scaling_overflow",
            "The share of a group's demand that it cannot carry, which the next group is to carry.",
            labels=("model", "group"),
        )
        for state in scaling.states:
            if model_of(state.model) in owned:
                if (group := group_of(state.model)) is not None:
                    overflow.add_metric((model_of(state.model), group), state.overflow)
                decided.add_metric((state.model,), state.at_unix_s)
                for name in ("requested", "applied", "ready", "starting"):
                    replicas.add_metric((state.model, name), getattr(state, name))
        for family, counts in ((decisions, scaling.decisions), (alarms, scaling.alarms)):
            for model, word, count in counts:
                if model_of(model) in owned:
                    family.add_metric((model, word), count)
        return replicas, decided, decisions, alarms, overflow
