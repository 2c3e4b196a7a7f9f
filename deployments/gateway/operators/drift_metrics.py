"""The published drift as metrics and for the status page (`gateway.drift`)."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deployments.traffic.published_drift import PublishedDrift, PublishedDriftError, read_drift

log = logging.getLogger("raylane.gateway")


class DriftMetrics(Collector):
    """Gauges of one file. While it cannot be read there is `raylane_drift_known` 0 and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reported = ""

    def collect(self) -> Iterator[Metric]:
        published = self._read()
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
            labels=("model", "class", "region", "quantity", "direction"),
        )
        for alarm in published.alarms:
            labels = alarm.model, alarm.traffic_class, alarm.region, alarm.quantity, alarm.direction
            ratios.add_metric(labels, alarm.ratio)
        yield ratios

    def _read(self) -> PublishedDrift | None:
        try:
            return read_drift(self._path)
        except PublishedDriftError as error:
            if str(error) != self._reported:  # once, not at each scrape
                self._reported = str(error)
                log.warning("gateway.drift: %s", error)
            return None


def shown_drift(path: str | None) -> dict[str, Any]:
    """For the status page: what was published, if the spec names a file and it can be read."""
    try:
        return {} if path is None else {"drift": read_drift(Path(path)).record()}
    except PublishedDriftError:
        return {}
