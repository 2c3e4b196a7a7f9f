"""The gateway's view of its cell as plain data: `raylane status`, readiness, and Prometheus' target list read it."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Collection
from typing import Any

from cluster.spec import ClusterSpec, Model
from deployments.cell.control import Control
from deployments.cell.listing import Announced
from deployments.cell.orders import Cordon, Orders
from deployments.cell.scaling_state import ScalingState
from deployments.gateway.feeds import Feeds
from deployments.gateway.operators.other_gateways import OtherGateways, merged
from deployments.gateway.operators.published_metrics import shown_drift
from deployments.gateway.service import Service
from deployments.ownership.dispatcher import Dispatcher
from deployments.peering import KnownPeers
from deployments.scheduling import ReplicaStats, Snapshot, Suspicion
from deployments.scheduling.replica import ReplicaStatus
from deployments.starts.start import GIVEN_UP_AFTER
from deployments.telemetry.line_log import Logs
from deployments.telemetry.metrics import RecentTtfts

_PERCENTILES = tuple(number / 100 for number in range(101))


class Status:
    """Reads dispatchers, feeds and the last minute's TTFTs. What another gateway owns is asked of that one."""

    def __init__(
        self,
        spec: ClusterSpec,
        service: Service,
        feeds: Feeds,
        others: OtherGateways,
        announced: Announced,
        url: str,
        run_dir: str,
        open_ledgers: Callable[[], int],
        logs: Logs,
        ttfts: RecentTtfts,
    ) -> None:
        self._spec = spec
        self._service = service
        self._feeds = feeds
        self._others = others
        self._announced = announced
        self._url = url
        self._run_dir = run_dir
        self._open_ledgers = open_ledgers
        self._logs = logs
        self._started_s = time.monotonic()
        self._ttfts = ttfts

    def models_without_replica(self) -> list[str]:
        """Models that should have a ready replica and an owner, and lack one. Those whose starts fail are left out,
        since they must not keep the others from being served, unless they are all that is served."""
        spec = self._service.spec
        missing = [
            name
            for name, dispatcher in self._service.dispatchers.items()
            if spec.min_replicas(spec.model(name)) > 0 and not dispatcher.is_ready
        ]
        failing = self.models_that_fail()
        return missing if set(failing) >= self._service.dispatchers.keys() else [n for n in missing if n not in failing]

    def models_that_fail(self) -> list[str]:
        """Models whose starts have failed so often in a row that they are not waited for, and that no replica
        serves."""
        failing = {one.model for one in self._announced.starts.failing if one.failures >= GIVEN_UP_AFTER}
        return [
            name
            for name, one in self._service.dispatchers.items()
            if not one.is_ready and all(view.group_key in failing for view in self._service.views_of(name))
        ]

    def departures_of(self, replica_ids: Collection[str]) -> list[dict[str, Any]]:
        """Records of the ends of those replicas, as far as they ended and are remembered."""
        return [one.record() for one in self._announced.departures.last if one.who in replica_ids]

    def targets(self) -> list[dict[str, Any]]:
        """Prometheus' http_sd form. All of them ask for the cluster's secret."""
        cell = {"__metrics_path__": "/metrics", "cell": self._spec.name}
        gateways = {self._others.gateway_id: self._others.own_url, **self._others.urls}
        groups = [
            {"targets": [_address(url)], "labels": {**cell, "raylane_role": "gateway", "gateway": gateway_id}}
            for gateway_id, url in gateways.items()
        ]
        for feed in self._feeds.by_replica.values():
            labels = {**cell, "raylane_role": "engine", "model": feed.facts.model, "replica": feed.facts.replica_id}
            groups.append({"targets": [_address(feed.facts.url)], "labels": labels})
        return groups

    async def report(self) -> dict[str, Any]:
        """Everything that `raylane status` shows, of the whole cell."""
        return merged(self.here(), await self._others.ask("/raylane/status?here=1"))

    async def under_way(self, models: Collection[str]) -> int:
        """How many requests for these models the cell's gateways have, from the lane to the end of the answer."""
        reports = [self.here(), *await self._others.ask("/raylane/status?here=1")]
        return sum(model["under_way"] for report in reports for model in report["models"] if model["name"] in models)

    def here(self) -> dict[str, Any]:
        return {
            "schema": 2,
            "cluster": self._spec.name,
            "gateway": {
                "id": self._others.gateway_id,
                "pid": os.getpid(),
                "url": self._url,
                "cell_url": self._others.own_url,
                "uptime_s": time.monotonic() - self._started_s,
                "flows": len(self._service.flows),
                "open_ledgers": self._open_ledgers(),
                "draining": self._service.leaving,
                "failing_logs": [
                    {"name": one.name, "error": one.error, "lost_lines": one.lost_lines} for one in self._logs.failing()
                ],
            },
            "run_dir": self._run_dir,
            **shown_drift(self._spec.gateway.drift),
            "models": [self._model(name, dispatcher) for name, dispatcher in self._service.dispatchers.items()],
            "departures": [departure.record() for departure in self._announced.departures.last],
        }

    def _model(self, name: str, dispatcher: Dispatcher) -> dict[str, Any]:
        snapshot = dispatcher.snapshot()
        scaling, views = self._announced.scaling_of(name), self._service.views_of(name)
        requests, percentiles = self._ttfts.quantiles(name, _PERCENTILES)
        return {
            "name": name,
            "engine": dispatcher.model.engine,
            "desired_replicas": sum(self._desired(view) for view in views),
            "scaling": None if scaling is None else shown_scaling(scaling, self._overdue_s(views[0])),
            **({"groups": [self._group(view, snapshot) for view in views]} if len(views) > 1 else {}),
            **self._starts(name),
            "controls": [shown_control(control) for control in self._announced.controls_of(name)],
            "ttft": {"requests": requests, "percentiles_s": percentiles},
            "under_way": len(dispatcher),
            "handed_on": dispatcher.handed_on,
            "lost_requests": dispatcher.losses.requests,
            "lost_tokens": dispatcher.losses.tokens,
            **(self._model_state(dispatcher, snapshot) if snapshot is not None else {"owner": None}),
        }

    def _group(self, view: Model, snapshot: Snapshot | None) -> dict[str, Any]:
        """Of a model with several: its scaling, and what it does. `overflow` (in `scaling`): the share of its demand
        that the next group is to carry."""
        key, scaling = view.group_key, self._announced.scaling_of(view.group_key)
        replicas = () if snapshot is None else tuple(one for one in snapshot.replicas if one.group == view.group)
        stats = None if snapshot is None else next((one for one in snapshot.groups if one.group == view.group), None)
        return {
            "name": view.group,
            "model": key,
            "desired_replicas": self._desired(view),
            "ready": sum(one.status == ReplicaStatus.READY for one in replicas),
            "leases": sum(one.leases for one in replicas),
            "tokens_per_s": None if stats is None else stats.tokens_per_s,
            "finished": 0 if stats is None else stats.finished,
            "scaling": None if scaling is None else shown_scaling(scaling, self._overdue_s(view)),
            "controls": [shown_control(control) for control in self._announced.controls_of(key)],
        }

    def _desired(self, view: Model) -> int:
        scaling = self._announced.scaling_of(view.group_key)
        return view.replicas.count if scaling is None else scaling.applied

    def _starts(self, name: str) -> dict[str, Any]:
        starts, keys = self._announced.starts, [view.group_key for view in self._service.views_of(name)]
        failing = next((one for key in keys if (one := starts.failing_of(key)) is not None), None)
        return {
            "starting": [start.record() for key in keys for start in starts.running_of(key)],
            "failing_start": None if failing is None else failing.record(),
        }

    def _overdue_s(self, view: Model) -> float | None:
        period_s = self._service.spec.autoscaling_of(view).period_s
        return self._announced.scaling.overdue_s(view.group_key, period_s, time.time())

    def _model_state(self, dispatcher: Dispatcher, snapshot: Snapshot) -> dict[str, Any]:
        own = dispatcher.own
        return {
            "owner": self._others.gateway_id,
            "epoch": own.epoch if own is not None else None,
            "peers": []
            if own is None or own.peering is None
            else shown_peers(own.peering.core.peers, own.peering.model),
            "reconciled": own.reconciled if own is not None else 0,
            "lanes": [
                {
                    "name": lane.name,
                    "waiting": lane.waiting,
                    "tokens": lane.work_tokens,
                    "work_s": lane.work_s,
                    "eta_s": lane.eta_s,
                    "eta_covered": lane.covered,
                    "eta_estimated": lane.estimated,
                    "oldest_wait_s": lane.oldest_wait_s,
                    "head_waits_for": lane.head_waits_for,
                }
                for lane in snapshot.lanes
            ],
            "leases": sum(replica.leases for replica in snapshot.replicas),
            "submitted": snapshot.submitted,
            "placed": snapshot.placed,
            "adopted": snapshot.adopted,
            "endings": snapshot.endings,
            "rejections": {f"{lane}/{cause}": count for (lane, cause), count in snapshot.rejections.items()},
            "waiting_aside": snapshot.aside,
            "suspects": [_suspect(one) for one in snapshot.suspects],
            "promoted": snapshot.promoted,
            "tokens_per_s": snapshot.tokens_per_s,
            "output_error": snapshot.output_error,
            "other_lane": snapshot.other_lane,
            "prefix_trust": snapshot.prefix_trust,
            "replicas": [self._replica(stats.replica_id, stats) for stats in snapshot.replicas],
        }

    def _replica(self, replica_id: str, stats: ReplicaStats) -> dict[str, Any]:
        feed = self._feeds.by_replica.get(replica_id)
        load = feed.load if feed else None
        cordon = self._announced.orders.cordon_of(replica_id)
        start = self._announced.starts.of_replica(replica_id)
        return {
            "replica_id": replica_id,
            "group": stats.group,
            "state": stats.status,
            "cordon": None if cordon is None else shown_cordon(cordon),
            "drains_for": load.drains_for if load else None,
            "node_id": feed.facts.node_id if feed else None,
            "zone": feed.facts.zone or None if feed else None,
            "url": feed.facts.url if feed else None,
            "pid": feed.facts.pid if feed else None,
            "max_num_seqs": feed.facts.max_num_seqs if feed else None,
            "max_sequences": stats.max_sequences,
            "itl_class": stats.itl_class,
            "leases": stats.leases,
            "booked_kv_tokens": stats.kv_tokens,
            "kv_tokens": feed.facts.kv_tokens if feed else None,
            "engine_running": load.running if load else None,
            "engine_waiting": load.waiting if load else None,
            "engine_exchanges": load.exchanges if load else None,
            "kv_usage": load.kv_usage if load else None,
            "start": None if start is None else start.record(),
        }


