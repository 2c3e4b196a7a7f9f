"""How metrics of the table (`table.py`) reach Prometheus: sources of samples, one collector for all of them, and what
counts between two scrapes."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.registry import Collector

from deployments.telemetry.table import Metric, MetricKind, Sample

Source = Callable[[], Iterable[Sample]]
"""What is read when Prometheus asks."""
_FAMILIES = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


class Exposition(Collector):
    """The samples of several sources, as Prometheus' client wants them. A metric without a sample is left out."""

    def __init__(self, *sources: Source) -> None:
        self.sources = list(sources)

    def collect(self) -> Iterator[MetricFamily]:
        found: dict[Metric, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for metric, labels, value in chain.from_iterable(source() for source in self.sources):
            family = found.get(metric)
            if family is None:
                family = found[metric] = _FAMILIES[metric.kind](metric.name, metric.text, labels=metric.labels)
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(value, list)
                names = [*(str(float(bound)) for bound in metric.bounds), "+Inf"]
                family.add_metric(labels, list(zip(names, accumulate(value[:-1]), strict=True)), value[-1])
            else:
                assert not isinstance(value, list)
                family.add_metric(labels, value)
        yield from found.values()


class MetricCounts:
    """A counter by its labels' values. One loop adds to it and shows it, so that it needs none of the locks and checks
    for which prometheus_client's own take several calls an addition: a request would pay for a hundred."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self.values: Counter[tuple[str, ...]] = Counter()

    def samples(self) -> Iterable[Sample]:
        return ((self._metric, labels, count) for labels, count in self.values.items())


class Distribution:
    """A histogram by its labels' values, like `MetricCounts`."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._bands: dict[tuple[str, ...], list[float]] = {}
        """The counts between the bounds, and above them; last the sum of all values."""

    def observe(self, labels: tuple[str, ...], *values: float) -> None:
        bounds, bands = self._metric.bounds, self._bands.get(labels)
        if bands is None:
            bands = self._bands[labels] = [0.0] * (len(bounds) + 2)
        for value in values:
            bands[bisect_left(bounds, value)] += 1
            bands[-1] += value

    def samples(self) -> Iterable[Sample]:
        return ((self._metric, labels, bands) for labels, bands in self._bands.items())
