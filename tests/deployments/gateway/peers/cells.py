"""Cells in one process: each a real gateway with its own directory, port and engines, and real HTTP between them."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec
from deployments.cell.directory import Directory
from deployments.gateway.gateway import Gateway
from deployments.gateway.operators.samples import of_model
from deployments.ownership.peering import LanePeering
from tests.deployments.gateway.fake_engine import FakeEngine
from tests.deployments.gateway.rig import EXTERNAL_KEY, Handle, Rig, free_port, until

PEERS_SECRET = "the secret of all cells, 32 letters at least"
CLASSES = [{"name": "interactive", "ttft_ms": 500}]


class Cells:
    """By name. The first gateway of each; `others` of a cell come with `add_gateway`."""

    def __init__(self, tmp_path: Path, names: tuple[str, ...], **spec: Any) -> None:
        self.names = names
        self.rigs: dict[str, Rig] = {}
        self.more: list[Rig] = []
        self._tmp_path = tmp_path
        self._ports = {name: free_port() for name in names}
        self._secrets = {name: f"the cluster's secret of {name}" for name in names}
        self._spec = spec
        self._scheme = spec.pop("scheme", "http")

    def __getitem__(self, name: str) -> Rig:
        return self.rigs[name]

    def spec_of(self, name: str, **changes: Any) -> ClusterSpec:
        """The spec as that cell has it: all alike, but for the port of the gateway."""
        peering = {"secret": {"kind": "file"}, "digest_period_s": 0.1, "max_age_s": 1.0}
        sections: dict[str, Any] = {
            "name": "test",
            "regions": [
                {"name": one, "endpoint": f"{self._scheme}://127.0.0.1:{port}", "pools": [{"name": "cpu"}]}
                for one, port in self._ports.items()
            ],
            "models": [{"name": "demo", "source": "/nowhere", "settings": {"max_model_len": 1_024}}],
            "classes": CLASSES,
            "peering": peering,
            **self._spec,
            **changes,
        }
        gateway = {"port": self._ports[name], "drain_s": 1.0, "access_log": False, **sections.pop("gateway", {})}
        return ClusterSpec.model_validate({**sections, "gateway": gateway})

    async def start(self, name: str, engines: int = 1, secret: str = PEERS_SECRET, **changes: Any) -> Rig:
        """Starts a cell with that many engines."""
        directory = Directory(self._secrets[name], changes.get("gateway", {}).get("replicas", 1))
        rig = await self._gateway(name, directory, secret, **changes)
        self.rigs[name] = rig
        for _ in range(engines):
            await rig.add(FakeEngine())
        return rig

    async def pair(self) -> tuple[Rig, Rig]:
        """`eu` without a replica, so that its requests go to `us`, which has one; they know each other."""
        home, peer = await self.start("eu", engines=0), await self.start("us")
        await self.met()
        return home, peer

    async def add_gateway(self, name: str, **changes: Any) -> Rig:
        """Another gateway of a cell, on a port of its own."""
        gateway = {**changes.pop("gateway", {}), "port": free_port(), "replicas": 2}
        rig = await self._gateway(name, self.rigs[name].directory, PEERS_SECRET, gateway=gateway, **changes)
        self.more.append(rig)
        await until(lambda: rig.dispatcher.owner is not None)
        return rig

    async def _gateway(self, name: str, directory: Directory, secret: str, **changes: Any) -> Rig:
        spec = self.spec_of(name, **changes)
        folder = self._tmp_path / f"{name}-{spec.gateway.port}"
        folder.mkdir()
        keys = {"peers_secret": secret, "external_key": EXTERNAL_KEY}
        gateway = Gateway(spec, spec.region(name), self._secrets[name], folder, **keys)
        await gateway.start(Handle(directory))
        return Rig(gateway, directory, spec.gateway.port, folder)

    async def met(self, *names: str) -> None:
        """Waits until these cells (by default all) have each other's digests, and know of all their replicas."""
        for name in names or self.names:
            await until(lambda name=name: all(known_to(self[name]).values()) and self._sees_replicas(name))  # type: ignore[misc]

    def _sees_replicas(self, name: str) -> bool:
        stated = {cell: peer.digest for cell, peer in peering_of(self[name]).core.peers.by_cell.items()}
        counts = {cell: sum(one.replicas for one in digest.models) for cell, digest in stated.items() if digest}
        return all(counts.get(cell, 0) >= len(rig.engines) for cell, rig in self.rigs.items() if cell != name)

    async def settled(self) -> None:
        """Nothing is left of any request, in any cell."""
        for rig in (*self.rigs.values(), *self.more):
            await rig.settled()
            hand_overs = rig.service.hand_overs
            assert hand_overs is not None
            await until(lambda hand_overs=hand_overs: not hand_overs._tasks)  # type: ignore[misc]
            assert not any(hand_overs.in_flight.values())
            if rig.dispatcher.own is not None:
                assert not peering_of(rig).core.away

    async def stop(self) -> None:
        await asyncio.gather(*(rig.stop() for rig in (*self.rigs.values(), *self.more)))


MakeCells = Callable[..., Cells]


def peering_of(rig: Rig) -> LanePeering:
    """The owner's."""
    peering = rig.owner.peering
    assert peering is not None
    return peering


def known_to(rig: Rig) -> Mapping[str, bool]:
    """Whether a cell has a digest of each peer."""
    if rig.dispatcher.own is None or rig.dispatcher.own.peering is None:
        return {"": False}
    return {cell: peer.digest is not None for cell, peer in peering_of(rig).core.peers.by_cell.items()}


def metrics_of(rig: Rig) -> dict[tuple[str, ...], float]:
    """The samples about peers, by name and label values."""
    owned = (one for name, dispatcher in rig.service.dispatchers.items() for one in of_model(name, dispatcher))
    found = chain(rig.gateway.cell_peers.samples(), owned)
    return {
        (metric.shown, *labels): value for metric, labels, value in found if value and isinstance(value, int | float)
    }


def stop_asking(rig: Rig) -> None:
    """No more questions go out: what is known of the peers grows old."""
    exchange = rig.gateway.cell_peers._exchange
    assert exchange is not None
    exchange._ask = lambda: None  # type: ignore[method-assign]
