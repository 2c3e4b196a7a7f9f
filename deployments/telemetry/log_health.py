"""Whether logs can be written: a write that fails is counted and told here, and takes nothing else with it."""

import logging
import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = logging.getLogger("raylane.logs")

_WARN_EVERY_S = 60.0


class LogHealth:
    """Of one log. `error`: why nothing can be written to it now; None: it is well."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost_lines = 0
        self.error: str | None = None
        self._warned_s = -_WARN_EVERY_S

    def lost(self, lines: int, error: Exception | None = None) -> None:
        """So many lines could not be written; `error` is None where it was not even tried, since it had just failed."""
        self.lost_lines += lines
        if error is None:
            return
        new, self.error = self.error is None, f"{type(error).__name__}: {error}"
        now = time.monotonic()
        if new and now - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now
            log.warning("log %s cannot be written (%s); its lines are lost until it can, and nothing else", self.name, self.error)

    def well(self) -> None:
        """A line was written."""
        if self.error is not None:
            self.error = None
            log.info("log %s is written again; %d lines were lost by now", self.name, self.lost_lines)


class Logs(Collector):
    """The logs of one process, by their names: a Prometheus collector."""

    def __init__(self) -> None:
        self._known: dict[str, LogHealth] = {}

    def named(self, name: str) -> LogHealth:
        """The health of a log, which is known from now on."""
        return self._known.setdefault(name, LogHealth(name))

    def failing(self) -> list[LogHealth]:
        """Those that cannot be written now."""
        return [health for health in self._known.values() if health.error is not None]

    def collect(self) -> Iterable[Metric]:
        """The families, one sample a log."""
        lost = CounterMetricFamily("raylane_log_lines_lost", "Lines of a log that could not be written.", labels=("log",))
        failing = GaugeMetricFamily("raylane_log_failing", "1 while a log cannot be written.", labels=("log",))
        for health in self._known.values():
            lost.add_metric((health.name,), health.lost_lines)
            failing.add_metric((health.name,), float(health.error is not None))
        return lost, failing
