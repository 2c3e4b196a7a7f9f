"""What a GPU-hour costs in a region: by the worksheet, by the spec, by the shipped tables, in that order. Each price
has its source."""

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.hardware import InstancePrice, gpu_named, instances
from cluster.spec import AwsDeploy, ClusterSpec, Model, Pool, Region
from deployments.accounting.tariffs import usd_per_replica_hour
from planning.capacity.problem import PriceKind
from planning.worksheet.sheet import GpuPrice, Worksheet

TABLES = {
    "karpenter": "aws/karpenter-provider-aws 1d927085, 2026-07-20",
    "skypilot": "skypilot-org/skypilot-catalog 00148f2a, undated",
}
"""The sources that `cluster/hardware/prices.csv` names, in full."""


@dataclass(frozen=True, slots=True)
class Priced:
    """US dollars a replica-hour, and where the figure comes from. `node_gpus`: GPUs of the instance that it is of."""

    usd_per_replica_hour: float
    source: str
    node_gpus: int | None = None


_Listed = tuple[PriceKind, float, str, int | None]


def prices_of(gpu: str, view: Model, region: Region, sheet: Worksheet, spec: ClusterSpec) -> dict[PriceKind, Priced]:
    """What a replica of the view costs on that GPU in that region, by the kinds that the worksheet allows and that have
    a price. Empty: no price is known."""
    ranks = 1 if gpu == "cpu" else view.settings.ranks
    found: dict[PriceKind, Priced] = {}
    for kind, usd_per_gpu, source, node_gpus in listed_prices(gpu, view, region, sheet, spec):
        if kind not in found and _allowed(kind, sheet):
            found[kind] = Priced(ranks * usd_per_gpu, source, node_gpus)
    return found


def _allowed(kind: PriceKind, sheet: Worksheet) -> bool:
    kinds = sheet.prices
    if kind is PriceKind.SPOT:
        return kinds.spot is not None and kinds.spot.max_share > 0
    return kinds.on_demand if kind is PriceKind.ON_DEMAND else kinds.reserved


def listed_prices(gpu: str, view: Model, region: Region, sheet: Worksheet, spec: ClusterSpec) -> Iterator[_Listed]:
    """All prices of a GPU-hour that are known, the best source first."""
    for own in sheet.gpu_prices:
        if (own.gpu, own.region) == (gpu, region.name):
            yield from _of_worksheet(own)
    pools = [pool for pool in region.pools if pool.accelerator == gpu]
    for pool in pools:
        yield from _of_pool(spec, pool, view, region)
    if gpu == "cpu":
        return
    types = _instance_types(region, pools)
    place = getattr(region.deploy, "region", None) or region.name
    for name in types:
        if (price := spec.hardware.price(name, place)) is not None:
            yield from _of_instance(price, instances()[name].gpus)
    gpu_name = gpu_named(gpu, spec.hardware.gpus).name
    known = [
        listed
        for one in instances().values()
        if one.gpu == gpu_name and one.gpus >= view.settings.ranks and one.name not in types
        if (price := spec.hardware.price(one.name, place)) is not None
        for listed in _of_instance(price, one.gpus)
    ]
    yield from sorted(known, key=lambda listed: listed[1])


def _of_worksheet(own: GpuPrice) -> Iterator[_Listed]:
    for kind in PriceKind:
        usd = getattr(own, kind.price_key)
        if usd is not None:
            yield kind, usd, own.source, None


def _of_pool(spec: ClusterSpec, pool: Pool, view: Model, region: Region) -> Iterator[_Listed]:
    if pool.price_usd_per_hour:
        kind = PriceKind.SPOT if pool.spot else PriceKind.ON_DEMAND
        usd = pool.price_usd_per_hour
        if pool.accelerator == "cpu":
            usd = float(usd_per_replica_hour(spec, view, pool, region))
        yield kind, usd, f"the spec's pool {pool.name} in {region.name}", pool.gpus_per_node or None


def _instance_types(region: Region, pools: list[Pool]) -> list[str]:
    """The instances on which the region's pools with that GPU run, as far as the spec says."""
    if not isinstance(region.deploy, AwsDeploy):
        return []
    names = {pool.name for pool in pools}
    return [one.instance_type for one in region.deploy.pools if one.pool in names and one.instance_type in instances()]


def _of_instance(price: InstancePrice, gpus: int) -> Iterator[_Listed]:
    listed, _, advisor = _source(price.source).partition(", AWS Spot Advisor")
    source = f"{price.instance}: {listed}"
    if price.on_demand_usd is not None:
        yield PriceKind.ON_DEMAND, price.on_demand_usd / gpus, source, gpus
    if price.spot_usd is not None:
        yield PriceKind.SPOT, price.spot_usd / gpus, f"{source} (median of the zones)", gpus
    elif price.on_demand_usd is not None and price.savings_percent is not None:
        usd = price.on_demand_usd * (1 - price.savings_percent / 100) / gpus
        yield PriceKind.SPOT, usd, f"{source}, less {price.savings_percent:g} % (AWS Spot Advisor{advisor})", gpus
    if price.reserved_usd is not None:
        yield PriceKind.RESERVED, price.reserved_usd / gpus, source, gpus


def _source(text: str) -> str:
    for name, full in TABLES.items():
        text = text.replace(name, full)
    return text
