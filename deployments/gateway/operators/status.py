"""The gateway's part of the cell's report (`report.py`), readiness, and Prometheus' target list."""

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec, Model
from deployments.cell.departure import Departure
from deployments.cell.listing import Announced
from deployments.gateway.feeds import Feeds
from deployments.gateway.operators.other_gateways import OtherGateways, merged
from deployments.gateway.operators.report import (
    STATUS_PATH,
    CellReport,
    FailingLog,
    GatewayAnswer,
    GatewayReport,
    GroupReport,
    ModelReport,
    PeerReport,
    ReplicaReport,
    SloReport,
    SuspectReport,
    TtftSample,
)
from deployments.gateway.service import Service
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.peering import KnownPeers
from deployments.scheduling import ReplicaStats, Snapshot, Suspicion
from deployments.scheduling.replica import ReplicaStatus
from deployments.starts.start import GIVEN_UP_AFTER
from deployments.telemetry.line_log import Logs
from deployments.telemetry.metrics import RecentTtfts
from deployments.telemetry.slo import ServiceLevels
from deployments.traffic.published_drift import PublishedDrift, PublishedDriftError, read_drift


@dataclass(eq=False)
class Status:
    """Reads dispatchers, feeds and the last minute's TTFTs. What another gateway owns is asked of that one."""

    spec: ClusterSpec
    service: Service
    feeds: Feeds
    others: OtherGateways
    announced: Announced
    url: str
    run_dir: str
    open_ledgers: Callable[[], int]
    logs: Logs
    ttfts: RecentTtfts
    levels: ServiceLevels
    _started_s: float = field(init=False, default_factory=time.monotonic)

    def models_without_replica(self) -> list[str]:
        """Models that should have a ready replica and an owner, and lack one. Those whose starts fail are left out,
        since they must not keep the others from being served, unless they are all that is served."""
        spec = self.service.spec
        missing = [
            name
            for name, dispatcher in self.service.dispatchers.items()
            if spec.min_replicas(spec.model(name)) > 0 and not dispatcher.is_ready
        ]
        failing = self.models_that_fail()
        return missing if set(failing) >= self.service.dispatchers.keys() else [n for n in missing if n not in failing]

    def models_that_fail(self) -> list[str]:
        """Models whose starts have failed so often in a row that they are not waited for, and that no replica
        serves."""
        failing = {one.model for one in self.announced.starts.failing if one.failures >= GIVEN_UP_AFTER}
        return [
            name
            for name, one in self.service.dispatchers.items()
            if not one.is_ready and all(view.group_key in failing for view in self.service.views_of(name))
        ]

    def departures_of(self, replica_ids: Collection[str]) -> list[Departure]:
        """The ends of those replicas, as far as they ended and are remembered."""
        return [one for one in self.announced.departures.last if one.who in replica_ids]

    def targets(self) -> list[dict[str, Any]]:
        """Prometheus' http_sd form. All of them ask for the cluster's secret."""
        spec, home = self.service.peered()
        cell = {"__metrics_path__": "/metrics", "cell": spec.short_cell_name(spec.region(home))}
        gateways = {self.others.gateway_id: self.others.own_url, **self.others.urls}
        groups = [
            {"targets": [_address(url)], "labels": {**cell, "raylane_role": "gateway", "gateway": gateway_id}}
            for gateway_id, url in gateways.items()
        ]
        for feed in self.feeds.by_replica.values():
            labels = {**cell, "raylane_role": "engine", "model": feed.facts.model, "replica": feed.facts.replica_id}
            groups.append({"targets": [_address(feed.facts.url)], "labels": labels})
        return groups

    async def report(self) -> CellReport:
        return merged([self.here(), *await self.others.ask(f"{STATUS_PATH}?here=1", GatewayAnswer)])

    async def under_way(self, models: Collection[str]) -> int:
        """How many requests for these models the cell's gateways have, from the lane to the end of the answer."""
        report = await self.report()
        return sum(model.under_way for model in report.models if model.name in models)

    def here(self) -> GatewayAnswer:
        gateway = GatewayReport(
            id=self.others.gateway_id,
            pid=os.getpid(),
            url=self.url,
            cell_url=self.others.own_url,
            uptime_s=time.monotonic() - self._started_s,
            flows=len(self.service.flows),
            open_ledgers=self.open_ledgers(),
            draining=self.service.leaving,
            failing_logs=tuple(FailingLog(one.name, one.error or "", one.lost_lines) for one in self.logs.failing()),
        )
        models = tuple(self._model(name, dispatcher) for name, dispatcher in self.service.dispatchers.items())
        drift = self.spec.gateway.drift
        last = self.announced.departures.last
        report = CellReport(self.spec.name, gateway, (gateway,), self.run_dir, models, last, published_drift(drift))
        return GatewayAnswer(report, {one.name: TtftSample(*self.ttfts.percentiles(one.name)) for one in models})

    def _model(self, name: str, dispatcher: Dispatcher) -> ModelReport:
        views, starts, own = self.service.views_of(name), self.announced.starts, dispatcher.own
        keys = [view.group_key for view in views]
        snapshot = dispatcher.snapshot()
        report = ModelReport(
            name=name,
            engine=dispatcher.model.engine,
            desired_replicas=sum(self._desired(view) for view in views),
            scaling=self.announced.scaling_of(name),
            overdue_s=self._overdue_s(name, views[0]),
            controls=self.announced.controls_of(name),
            groups=tuple(self._group(view, snapshot) for view in views) if len(views) > 1 else (),
            starting=tuple(start for key in keys for start in starts.running_of(key)),
            failing_start=next((one for key in keys if (one := starts.failing_of(key)) is not None), None),
            slos=tuple(SloReport(*one) for one in self.levels.judged(name)),
            under_way=len(dispatcher),
            handed_on=dispatcher.handed_on,
            lost_requests=dispatcher.losses.requests,
            lost_tokens=dispatcher.losses.tokens,
        )
        return report if own is None or snapshot is None else self._owned(report, own, snapshot)

    def _owned(self, report: ModelReport, own: LaneOwner, snapshot: Snapshot) -> ModelReport:
        rejections: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (lane, cause), count in snapshot.rejections.items():
            rejections[lane][cause] = count
        return replace(
            report,
            owner=self.others.gateway_id,
            epoch=own.epoch,
            reconciled=own.reconciled,
            peers=() if own.peering is None else peer_reports(own.peering.core.peers, own.peering.model),
            lanes=snapshot.lanes,
            replicas=tuple(self._replica(stats) for stats in snapshot.replicas),
            leases=sum(replica.leases for replica in snapshot.replicas),
            submitted=snapshot.submitted,
            placed=snapshot.placed,
            adopted=snapshot.adopted,
            promoted=snapshot.promoted,
            endings=snapshot.endings,
            rejections=rejections,
            waiting_aside=snapshot.aside,
            suspects=tuple(_suspect(one) for one in snapshot.suspects),
            ladder=snapshot.ladder,
            tokens_per_s=snapshot.tokens_per_s,
            output_error=snapshot.output_error,
            other_lane=snapshot.other_lane,
            prefix_trust=snapshot.prefix_trust,
        )

    def _group(self, view: Model, snapshot: Snapshot | None) -> GroupReport:
        replicas = () if snapshot is None else tuple(one for one in snapshot.replicas if one.group == view.group)
        stats = None if snapshot is None else next((one for one in snapshot.groups if one.group == view.group), None)
        return GroupReport(
            name=view.group,
            model=view.group_key,
            desired_replicas=self._desired(view),
            scaling=self.announced.scaling_of(view.group_key),
            overdue_s=self._overdue_s(view.group_key, view),
            controls=self.announced.controls_of(view.group_key),
            ready=sum(one.status == ReplicaStatus.READY for one in replicas),
            leases=sum(one.leases for one in replicas),
            tokens_per_s=None if stats is None else stats.tokens_per_s,
            finished=0 if stats is None else stats.finished,
        )

    def _desired(self, view: Model) -> int:
        scaling = self.announced.scaling_of(view.group_key)
        return view.replicas.count if scaling is None else scaling.applied

    def _overdue_s(self, key: str, view: Model) -> float | None:
        return self.announced.scaling.overdue_s(key, self.service.spec.autoscaling_of(view).period_s, time.time())

    def _replica(self, stats: ReplicaStats) -> ReplicaReport:
        feed = self.feeds.by_replica.get(stats.replica_id)
        report = ReplicaReport(
            stats.replica_id,
            stats.group,
            stats.status,
            stats.leases,
            stats.kv_tokens,
            stats.max_sequences,
            stats.itl_class,
            self.announced.orders.cordon_of(stats.replica_id),
            self.announced.starts.of_replica(stats.replica_id),
        )
        if feed is None:
            return report
        facts, load = feed.facts, feed.load
        report = replace(
            report,
            url=facts.url,
            pid=facts.pid,
            node_id=facts.node_id,
            zone=facts.zone or None,
            max_num_seqs=facts.max_num_seqs,
            kv_tokens=facts.kv_tokens,
        )
        if load is None:
            return report
        return replace(
            report,
            engine_running=load.running,
            engine_waiting=load.waiting,
            engine_exchanges=load.exchanges,
            kv_usage=load.kv_usage,
            drains_for=load.drains_for,
        )


def published_drift(path: str | None) -> PublishedDrift | None:
    """What was published, if the spec names a file and it can be read."""
    try:
        return None if path is None else read_drift(Path(path))
    except PublishedDriftError:
        return None


def _suspect(one: Suspicion) -> SuspectReport:
    return SuspectReport(one.key, one.deaths, one.banned, max(0.0, one.forgotten_s - time.monotonic()))


def peer_reports(peers: KnownPeers, model: str) -> tuple[PeerReport, ...]:
    """What a model's owner knows of each peer."""
    now, found = time.monotonic(), []
    for cell, peer in peers.by_cell.items():
        stated = None if peer.digest is None else peer.digest.model(model)
        lane = stated.lanes[0].lane if stated is not None and stated.lanes else ""
        view = next(one for one in peers.views(model, lane, now) if one.cell == cell)
        age_s = now - peer.asked_s if math.isfinite(peer.asked_s) else None
        found.append(PeerReport(cell, age_s, peer.rtt_s, peer.trust_in(model).at(now), view.barred))
    return tuple(found)


def _address(url: str) -> str:
    return url.split("://", 1)[1].rstrip("/")
