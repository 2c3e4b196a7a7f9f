"""Regions and their pools: what hardware there is, where, and what an hour of it costs."""

from typing import Annotated

from pydantic import Field

from cluster.spec.base import Name, Section


class Pool(Section):
    """Nodes of one kind in one region.

    `accelerator` is `cpu` or a GPU's name as in Ray's accelerator types (`L40S`, `H100`); prices are US dollars per GPU-hour (per node-hour for
    `cpu`), before any discount, and are what plans and explanations are priced with. `spot`: nodes may be taken away; then each replica polls
    `spot_notice_url` (404: no notice; 200 with a JSON object that has an `action`: there is one), and drains itself when it is told.
    """

    name: Name
    accelerator: Annotated[str, Field(pattern=r"^(cpu|[A-Z][A-Z0-9-]{1,30})$")] = "cpu"
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    cpus_per_node: Annotated[int, Field(ge=1, le=1_024)] | None = None
    price_usd_per_hour: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    spot: bool = False
    spot_notice_url: Annotated[str, Field(pattern=r"^https?://[^/]+/")] = "http://169.254.169.254/latest/meta-data/spot/instance-action"

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.nodes * self.gpus_per_node


class Region(Section):
    """One region is one cell: one Ray cluster, with one or more pools."""

    name: Name
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
