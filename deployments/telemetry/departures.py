"""Metrics of departures: which replicas, gateways, controllers and directories ended, why, and what was lost with them."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.cell.announced import Announced
from deployments.cell.departure import Tally

_WORDS = ("kind", "model", "cause")


class DepartureMetrics(Collector):
    """Read when Prometheus asks. The directory counts for the whole cell, so one gateway tells it: the first of `gateways` by id, of which this one's
    own comes first."""

    def __init__(self, announced: Announced, gateways: Callable[[], list[str]]) -> None:
        self._announced = announced
        self._gateways = gateways

    def collect(self) -> Iterable[Metric]:
        """The families."""
        ended = CounterMetricFamily("raylane_departures", "What ended, by cause; planned: somebody wanted it.", labels=(*_WORDS, "planned"))
        requests = CounterMetricFamily("raylane_departed_requests", "Requests that ran there, by what became of them.", labels=(*_WORDS, "fate"))
        tokens = CounterMetricFamily("raylane_departed_tokens", "...and their booked tokens.", labels=_WORDS)
        gateways = self._gateways()
        for tally in self._announced.departures.tallies if gateways[0] == min(gateways) else ():
            words = _words(tally)
            ended.add_metric((*words, "yes" if tally.cause.planned else "no"), tally.count)
            for fate in ("broken", "placed_again"):
                requests.add_metric((*words, fate), getattr(tally.lost, fate))
            tokens.add_metric(words, tally.lost.tokens)
        return ended, requests, tokens


def _words(tally: Tally) -> tuple[str, str, str]:
    return tally.kind.value, tally.model, tally.cause.value
