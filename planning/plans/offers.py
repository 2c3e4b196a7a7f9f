"""What could serve: groups of a GPU type and engine settings, each with the costs of its steps; and what could not,
with the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.artifacts import ArtifactError
from cluster.spec import ClusterSpec, Group, Model, Pool, Region
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.fits import cost_of, limits_for, names_accelerator
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.estimate import estimated
from planning.fit.of_spec import fit_on
from planning.uncertainty import CostRange, cost_range
from planning.unmodelled import Unmodelled, unmodelled
from planning.worksheet.sheet import GroupCandidate, Worksheet

PLANNED_POOL = "planned"


@dataclass(frozen=True, slots=True, eq=False)
class GroupOffer:
    """A group that could serve a model. `spec`: the cluster's, with this model on a pool of this GPU alone; `view`: the
    model as the group runs it. `costs_path`: the file of its costs (None: they are estimated). `memory`: what of its
    memory was not checked."""

    group: str
    view: Model
    spec: ClusterSpec
    gpu: str
    regions: tuple[str, ...]
    lanes: tuple[str, ...]
    cost: CostFile
    costs_path: str | None = None
    memory: str = ""

    @property
    def model(self) -> str:
        return self.view.name

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return 1 if self.gpu == "cpu" else self.view.settings.ranks

    @property
    def context(self) -> int:
        """The longest request, in tokens: of the context, and of the KV cache."""
        return min(self.view.settings.max_model_len, self.cost.engine.kv_tokens)

    @property
    def pool(self) -> Pool:
        return self.spec.regions[0].pools[0]

    @property
    def limits(self) -> EngineModelLimits:
        """What a replica's engine can hold."""
        return limits_for(self.view, self.pool, self.cost)

    @property
    def costs_file(self) -> str:
        """The name of the file of its costs, or what they rest on."""
        return "estimated from data sheets" if self.costs_path is None else Path(self.costs_path).name

    @property
    def step_costs(self) -> CostModel:
        """The costs of a replica's steps."""
        return cost_of(self.view, self.cost)

    @property
    def cost_range(self) -> CostRange:
        """How far the costs may be off."""
        return cost_range(self.cost, self.view, self.pool)

    @property
    def unmodelled(self) -> tuple[Unmodelled, ...]:
        """What of the group the simulator does not model."""
        return unmodelled(self.view, self.cost)

    def __str__(self) -> str:
        gpus = f"{self.gpus} x " if self.gpus > 1 else ""
        return f"{self.group} ({gpus}{self.gpu})"


@dataclass(frozen=True, slots=True)
class RejectedOffer:
    """A group that cannot serve: it would not start, or nothing is known of its costs."""

    model: str
    group: str
    gpu: str
    reason: str


def offers_of(sheet: Worksheet, spec: ClusterSpec) -> tuple[tuple[GroupOffer, ...], tuple[RejectedOffer, ...]]:
    """All groups for the models that the worksheet has demand of: its candidates, else the spec's own groups."""
    found: list[GroupOffer] = []
    rejected: list[RejectedOffer] = []
    for name in dict.fromkeys(stream.model for stream in sheet.demand):
        listed = [one for one in sheet.candidates if one.model == name]
        views = _candidates(listed, sheet, spec) if listed else _own_groups(spec.model(name), sheet, spec)
        for one in views:
            (found if isinstance(one, GroupOffer) else rejected).append(one)  # type: ignore[arg-type]
    return tuple(found), tuple(rejected)


def _candidates(
    listed: list[GroupCandidate], sheet: Worksheet, spec: ClusterSpec
) -> Iterator[GroupOffer | RejectedOffer]:
    for one in listed:
        model = spec.model(one.model)
        group = Group(name=one.name, regions=one.regions, settings=one.settings)
        view = model.view(group).model_copy(update={"pool": None})
        lanes = one.lanes or tuple(lane.name for lane in spec.lanes)
        yield _offer(one.name, _local(view, sheet), spec, one.gpu, lanes, one.costs)


