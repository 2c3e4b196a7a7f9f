"""The whole cluster spec, and what its sections must agree on."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from cluster.hardware import Hardware
from cluster.spec.artifacts import Artifacts
from cluster.spec.autoscaling import Autoscaling, PolicySpec
from cluster.spec.base import Name, Section, check_known, check_unique
from cluster.spec.external import External
from cluster.spec.gateway import GatewaySpec
from cluster.spec.models import Model
from cluster.spec.peering import Peering
from cluster.spec.regions import Pool, Region
from cluster.spec.starts import Starts
from cluster.spec.tracing import Tracing
from cluster.spec.traffic import DEFAULT_CLASSES, DEFAULT_LANES, LanePolicy, RungSpec, Scheduling, Tenant, TrafficClass

_CELL_NAME = re.compile(r"[a-z0-9-]{1,40}")
"""KubeRay adds up to 22 characters of its own to the 63 that Kubernetes allows."""
_NO_APP = re.compile(r"[^A-Za-z0-9_.-]+")
"""What the name of a Serve application may not have."""


ServiceTier = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class ClusterSpec(Section):
    """A cluster: what a team has (regions, pools) and serves (models), its SLOs (classes) and limits (lanes,
    autoscaling, gateway).

    `prefix_sharing`: who may profit from a prompt's beginning in an engine's prefix cache. `tenant` (the default): only
    the tenant that sent it, because the TTFT shows whether it was cached. `cluster`: all tenants, which is faster if
    they trust each other and send the same prompts. `service_tiers`: the class of requests that name a `service_tier`
    in their body and no class in a header, for tenants that may claim it. `hardware`: GPUs, prices and links between
    regions that override the shipped tables (`cluster/hardware`). `tracing`: where spans go (None: none are made).
    `peering`: how its cells help each other (None: they do not). `ladder`: what a model under pressure does, rung by
    rung (empty: nothing). `external`: the service outside that answers last (None: there is none).
    """

    version: Literal[1] = 1
    name: Name
    regions: Annotated[tuple[Region, ...], Field(min_length=1)]
    models: Annotated[tuple[Model, ...], Field(min_length=1)]
    classes: Annotated[tuple[TrafficClass, ...], Field(min_length=1)] = DEFAULT_CLASSES
    lanes: Annotated[tuple[LanePolicy, ...], Field(min_length=1)] = DEFAULT_LANES
    scheduling: Scheduling = Scheduling()
    tenants: tuple[Tenant, ...] = ()
    ladder: tuple[RungSpec, ...] = ()
    external: External | None = None
    prefix_sharing: Literal["tenant", "cluster"] = "tenant"
    service_tiers: dict[ServiceTier, Name] = Field(default_factory=dict)
    autoscaling: Autoscaling = Autoscaling()
    gateway: GatewaySpec = GatewaySpec()
    artifacts: Artifacts = Artifacts()
    starts: Starts = Starts()
    tracing: Tracing | None = None
    peering: Peering | None = None
    hardware: Hardware = Hardware()

    @model_validator(mode="after")
    def _names_agree(self) -> "ClusterSpec":
        check_unique("regions", (region.name for region in self.regions))
        check_unique("models (with aliases and adapters)", (name for one in self.models for name in one.served_names))
        check_unique("classes", (cls.name for cls in self.classes))
        check_unique("tenants", (tenant.name for tenant in self.tenants))
        check_unique("tenants.keys", (key for tenant in self.tenants for key in tenant.keys))
        check_unique("lanes", (lane.name for lane in self.lanes))
        for region in self.regions:
            check_unique(f"regions.{region.name}.pools", (pool.name for pool in region.pools))
            self._check_deploy(region)
            self.gateway_pools(region)
        for model in self.models:
            self._check_regions(model)
            for view in model.views:
                for region in self.regions_of(view):
                    self.pool_of(view, region)
                self._check_scaling(view)
            self._check_lanes(model)
            self._check_fallback(model)
        keys = (view.group_key for model in self.models for view in model.views)
        check_unique("models and their groups, as names of Serve applications", (_NO_APP.sub("-", key) for key in keys))
        self._check_tenants()
        self._check_ladder()
        self._check_external()
        self._check_residency()
        self._check_cache()
        if self.peering is not None:
            self.peering.check_endpoints({region.name: region.endpoint for region in self.regions})
        if any(lane.name == "promoted" for lane in self.lanes):
            raise ValueError(
                "lanes.name = 'promoted': allowed: any other name; promoted requests have their own lane of this name"
            )
        bounds = [lane.up_to_tokens for lane in self.lanes]
        if bounds[-1] is not None or None in bounds[:-1] or sorted({bound for bound in bounds if bound}) != bounds[:-1]:
            raise ValueError(
                f"lanes.up_to_tokens = {bounds}: allowed: ascending bounds, and none for the last lane alone"
            )
        return self

    def _check_deploy(self, region: Region) -> None:
        if region.deploy is None:
            return
        cell = self.cell_name(region)
        if not _CELL_NAME.fullmatch(cell):
            raise ValueError(
                f"name and regions.name: the cell's name {cell!r} names hosts and Kubernetes objects; allowed: at most "
                "40 letters, digits and dashes"
            )

    def cell_name(self, region: Region) -> str:
        """The name of a region's Ray cluster."""
        return f"{self.name}-{region.name}"

    def short_cell_name(self, region: Region) -> str:
        """The same, but the cluster's name alone where it has one cell: of run directories, and in metrics."""
        return self.name if len(self.regions) == 1 else self.cell_name(region)

    def _check_regions(self, model: Model) -> None:
        known = [region.name for region in self.regions]
        for where, names in [("", model.regions), *((f"groups.{one.name}.", one.regions) for one in model.groups)]:
            check_known(f"models.{model.name}.{where}regions", names, known)
            check_unique(f"models.{model.name}.{where}regions", names or ())

    def _check_cache(self) -> None:
        semantic = None if self.gateway.cache is None else self.gateway.cache.semantic
        asking = [region for model in self.models if model.task == "generate" for region in self.regions_of(model)]
        encoders = [
            model.name
            for model in self.models
            if model.task == "embed" and all(region in self.regions_of(model) for region in asking)
        ]
        if semantic is not None and semantic.model not in encoders:
            raise ValueError(
                f"gateway.cache.semantic.model = {semantic.model!r}: allowed: a model whose task is 'embed', in all "
                f"regions of those that generate ({', '.join(encoders) or 'there is none'})"
            )

    def _check_fallback(self, model: Model) -> None:
        """Whoever answers in a model's place generates as it does, runs wherever it runs, and is real if it is."""
        where = f"models.{model.name}.fallback"
        for route in model.fallback:
            alike = [
                one.name
                for one in self.models
                if one is not model
                and (one.task, one.engine, model.task) == (model.task, model.engine, "generate")
                and all(region in self.regions_of(one) for region in self.regions_of(model))
            ]
            if route.to not in alike:
                raise ValueError(
                    f"{where}.to = {route.to!r}: allowed: another model with `task: generate` on the same kind of "
                    f"engine, in all regions of this one: {', '.join(alike) or 'there is none'}"
                )
            check_known(f"{where}.classes", route.classes, (one.name for one in self.classes))

    def _check_ladder(self) -> None:
        """Each class once a rung; and one class is shed by none, or there is nothing to gain."""
        classes = [one.name for one in self.classes]
        steps = [(rung.rung, name) for rung in self.ladder for name in rung.classes]
        check_known("ladder.classes", (name for _, name in steps), classes)
        check_unique("ladder", (f"{rung}:{name}" for rung, name in steps))
        if steps and all(("shed", name) in steps for name in classes):
            raise ValueError("ladder: sheds all classes; needed: one that is not shed, for whose sake others are")

    def _check_external(self) -> None:
        if (external := self.external) is None:
            return
        lists: dict[str, tuple[Iterable[str], list[str]]] = {
            "models": (external.models, [one.name for one in self.models if one.task == "generate"]),
            "tenants": (external.tenants, [one.name for one in self.tenants]),
            "region": ([external.region] if external.region else [], [one.name for one in self.regions]),
        }
        for key, (names, known) in lists.items():
            check_known(f"external.{key}", names, known)

    def _check_residency(self) -> None:
        known = [region.name for region in self.regions]
        lists = [
            *((f"models.{model.name}.residency", model.residency) for model in self.models),
            *((f"classes.{cls.name}.residency", cls.residency) for cls in self.classes),
            *((f"tenants.{tenant.name}.residency", tenant.residency) for tenant in self.tenants),
            *((f"tenants.{tenant.name}.peers", tenant.peers) for tenant in self.tenants),
        ]
        for where, names in lists:
            check_known(where, names, known)
        for model in self.models:
            for region in self.regions_of(model):
                if model.residency is not None and region.name not in model.residency:
                    raise ValueError(
                        f"models.{model.name}.residency: leaves out {region.name}, where the model runs; needed: that "
                        "region in it, or `regions` without it"
                    )

    def _check_scaling(self, view: Model) -> None:
        if self.autoscaling_of(view).policy == "fixed" and view.replicas.schedule is not None:
            raise ValueError(
                f"{view.where}.replicas.schedule: bounds for a number that does not change; allowed: with an "
                "autoscaling.policy other than 'fixed', as `backlog`"
            )
        if self.autoscaling_of(view).policy != "fixed" and view.replicas.max is None:
            raise ValueError(
                f"{view.where}.replicas.max: missing; autoscaling.policy = {self.autoscaling_of(view).policy!r} needs "
                "the maximum number of replicas"
            )

    def _check_lanes(self, model: Model) -> None:
        """Each group serves a lane, and each lane has a group wherever the model runs."""
        where, groups = f"models.{model.name}.lanes", [group.name for group in model.groups]
        lanes = [lane.name for lane in self.lanes]
        check_known(where, model.lanes, lanes)
        for lane, named in model.lanes.items():
            check_unique(f"{where}.{lane}", named)
            check_known(f"{where}.{lane}", named, groups)
        served = {name for named in self.lane_groups(model).values() for name in named}
        if idle := [name for name in groups if name not in served]:
            raise ValueError(f"models.{model.name}.groups.{idle[0]}: serves no lane; needed: a lane of {where} with it")
        for region in self.regions_of(model):
            for lane, named in self.lane_groups(model, region).items():
                if not named:
                    raise ValueError(
                        f"{where}.{lane}: no group serves it in {region.name}; needed: one of "
                        f"{', '.join(view.group for view in self.groups_of(model, region))}"
                    )

    def autoscaling_of(self, model: Model) -> Autoscaling:
        """How a model or a view of it scales: by its own section, else by the cluster's. What is `auto` there is
        decided."""
        section = self.autoscaling if model.autoscaling is None else model.autoscaling
        decided: dict[str, Any] = {}
        if section.policy == "auto":
            counts = model.replicas
            decided["policy"] = "fixed" if counts.max is None or counts.lowest >= counts.max else "backlog"
        if section.shadow is not None and section.shadow.policy == "auto":
            decided["shadow"] = section.shadow.model_copy(update={"policy": "backlog"})
        return section.model_copy(update=decided) if decided else section

    def costs_of(self, model: Model) -> str | None:
        """The cost file of a model's engine: that of its autoscaling section, else that of its simulated engine."""
        return self.autoscaling_of(model).costs or (None if model.simulated is None else model.simulated.costs)

    def lacks_costs(self, model: Model) -> bool:
        """Whether the model scales by the backlog policy and names no cost file."""
        return self.autoscaling_of(model).policy == "backlog" and self.costs_of(model) is None

    def _check_tenants(self) -> None:
        classes = [traffic_class.name for traffic_class in self.classes]
        for tenant in self.tenants:
            check_known(f"tenants.{tenant.name}.classes", tenant.classes, classes)
        for tier, name in self.service_tiers.items():
            check_known(f"service_tiers.{tier}", [name], classes)
        if self.gateway.cors is not None and "*" in self.gateway.cors.origins and not self.tenants:
            raise ValueError(
                "gateway.cors.origins = '*': allowed only with tenants, so that pages need a key; without tenants, "
                "list the origins of the pages"
            )
        if self.gateway.allow_public and not self.tenants:
            raise ValueError(
                "gateway.allow_public = true: allowed only with tenants, so that clients need a key (`raylane key`)"
            )

    def groups_of(self, model: Model, region: Region | None = None) -> tuple[Model, ...]:
        """The views of a model, one for each group that runs in `region` (None: anywhere), in the order listed."""
        views = model.views
        return views if region is None else tuple(view for view in views if region in self.regions_of(view))

    def views_in(self, region: Region | None = None) -> tuple[Model, ...]:
        """The views of all models in `region` (None: anywhere): what has replicas of its own."""
        return tuple(view for model in self.models for view in self.groups_of(model, region))

    def lane_groups(self, model: Model, region: Region | None = None) -> Mapping[str, tuple[str, ...]]:
        """The groups that serve each lane, in order, by the lane's name; in `region` alone, if one is given."""
        names = [view.group for view in self.groups_of(model, region)]
        return {
            lane.name: tuple(name for name in model.lanes.get(lane.name, names) if name in names) for lane in self.lanes
        }

    def context_of(self, model: Model, region: Region | None = None) -> int:
        """The longest context that a client may use, in tokens: that of the group with the largest one."""
        return max(view.settings.max_model_len for view in self.groups_of(model, region))

    def patience_s(self, traffic_class: TrafficClass) -> float:
        """How long a request of that class waits in its lane at most."""
        queue_wait_s = self.gateway.timeouts.queue_wait_s
        return queue_wait_s if traffic_class.patience_s is None else min(queue_wait_s, traffic_class.patience_s)

    def min_replicas(self, model: Model) -> int:
        """With fewer replicas than these a model is not as it should be; 0: it may have none, and is ready all the
        same. Of a model with groups: the sum over them."""
        return sum(
            view.replicas.count if self.autoscaling_of(view).policy == "fixed" else view.replicas.lowest
            for view in model.views
        )

    def max_replicas(self, view: Model) -> int:
        """As many replicas of one group as may ever run in one region."""
        counts = view.replicas
        return counts.count if self.autoscaling_of(view).policy == "fixed" else max(counts.count, counts.max or 0)

    def model(self, name: str) -> Model:
        """The model of that name. Raises ValueError that lists the known ones."""
        for model in self.models:
            if model.name == name:
                return model
        raise ValueError(f"model {name!r} is unknown; allowed: {', '.join(model.name for model in self.models)}")

    def view(self, group_key: str) -> Model:
        """The view of that `Model.group_key`. Raises ValueError that lists the known ones."""
        views = {view.group_key: view for view in self.views_in()}
        if group_key not in views:
            raise ValueError(f"model {group_key!r} is unknown; allowed: {', '.join(views)}")
        return views[group_key]

    def region(self, name: str) -> Region:
        """The region of that name. Raises ValueError that lists the known ones."""
        for region in self.regions:
            if region.name == name:
                return region
        raise ValueError(f"region {name!r} is unknown; allowed: {', '.join(region.name for region in self.regions)}")

    def regions_of(self, model: Model) -> tuple[Region, ...]:
        """The regions that run a model: those it names, else all. Of a model with groups: those of any group."""
        if model.groups:
            names = {region.name for view in model.views for region in self.regions_of(view)}
            return tuple(region for region in self.regions if region.name in names)
        return self.regions if model.regions is None else tuple(self.region(name) for name in model.regions)

    def gateway_pools(self, region: Region) -> tuple[Pool, ...]:
        """The pools of `region` on whose nodes gateways run: the one that `gateway.pool` names, else all."""
        pools = tuple(pool for pool in region.pools if self.gateway.pool in (None, pool.name))
        if not pools:
            raise ValueError(
                f"gateway.pool: {self.gateway.pool!r} is unknown in {region.name}; allowed: "
                f"{', '.join(pool.name for pool in region.pools)}"
            )
        return pools

    def pool_of(self, model: Model, region: Region) -> Pool:
        """The pool of `region` that hosts `model` (a view, if it has groups): the one it names, else the first whose
        nodes can hold one replica."""
        need, settings = model.settings.ranks, model.settings
        others = "".join(f", {key} = {parts}" for key in _BESIDE_TENSOR if (parts := getattr(settings, key)) > 1)
        pools = [pool for pool in region.pools if model.pool in (None, pool.name)]
        if not pools:
            raise ValueError(
                f"{model.where}.pool: {model.pool!r} is unknown; allowed: {', '.join(p.name for p in region.pools)}"
            )
        wide = [pool for pool in pools if need <= _ranks_on(pool, model)]
        for pool in wide:
            if model.cpus <= (pool.cpus_per_node or model.cpus):
                return pool
        if wide:
            raise ValueError(
                f"{model.where}.settings.cpus = {model.cpus:g}: no node of {region.name} that could hold it has so "
                f"many cores (cpus_per_node); allowed: at most {max(pool.cpus_per_node or 0 for pool in wide)}"
            )
        maximum = max(_ranks_on(pool, model) for pool in pools)
        if maximum == 0:
            where = f"regions.{region.name}.pools.{pools[0].name}.gpus_per_node = 0"
            raise ValueError("; ".join([f"{where}: allowed: 1 to 16, or accelerator: cpu", *self.unknown_gpus()]))
        lacking = f"no node of {region.name} has so many GPUs"
        if all(pool.accelerator == "cpu" for pool in pools):
            lacking = "a replica books fewer cores (settings.cpus), which its ranks share on CPUs"
        raise ValueError(
            f"{model.where}.settings.tensor_parallel_size = {settings.tensor_parallel_size}"
            f"{others}: {lacking}; allowed: 1 to {maximum}{' in all' if others else ''}"
        )

    def unknown_gpus(self) -> list[str]:
        """A line for each pool of GPUs of which neither the spec nor the shipped table has the facts."""
        lines = []
        for region in self.regions:
            for pool in region.pools:
                try:
                    _ = pool.accelerator == "cpu" or self.hardware.gpu_named(pool.accelerator)
                except ValueError as error:
                    lines.append(f"regions.{region.name}.pools.{pool.name}.accelerator: {error}")
        return lines


