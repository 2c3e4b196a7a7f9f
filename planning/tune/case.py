"""From a spec, traffic and costs to a case: what settings are tried on (traffic, engines, SLOs, the way in which
replicas are counted), the true load over time, the parts of the traffic that a first look takes, and where settings are
looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaling.forecast.history import History, history_of_requests
from autoscaling.from_spec import BACKLOG, FIXED, ScalingSetup, is_paced, settings_in, setup_of
from autoscaling.policies.registry import POLICIES, entry_of
from autoscaling.policies.settings import Value, defaults_in
from autoscaling.signals.signals import PastStart
from cluster.errors import InputError
from cluster.spec import ClusterSpec, Model, Region
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.fits import cost_of
from deployments.engine_model.replica_rate import rate_at
from planning.capacity.rates import cell_of
from planning.simulator.cell import CellSettings
from planning.simulator.starts import StartPlan, start_plan
from planning.simulator.workload import Workload
from planning.tune.space import Space
from planning.tune.trial import Candidate
from planning.workload.trace import Trace

_STEP_S, _SMOOTHED_S = 60.0, 300.0


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """The mean load in replicas, in even steps from second 0; constant beyond the ends."""

    replicas: NDArray[np.float64]
    step_s: float

    def __call__(self, at_s: float) -> float:
        return float(self.replicas[min(len(self.replicas) - 1, max(0, int(at_s // self.step_s)))])


_SHARE = 1 / 4
"""Of the whole, all parts together."""
_COUNT = 6
_SHORTEST_S = 1_200.0
_LEAD = 1 / 3
"""Of a part."""


@dataclass(frozen=True, slots=True)
class Part:
    """The seconds `from_s` to `to_s`, run from `lead_s` before on; it counts `weight` times."""

    from_s: float
    to_s: float
    weight: float
    lead_s: float = 0.0


def whole(span_s: float) -> tuple[Part, ...]:
    return (Part(0.0, span_s, 1.0),)


def parts_of(load: LoadCurve, span_s: float) -> tuple[Part, ...]:
    """The parts for a first look, in the order of time; everything where that is too short to be cut.

    Stretches at even distances, one of them around the busiest minutes: an even sample meets every time of the day as
    often as any other, and laying it out from the peak sees to it that no peak is thinned away. Several short stretches
    tell the cost of a day better than one long one (within 2 % instead of 5 % of its replica-hours for a quarter of the
    day, over settings of all kinds). Each begins with a lead that is run and not counted, in which the number of
    replicas becomes the policy's own. What is estimated so is never reported: it says which settings deserve a run of
    the whole.
    """
    length_s, distance_s = _SHARE * span_s / _COUNT, span_s / _COUNT
    if length_s < _SHORTEST_S:
        return whole(span_s)
    peak_s = (int(load.replicas.argmax()) + 0.5) * load.step_s
    first_s = min(max(peak_s % distance_s - length_s / 2, 0.0), distance_s - length_s)
    begins = (first_s + number * distance_s for number in range(_COUNT))
    return tuple(Part(begin, begin + length_s, 1 / _SHARE, min(begin, _LEAD * length_s)) for begin in begins)


_NOTHING = History(0, ())


@dataclass(frozen=True)
class TuningCase:
    """`cell`: with as many replicas as run at the start, and without scaling. `setup`: how the spec scales; what is
    tried differs in its policy's settings and its least replicas. `fixed`: so many replicas run now, always, and
    `setup` is of the policy that is tried instead; None: the policy decides already.

    `history` is what arrived before, as far as it is known, for a forecast. Second 0 of the traffic is at
    `start_unix_s`.
    """

    work: Workload
    cost: CostModel
    cell: CellSettings
    setup: ScalingSetup
    fixed: int | None = None
    history: History = _NOTHING
    start_unix_s: float = 0.0

    @property
    def span_s(self) -> float:
        """What the traffic stands for: to the last arrival, and one mean gap more."""
        last = float(self.work.arrived_s[-1])
        return last * (1 + 1 / len(self.work))

    def load(self) -> LoadCurve:
        """The true load, by the work of the requests that arrive; averaged over five minutes."""
        prompt, output = self.work.prompt_tokens.astype(np.float64), self.work.output_tokens.astype(np.float64)
        profile, lengths = self.setup.replica_profile, (max(1.0, float(tokens.mean())) for tokens in (prompt, output))
        tokens = prompt + profile.decode_weight * output
        per_replica = rate_at(profile.limits, self.cost, *lengths) * float(tokens.mean())
        count = max(1, int(np.ceil(self.span_s / _STEP_S)))
        step = np.minimum((self.work.arrived_s / _STEP_S).astype(np.int64), count - 1)
        rate = np.bincount(step, weights=tokens / max(per_replica, 1e-9), minlength=count) / _STEP_S
        window = np.ones(min(count, round(_SMOOTHED_S / _STEP_S)))
        weight = np.convolve(np.ones(count), window, mode="same")
        return LoadCurve(np.convolve(rate, window, mode="same")[:count] / weight[:count], _STEP_S)


def defaults_of(policy: str) -> dict[str, Value]:
    """The policy's settings, without its period where the spec's `period_s` sets that.

    Raises PolicyError for an unknown policy."""
    ours = {"period_s"} if is_paced(policy) else set()
    return {name: value for name, value in defaults_in(entry_of(policy).settings).items() if name not in ours}


class CaseError(InputError):
    """A spec or traffic that can not be tuned on; the message names the key, the value and what is allowed."""


def setup_with_starts(
    spec: ClusterSpec,
    model: Model,
    cost: CostFile,
    start_up_s: float | None,
    past: Sequence[PastStart],
    region: Region | None = None,
) -> tuple[ScalingSetup, StartPlan | None]:
    """How the model (a view, if it has groups) scales in `region`, or else in its first one, and how long its replicas
    take to start: `start_up_s` where given, else by phases, which come from `past` starts or from the spec. None:
    nothing is known of phases. Raises ValueError."""
    region = region or spec.regions_of(model)[0]
    setup = setup_of(spec, model, region, cost, start_up_s=start_up_s)
    plan = None if start_up_s is not None else start_plan(spec, model, region, setup.start_seconds, past)
    if plan is None:
        return setup, None
    return replace(setup, replica_profile=replace(setup.replica_profile, start_up_s=plan.first_s)), plan


def case_of(
    spec: ClusterSpec,
    model: Model,
    cost: CostFile,
    work: Workload,
    start_up_s: float | None = None,
    history: History | None = None,
    past: Sequence[PastStart] = (),
    start_unix_s: float = 0.0,
) -> TuningCase:
    """The case, in the model's first region. `start_up_s`: how long a replica takes to start, where that is known
    better than the spec says; `past`: recorded starts, which say it by phases. A fixed number of replicas is what there
    is now; what is tried is the backlog policy.

    Raises CaseError, or PolicyError for a policy that there is not."""
    if not len(work) or work.arrived_s[-1] <= 0:
        raise CaseError(f"the traffic: {len(work)} requests, all at second 0; needed: requests at different times")
    scaling = spec.autoscaling_of(model)
    fixed = scaling.policy == FIXED
    if fixed and model.replicas.max is None:
        raise CaseError(
            f"models.{model.name}.replicas.max: missing; needed: the most replicas that may ever run, to try "
            "autoscaling instead of a fixed count"
        )
    scaled = (
        model.model_copy(update={"autoscaling": scaling.model_copy(update={"policy": BACKLOG})}) if fixed else model
    )
    setup, starts = setup_with_starts(spec, scaled, cost, start_up_s, past)
    replica_profile = setup.replica_profile
    replica_profile = replace(replica_profile, limits=replica_profile.limits.with_prefixes(work.chunk_tokens))
    cell = replace(
        cell_of(spec, model, cost, max(1, model.replicas.count)),
        limits=replica_profile.limits,
        start_up_s=replica_profile.start_up_s,
        starts=starts,
    )
    return TuningCase(
        work,
        cost_of(model, cost),
        cell,
        replace(setup, replica_profile=replica_profile),
        model.replicas.count if fixed else None,
        history or History(0, ()),
        start_unix_s,
    )


def own_and_defaults(spec: ClusterSpec, model: Model) -> tuple[Candidate | None, Candidate]:
    """The spec's own settings (None: a fixed count), and the policy's defaults within the same bounds."""
    scaling, minimum = spec.autoscaling_of(model), model.replicas.min
    defaults = Candidate(defaults_of(BACKLOG if scaling.policy == FIXED else scaling.policy), minimum)
    if scaling.policy == FIXED:
        return None, defaults
    return Candidate({**defaults.settings, **settings_in(scaling)}, minimum), defaults


def space_of(case: TuningCase, own: Candidate | None, defaults: Candidate) -> Space:
    """Where to look. `replicas.min` is looked for up to what the mean load takes; only a spec that allows zero is
    offered zero. A schedule stays as it is, and no entry's maximum is below what is offered. Raises CaseError for a
    policy of which nobody knows where to look."""
    bounds = case.setup.bounds
    entries = () if bounds.schedule is None else bounds.schedule.entries
    capped = [one.maximum for one in entries if one.maximum is not None and one.minimum is None]
    minimum = min([bounds.minimum, 1, *capped])
    maximum = max(minimum, min([bounds.maximum, int(case.load().replicas.mean()) + 1, *capped]))
    entry = entry_of(case.setup.policy.name)
    if not entry.search:
        known = ", ".join(name for name, one in POLICIES.items() if one.search)
        raise CaseError(
            f"autoscaling.policy = {case.setup.policy.name!r}: the policy names no ranges to search; allowed: {known}"
        )
    return Space(entry.search, (minimum, maximum), (own or defaults).settings)


def history_of_trace(trace: Trace, decode_weight: float, start_unix_s: float) -> History:
    """From a trace or a ledger whose second 0 was at `start_unix_s`. The work of a request is its prompt and its output
    times `decode_weight`: what the scheduler would have booked had it known the output, and the prompt whole, since a
    trace does not tell what a cache held."""
    work = trace.prompt_tokens + decode_weight * trace.output_tokens
    return history_of_requests(start_unix_s + trace.arrived_s, work.astype(np.float64))