def _own_groups(model: Model, sheet: Worksheet, spec: ClusterSpec) -> Iterator[GroupOffer | RejectedOffer]:
    """The model's groups on the GPUs of their pools; a group of several GPU types is several groups."""
    for view in spec.groups_of(model):
        gpus = dict.fromkeys(spec.pool_of(view, region).accelerator for region in spec.regions_of(view))
        served = spec.lane_groups(model)
        lanes = tuple(lane.name for lane in spec.lanes if view.group in served[lane.name])
        for gpu in gpus:
            regions = tuple(one.name for one in spec.regions_of(view) if spec.pool_of(view, one).accelerator == gpu)
            name = view.group if len(gpus) == 1 else f"{view.group}-{gpu.lower()}"
            yield _offer(name, _local(view.model_copy(update={"regions": regions}), sheet), spec, gpu, lanes, None)


def _local(view: Model, sheet: Worksheet) -> Model:
    """With the folder of its `config.json` as its source, where the worksheet names one."""
    folder = next((one.folder for one in sheet.model_configs if one.model == view.name), None)
    return view if folder is None else view.model_copy(update={"source": folder})


def _offer(
    group: str, view: Model, spec: ClusterSpec, gpu: str, lanes: tuple[str, ...], costs: str | None
) -> GroupOffer | RejectedOffer:
    own = spec.costs_of(view)
    alone = _alone(spec, view, gpu)
    regions = view.regions or tuple(region.name for region in spec.regions)
    known = {pool.accelerator for region in spec.regions for pool in region.pools if view.pool in (None, pool.name)}
    view = alone.models[0]
    fitted = None if gpu == "cpu" else fit_on(alone, view, gpu)
    if fitted is not None and fitted.problems:
        return RejectedOffer(view.name, group, gpu, "; ".join(fitted.problems))
    memory = "" if fitted is None or fitted.unknown is None else f"memory not checked: {fitted.unknown}"
    try:
        cost, path = _costs(view, alone, gpu, costs, own, gpu in known)
    except (ValueError, ArtifactError, OSError) as error:
        return RejectedOffer(view.name, group, gpu, f"no costs of its steps: {error}")
    return GroupOffer(group, view, alone, gpu, regions, lanes, cost, path, memory)


def _alone(spec: ClusterSpec, view: Model, gpu: str) -> ClusterSpec:
    """The spec with this model on one large pool of this GPU, in one region."""
    per_node = max(8, view.settings.ranks)
    pool = (
        Pool(name=PLANNED_POOL)
        if gpu == "cpu"
        else Pool(name=PLANNED_POOL, accelerator=gpu, nodes=1_250, gpus_per_node=per_node)
    )
    region = Region(name=spec.regions[0].name, pools=(pool,))
    fixed = view.model_copy(update={"regions": None, "pool": PLANNED_POOL, "autoscaling": None})
    gateway = spec.gateway.model_copy(update={"pool": None})
    return spec.model_copy(update={"regions": (region,), "models": (fixed,), "gateway": gateway})


def _costs(
    view: Model, alone: ClusterSpec, gpu: str, file: str | None, own: str | None, measured_here: bool
) -> tuple[CostFile, str | None]:
    """Those of the `file` that the candidate names; the spec's `own`, where they are of this GPU (a measured file names
    none: it is of the spec's pools), with the file; else estimated. Raises ValueError, ArtifactError."""
    if file is not None:
        return read_cost_file(Path(file)), file
    if own is not None:
        cost = read_cost_file(Path(own))
        if names_accelerator(cost.hardware, gpu) or (cost.basis == "measured" and measured_here):
            return cost, own
    if gpu == "cpu":
        raise ValueError("autoscaling.costs: missing; needed for an engine on a CPU (`raylane calibrate`)")
    return estimated(alone, view.model_copy(update={"engine": "vllm", "simulated": None}), gpu), None
