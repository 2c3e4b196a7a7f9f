"""Metrics of ownership: which models this gateway owns, how often that changed, what was handed on, mended and lost."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.ownership.allegiance import Allegiance


@dataclass(frozen=True, slots=True)
class Standing:
    """One model at one gateway. `epoch`: under which it owns the model; None: it does not. `lost_requests` and `lost_tokens` are what gateways that
    died took with them, `reconciled` how often a replica's word disagreed with the books."""

    epoch: int | None
    follows: bool
    taken_over: int
    handed_on: int
    reconciled: int
    lost_requests: int
    lost_tokens: int


def standing_of(allegiance: Allegiance) -> Standing:
    """How things stand now."""
    desk = allegiance.desk
    own = desk.own
    losses = desk.losses
    reconciled = own.reconciled if own is not None else 0
    return Standing(allegiance.epoch, desk.owner is not None, allegiance.taken_over, desk.handed_on, reconciled, losses.requests, losses.tokens)


class OwnershipMetrics(Collector):
    """Read when Prometheus asks."""

    def __init__(self, standings: Callable[[], Mapping[str, Standing]]) -> None:
        self._standings = standings

    def collect(self) -> Iterable[Metric]:
        """The families, one sample a model."""
        epoch = GaugeMetricFamily("raylane_owner_epoch", "The epoch under which this gateway owns the model; 0: it does not.", labels=("model",))
        follows = GaugeMetricFamily("raylane_owner_known", "1 while this gateway knows an owner that answers.", labels=("model",))
        taken = CounterMetricFamily("raylane_takeovers", "How often this gateway became the owner.", labels=("model",))
        handed = CounterMetricFamily("raylane_handed_on", "Waiting requests that were handed to another owner.", labels=("model",))
        reconciled = CounterMetricFamily("raylane_reconciled_leases", "Leases mended after a replica's own word.", labels=("model",))
        lost = CounterMetricFamily("raylane_lost_requests", "Running requests that died with their gateway.", labels=("model",))
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
