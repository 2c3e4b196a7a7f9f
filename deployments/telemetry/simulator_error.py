"""The published error of the simulator as metrics: read when asked, so that a new rehearsal shows at once (`published_error.py` is the file's
format)."""

import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.telemetry.published_error import Published, PublishedError, read_published

logger = logging.getLogger(__name__)


class SimulatorErrorMetrics(Collector):
    """Gauges of one file. While it cannot be read there is `raylane_simulator_error_known` 0 and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        published = self._read()
        yield GaugeMetricFamily("raylane_simulator_error_known", "1: a rehearsal has published its error.", value=float(published is not None))
        if published is None:
            return
        capacity = GaugeMetricFamily("raylane_simulator_capacity_error_ratio", "Simulated / live capacity - 1.", labels=("model",))
        capacity.add_metric((published.model,), published.capacity_error)
        yield capacity
        errors = GaugeMetricFamily("raylane_simulator_error_ratio", "Simulated / live - 1, by load and figure.", labels=("model", "load", "figure"))
        spreads = GaugeMetricFamily("raylane_simulator_live_spread_ratio", "How far live runs were apart.", labels=("model", "load", "figure"))
        for at in published.loads:
            for figure in at.figures:
                labels = (published.model, f"{at.load:g}", figure.name)
                errors.add_metric(labels, figure.error)
                spreads.add_metric(labels, figure.spread)
        yield errors
        yield spreads

    def _read(self) -> Published | None:
        try:
            return read_published(self._path)
        except PublishedError as error:
            if str(error) != self._told:  # once, not at each scrape
                self._told = str(error)
                logger.warning("gateway.simulator_error: %s", error)
            return None
