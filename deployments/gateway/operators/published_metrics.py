"""Files that commands publish, as metrics: the simulator's error (`gateway.simulator_error`) and the drift
(`gateway.drift`), which is on the status page, too."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deployments.telemetry.published_error import PublishedError, read_published
from deployments.traffic.published_drift import PublishedDriftError, read_drift

log = logging.getLogger("raylane.gateway")
_Content = TypeVar("_Content")


class _PublishedFile(Generic[_Content]):
    """The file that a spec's `key` names. What is wrong with it is logged once, not at each scrape."""

    def __init__(self, key: str, path: Path, read: Callable[[Path], _Content], unusable: type[ValueError]) -> None:
        self._key, self._path, self._read, self._unusable = key, path, read, unusable
        self._reported = ""

    def read(self) -> _Content | None:
        """None while it cannot be used."""
        try:
            return self._read(self._path)
        except self._unusable as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.warning("%s: %s", self._key, error)
            return None


class SimulatorErrorMetrics(Collector):
    """Gauges of one file. While it cannot be read there is `raylane_simulator_error_known` 0 and nothing else."""

    def __init__(self, path: Path) -> None:
        self._file = _PublishedFile("gateway.simulator_error", path, read_published, PublishedError)

    def collect(self) -> Iterator[Metric]:
        published = self._file.read()
        yield GaugeMetricFamily(
            "raylane_simulator_error_known",
            "1: a rehearsal has published its error.",
            value=float(published is not None),
        )
        if published is None:
            return
        capacity = GaugeMetricFamily(
            "raylane_simulator_capacity_error_ratio", "Simulated / live capacity - 1.", labels=("model",)
        )
        capacity.add_metric((published.model,), published.capacity_error)
        yield capacity
        errors = GaugeMetricFamily(
            "raylane_simulator_error_ratio",
            "Simulated / live - 1, by load and figure.",
            labels=("model", "load", "figure"),
        )
        spreads = GaugeMetricFamily(
            "raylane_simulator_live_spread_ratio", "How far live runs were apart.", labels=("model", "load", "figure")
        )
        for at in published.loads:
            for figure in at.figures:
                labels = (published.model, f"{at.load:g}", figure.name)
                errors.add_metric(labels, figure.error)
                spreads.add_metric(labels, figure.spread)
        yield errors
        yield spreads


class DriftMetrics(Collector):
    """Gauges of one file. While it cannot be read there is `raylane_drift_known` 0 and nothing else."""

    def __init__(self, path: Path) -> None:
        self._file = _PublishedFile("gateway.drift", path, read_drift, PublishedDriftError)

    def collect(self) -> Iterator[Metric]:
        published = self._file.read()
        yield GaugeMetricFamily(
            "raylane_drift_known", "1: traffic was compared with a worksheet.", value=float(published is not None)
        )
        if published is None:
            return
        yield GaugeMetricFamily(
            "raylane_drift_compared_seconds",
            "Until when traffic was compared with the worksheet (Unix time).",
            value=published.compared_unix_s,
        )
        ratios = GaugeMetricFamily(
            "raylane_drift_ratio",
            "Observed / expected of each figure that is off the worksheet now.",
            labels=("model", "class", "region", "quantity"),
        )
        for one in published.figures:
            ratios.add_metric((one.model, one.traffic_class, one.region, one.quantity), one.ratio)
        yield ratios


def shown_drift(path: str | None) -> dict[str, Any]:
    """For the status page: what was published, if the spec names a file and it can be read."""
    try:
        return {} if path is None else {"drift": read_drift(Path(path)).record()}
    except PublishedDriftError:
        return {}
