"""What a replica costs an hour, by the cluster spec. Pure.

The pool's `price_usd_per_hour` counts, for each GPU of a replica. A CPU pool's is by node: a replica pays for its
cores, or for a whole node where their number is unknown. Where the pool has no price and its region is deployed on AWS,
the price of its instances in `cluster/hardware` counts instead: spot's for a spot pool, else on demand.
"""

from fractions import Fraction

from cluster.hardware import instances
from cluster.spec import AwsDeploy, ClusterSpec, Model, Pool, Region
from deployments.accounting.facts import Tariff


def tariffs_of(spec: ClusterSpec, region: Region, at_ns: int) -> list[Tariff]:
    """Of each model and group that runs in the region, from `at_ns` on."""
    found = []
    for view in spec.views_in(region):
        pool = spec.pool_of(view, region)
        found.append(
            Tariff(
                at_ns,
                view.name,
                view.group,
                region.name,
                pool.name,
                0 if pool.accelerator == "cpu" else view.settings.ranks,
                usd_per_replica_hour(spec, view, pool, region),
                spec.costs_of(view) or "",
                view.settings.max_num_batched_tokens,
                spec.scheduling.decode_weight,
            )
        )
    return found


def usd_per_replica_hour(spec: ClusterSpec, model: Model, pool: Pool, region: Region) -> Fraction:
    """US dollars an hour of one replica; 0 where no price is known."""
    if not pool.price_usd_per_hour:
        return _instance_price(spec, model, pool, region)
    return _exact(pool.price_usd_per_hour) * (
        _node_share(model, pool) if pool.accelerator == "cpu" else model.settings.ranks
    )


def _node_share(model: Model, pool: Pool) -> Fraction:
    """The part of a node whose cores a replica has; all of it where their number is unknown."""
    return Fraction(1) if pool.cpus_per_node is None else _exact(model.cpus) / pool.cpus_per_node


def _instance_price(spec: ClusterSpec, model: Model, pool: Pool, region: Region) -> Fraction:
    if not isinstance(region.deploy, AwsDeploy):
        return Fraction(0)
    name = next(one.instance_type for one in region.deploy.pools if one.pool == pool.name)
    price = spec.hardware.price(name, region.deploy.region or region.name)
    known = None if price is None else price.spot_usd if pool.spot else price.on_demand_usd
    if known is None:
        return Fraction(0)
    instance = instances().get(name)
    gpus = pool.gpus_per_node or (0 if instance is None else instance.gpus)
    share = _node_share(model, pool) if pool.accelerator == "cpu" or not gpus else Fraction(model.settings.ranks, gpus)
    return _exact(known) * share


def _exact(number: float) -> Fraction:
    """The number as it was written in decimal digits."""
    return Fraction(str(number))
