"""All metrics of a gateway that are read when Prometheus asks."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from cluster.spec import GatewaySpec
from deployments.cell.listing import Announced
from deployments.gateway.operators.collectors import (
    DepartureMetrics,
    OwnershipMetrics,
    ScalingMetrics,
    StartMetrics,
    standing_of,
)
from deployments.gateway.operators.lane_gauges import LaneGauges
from deployments.gateway.operators.published_metrics import DriftMetrics, SimulatorErrorMetrics
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.owner_tracker import OwnerTracker
from deployments.scheduling import Snapshot


def register_collectors(
    registry: CollectorRegistry,
    settings: GatewaySpec,
    dispatchers: Mapping[str, Dispatcher],
    owner_trackers: Mapping[str, OwnerTracker],
    announced: Announced,
    gateways: Callable[[], list[str]],
    *more: Collector,
) -> None:
    """`gateways`: the ids of all gateways, this one's first."""
    registry.register(LaneGauges(lambda: _snapshots(dispatchers)))
    if settings.simulator_error is not None:
        registry.register(SimulatorErrorMetrics(Path(settings.simulator_error)))
    if settings.drift is not None:
        registry.register(DriftMetrics(Path(settings.drift)))
    registry.register(OwnershipMetrics(lambda: {name: standing_of(one) for name, one in owner_trackers.items()}))
    owned = partial(filter, lambda name: dispatchers[name].own is not None, dispatchers)
    registry.register(ScalingMetrics(announced, owned))
    for collector in (DepartureMetrics(announced, gateways), StartMetrics(announced, gateways), *more):
        registry.register(collector)


def _snapshots(dispatchers: Mapping[str, Dispatcher]) -> dict[str, Snapshot]:
    found = {name: dispatcher.snapshot() for name, dispatcher in dispatchers.items()}
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}
