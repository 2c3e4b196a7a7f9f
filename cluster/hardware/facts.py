"""Instances, prices by region, and links between regions.

The tables are CSV files beside this one, each with its source; a spec's own entries come before them.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from cluster.hardware.gpus import Gpu, gpu_named

Dollars = Annotated[float, Field(ge=0, le=100_000)]
RegionName = Annotated[str, Field(min_length=1, max_length=63)]
Interrupted = Literal["<5%", "5-10%", "10-15%", "15-20%", ">20%"]
Exchange = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True, slots=True)
class Instance:
    """A cloud instance: so many of one GPU, virtual CPUs, memory in GB (None: not known)."""

    name: str
    gpu: str
    gpus: int
    vcpus: int | None
    ram_gb: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePrice:
    """What an instance costs an hour in a region, in US dollars; None: not known.

    `interrupted`: how often spot instances are taken away in a month, as a band. `savings_percent`: spot's against on
    demand, from the same source.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    instance: Annotated[str, Field(min_length=1, max_length=63)]
    region: RegionName
    on_demand_usd: Dollars | None = None
    spot_usd: Dollars | None = None
    reserved_usd: Dollars | None = None
    interrupted: Interrupted | None = None
    savings_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    source: str = "the cluster spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """From one region to another: the mean round trip in milliseconds, and US dollars a GB that goes there.

    None: not known.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: RegionName
    target: RegionName
    rtt_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    usd_per_gb: Dollars | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """A spec's own facts, which come before the shipped ones, and the way to all of them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    gpus: tuple[Gpu, ...] = ()
    prices: tuple[InstancePrice, ...] = ()
    links: tuple[Link, ...] = ()

    def gpu_named(self, name: str) -> Gpu:
        """Raises ValueError for a GPU that neither the spec nor the shipped table has."""
        return gpu_named(name, self.gpus)

    def price(self, instance: str, region: str) -> InstancePrice | None:
        """The price of an instance in a region. An own entry replaces the shipped one."""
        own = (price for price in self.prices if (price.instance, price.region) == (instance, region))
        return next(own, _prices().get((instance, region)))

    def link(self, source: str, target: str) -> Link:
        """What joins two regions; an own entry replaces only the figures that it has."""
        found = _link(source, target)
        own = next((link for link in self.links if (link.source, link.target) == (source, target)), None)
        if own is None:
            return found
        return Link(
            source=source,
            target=target,
            rtt_ms=found.rtt_ms if own.rtt_ms is None else own.rtt_ms,
            usd_per_gb=found.usd_per_gb if own.usd_per_gb is None else own.usd_per_gb,
        )


def _rows(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@cache
def instances() -> dict[str, Instance]:
    """The instances with GPUs, by name."""
    found = {}
    for row in _rows("instances.csv"):
        vcpus, ram_gb = int(row["vcpus"]) if row["vcpus"] else None, _number(row["ram_gb"])
        found[row["instance"]] = Instance(row["instance"], row["gpu"], int(row["gpus"]), vcpus, ram_gb)
    return found


def exchange_table(gpu: str, kind: Exchange, gpus: int) -> tuple[tuple[float, float], ...]:
    """Bytes of the tensor, and seconds, of an exchange between so many GPUs of that type in a node: measured. What has
    not been measured is empty."""
    return _exchanges().get((gpu, kind, gpus), ())


@cache
def _exchanges() -> dict[tuple[str, str, int], tuple[tuple[float, float], ...]]:
    return {
        (row["gpu"], row["exchange"], int(row["gpus"])): tuple(
            (float(size), 1e-6 * float(us)) for size, us in row.items() if size.isdigit() and us
        )
        for row in _rows("exchanges.csv")
    }


@cache
def _prices() -> dict[tuple[str, str], InstancePrice]:
    listed = {(row["instance"], row["region"]): row for row in _rows("prices.csv")}
    spot = {(row["instance"], row["region"]): row for row in _rows("spot.csv")}
    found = {}
    for key in listed.keys() | spot.keys():
        price, band = listed.get(key, {}), spot.get(key, {})
        found[key] = InstancePrice(
            instance=key[0],
            region=key[1],
            on_demand_usd=_number(price.get("on_demand", "")),
            spot_usd=_number(price.get("spot_median", "")),
            interrupted=band.get("interrupted"),  # type: ignore[arg-type]  # one of the bands: a test reads them all
            savings_percent=_number(band.get("savings_percent", "")),
            source=", ".join(filter(None, (price.get("source"), "AWS Spot Advisor 2025-06-28" if band else None))),
        )
    return found


def _link(source: str, target: str) -> Link:
    rtt_ms, usd_per_gb = _networks()
    if source == target:
        return Link(source=source, target=target, usd_per_gb=0.0)
    cost = usd_per_gb.get((source, target), usd_per_gb.get((source, "*")))
    return Link(
        source=source, target=target, rtt_ms=rtt_ms.get((source, target), rtt_ms.get((target, source))), usd_per_gb=cost
    )


@cache
def _networks() -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    rtt_ms = {(row["source"], row["target"]): float(row["ms"]) for row in _rows("rtt.csv")}
    usd_per_gb = {(row["source"], row["target"]): float(row["usd_per_gb"]) for row in _rows("transfer.csv")}
    return rtt_ms, usd_per_gb


def _number(text: str) -> float | None:
    return float(text) if text else None