def _suspect(one: Suspicion) -> dict[str, Any]:
    return {
        "digest": one.key,
        "deaths": one.deaths,
        "banned": one.banned,
        "forgotten_in_s": max(0.0, one.forgotten_s - time.monotonic()),
    }


def shown_peers(peers: KnownPeers, model: str) -> list[dict[str, Any]]:
    """What a model's owner knows of each peer: how old its digest is by this cell's clock (None: there is none, or the
    connection broke since), and why nothing is handed over to it now, whatever the request."""
    now, shown = time.monotonic(), []
    for cell, peer in peers.by_cell.items():
        stated = None if peer.digest is None else peer.digest.model(model)
        lane = stated.lanes[0].lane if stated is not None and stated.lanes else ""
        view = next(one for one in peers.views(model, lane, now) if one.cell == cell)
        shown.append(
            {
                "cell": cell,
                "age_s": now - peer.asked_s if math.isfinite(peer.asked_s) else None,
                "rtt_s": peer.rtt_s,
                "trust": peer.trust_in(model).at(now),
                "barred": view.barred,
            }
        )
    return shown


def _address(url: str) -> str:
    return url.split("://", 1)[1].rstrip("/")


def shown_orders(orders: Orders) -> dict[str, Any]:
    return {
        "controls": [{"model": model, **shown_control(control)} for model, control in orders.controls],
        "cordons": [shown_cordon(cordon) for cordon in orders.cordons],
    }


def shown_control(control: Control) -> dict[str, Any]:
    return {**dataclasses.asdict(control), "kind": control.kind.value}


def shown_cordon(cordon: Cordon) -> dict[str, Any]:
    return dataclasses.asdict(cordon)


def shown_scaling(state: ScalingState, overdue_s: float | None) -> dict[str, Any]:
    """The last decision on a model; `overdue_s`: how long ago it was, where another one should have come."""
    return {**dataclasses.asdict(state), "overdue_s": overdue_s}
