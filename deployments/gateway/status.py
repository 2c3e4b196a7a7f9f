"""The gateway's view of its cell as plain data: `raylane status`, readiness, and Prometheus' target list read it."""

import os
import time
from collections.abc import Callable
from typing import Any

from cluster.spec import ClusterSpec
from deployments.gateway.feeds import Feeds
from deployments.gateway.service import Service
from deployments.telemetry.ledger import Ledger, Outcome
from deployments.telemetry.window import Window

WINDOW_S = 60.0


class Status:
    """Reads owners and feeds; keeps the last minute's TTFTs."""

    def __init__(self, spec: ClusterSpec, service: Service, feeds: Feeds, url: str, run_dir: str, open_ledgers: Callable[[], int]) -> None:
        self._spec = spec
        self._service = service
        self._feeds = feeds
        self._url = url
        self._run_dir = run_dir
        self._open_ledgers = open_ledgers
        self._started_s = time.monotonic()
        self._ttft_s = {name: Window(WINDOW_S) for name in service.owners}

    def observe(self, ledger: Ledger) -> None:
        """Notes the TTFT of a closed ledger."""
        if ledger.ttft_s is not None and ledger.outcome is Outcome.OK and ledger.model in self._ttft_s:
            self._ttft_s[ledger.model].add(ledger.ttft_s, time.monotonic())

    def models_without_replica(self) -> list[str]:
        """Models that should have a ready replica and have none."""
        return [name for name, owner in self._service.owners.items() if owner.model.replicas.count > 0 and not owner.ready_replicas]

    def targets(self) -> list[dict[str, Any]]:
        """Prometheus' http_sd form. An engine's /metrics asks for the cluster's secret, the gateway's for nothing on its own machine."""
        groups = [{"targets": [_address(self._url)], "labels": {"__metrics_path__": "/metrics", "raylane_role": "gateway", "cell": self._spec.name}}]
        for feed in self._feeds.by_replica.values():
            labels = {"__metrics_path__": "/metrics", "raylane_role": "engine", "cell": self._spec.name, "model": feed.facts.model}
            groups.append({"targets": [_address(feed.facts.url)], "labels": {**labels, "replica": feed.facts.replica_id}})
        return groups

    def report(self) -> dict[str, Any]:
        """Everything that `raylane status` shows."""
        return {
            "schema": 1,
            "cluster": self._spec.name,
            "gateway": {
                "pid": os.getpid(),
                "url": self._url,
                "uptime_s": time.monotonic() - self._started_s,
                "flows": len(self._service.flows),
                "open_ledgers": self._open_ledgers(),
                "draining": self._service.draining,
            },
            "run_dir": self._run_dir,
            "models": [self._model(name) for name in self._service.owners],
        }

    def _model(self, name: str) -> dict[str, Any]:
        owner = self._service.owners[name]
        snapshot = owner.snapshot()
        return {
            "name": name,
            "wanted_replicas": owner.model.replicas.count,
            "lanes": [
                {
                    "name": lane.name,
                    "waiting": lane.waiting,
                    "tokens": lane.work_tokens,
                    "work_s": lane.work_s,
                    "eta_s": lane.eta_s,
                    "eta_covered": lane.covered,
                    "eta_promised": lane.promised,
                    "oldest_wait_s": lane.oldest_wait_s,
                    "head_waits_for": lane.head_waits_for,
                }
                for lane in snapshot.lanes
            ],
            "leases": sum(replica.leases for replica in snapshot.replicas),
            "submitted": snapshot.submitted,
            "placed": snapshot.placed,
            "endings": snapshot.endings,
            "rejections": {f"{lane}/{cause}": count for (lane, cause), count in snapshot.rejections.items()},
            "promoted": snapshot.promoted,
            "tokens_per_s": snapshot.tokens_per_s,
            "output_error": snapshot.output_error,
            "other_lane": snapshot.other_lane,
            "prefix_trust": snapshot.prefix_trust,
            "ttft_ms": self._quantiles(name),
            "replicas": [self._replica(stats.replica_id, stats) for stats in snapshot.replicas],
        }

    def _replica(self, replica_id: str, stats: Any) -> dict[str, Any]:
        feed = self._feeds.by_replica.get(replica_id)
        load = feed.load if feed else None
        return {
            "replica_id": replica_id,
            "state": stats.status,
            "url": feed.facts.url if feed else None,
            "pid": feed.facts.pid if feed else None,
            "max_num_seqs": feed.facts.max_num_seqs if feed else None,
            "leases": stats.leases,
            "booked_kv_tokens": stats.kv_tokens,
            "kv_tokens": feed.facts.kv_tokens if feed else None,
            "engine_running": load.running if load else None,
            "engine_waiting": load.waiting if load else None,
            "engine_exchanges": load.exchanges if load else None,
            "kv_usage": load.kv_usage if load else None,
        }

    def _quantiles(self, model: str) -> dict[str, float] | None:
        requests, quantiles = self._ttft_s[model].quantiles((0.5, 0.95, 0.99), time.monotonic())
        if not requests:
            return None
        p50, p95, p99 = (1e3 * value for value in quantiles)
        return {"p50": p50, "p95": p95, "p99": p99, "requests": requests}


def _address(url: str) -> str:
    return url.split("://", 1)[1].rstrip("/")