_BESIDE_TENSOR = ("pipeline_parallel_size", "data_parallel_size")


def _ranks_on(pool: Pool, model: Model) -> int:
    """How many ranks a replica may have there: a GPU each; on CPUs they share the cores that it books."""
    if pool.accelerator != "cpu":
        return pool.gpus_per_node
    return max(1, int(model.cpus)) if model.engine == "vllm" else model.settings.ranks


_POLICY = tuple(PolicySpec.model_fields)


def exchanged(spec: ClusterSpec, group_key: str) -> ClusterSpec:
    """The spec with both policies of that model or group in each other's place. Raises ValueError where it is unknown,
    or has no shadow. One that follows a wider section gets one of its own by this: the others were not asked."""
    found = spec.view(group_key)
    section = spec.autoscaling_of(found)
    if section.shadow is None:
        raise ValueError(
            f"model {group_key!r} has no shadow; needed: autoscaling.shadow, a second policy that runs beside the "
            "active one"
        )
    fields: dict[str, Any] = section.model_dump()
    active = {name: fields[name] for name in _POLICY}
    changed = Autoscaling.model_validate({**fields, **fields["shadow"], "shadow": active})
    models = tuple(scaled_by(one, found, changed) if one.name == found.name else one for one in spec.models)
    return ClusterSpec.model_validate(spec.model_copy(update={"models": models}).model_dump())


def scaled_by(model: Model, view: Model, section: Autoscaling) -> Model:
    """The model with that section for one view of it."""
    own = {"autoscaling": section}
    groups = tuple(one.model_copy(update=own) if one.name == view.group else one for one in model.groups)
    return model.model_copy(update={"groups": groups} if groups else own)
