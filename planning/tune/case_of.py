"""From a spec, traffic and costs to a case, and to where its settings are looked for."""

from dataclasses import replace

import numpy as np

from autoscaling.forecast.history import History, history_of_requests
from autoscaling.from_spec import BACKLOG, FIXED, cost_of, settings_in, setup_of
from autoscaling.laws.registry import LAWS
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.scheduling.from_spec import binding_of, policy_of
from planning.simulator.cell import CellSettings
from planning.simulator.workload import Workload
from planning.tune.candidate import Candidate
from planning.tune.case import Case
from planning.tune.law_settings import defaults_of
from planning.tune.space import Space
from planning.workload.trace import Trace


class CaseError(ValueError):
    """A spec or traffic that can not be tuned on; the message names the key, the value and what is allowed."""


def case_of(spec: ClusterSpec, model: Model, cost: CostFile, work: Workload, start_up_s: float | None = None, history: History | None = None) -> Case:
    """The case, in the model's first region. `start_up_s`: how long a replica takes to start, where that is known better than the spec says. A fixed
    number of replicas is what there is now; what is tried is the backlog law. Raises CaseError, or LawError for a law that there is not."""
    if not len(work) or work.arrived_s[-1] <= 0:
        raise CaseError(f"the traffic: {len(work)} requests, all at its second 0; allowed: requests that come over some time")
    scaling = spec.autoscaling_of(model)
    fixed = scaling.policy == FIXED
    if fixed and model.replicas.max is None:
        raise CaseError(
            f"models.{model.name}.replicas.max: missing; needed: the most replicas that may ever run, to try autoscaling instead of a fixed count"
        )
    scaled = model.model_copy(update={"autoscaling": scaling.model_copy(update={"policy": BACKLOG})}) if fixed else model
    setup = setup_of(spec, scaled, spec.regions_of(model)[0], cost, start_up_s=start_up_s)
    plant = setup.plant
    chunk = work.chunk_tokens if model.settings.prefix_caching and work.chunk_tokens % plant.limits.block_tokens == 0 else 0
    plant = replace(plant, limits=replace(plant.limits, chunk_tokens=chunk))
    cell = CellSettings(
        max(1, model.replicas.count),
        plant.limits,
        policy_of(spec),
        binding_of(spec),
        model.settings.max_model_len,
        spec.gateway.timeouts.queue_wait_s,
        plant.start_up_s,
        patience_s={one.name: spec.patience_s(one) for one in spec.classes},
    )
    return Case(
        work,
        cost_of(model, cost),
        cell,
        tuple(lane.name for lane in spec.lanes),
        replace(setup, plant=plant),
        model.replicas.count if fixed else None,
        history or History(0, ()),
    )


def own_and_defaults(spec: ClusterSpec, model: Model) -> tuple[Candidate | None, Candidate]:
    """The spec's own settings (None: a fixed count), and the law's defaults within the same bounds."""
    scaling, least = spec.autoscaling_of(model), model.replicas.min
    defaults = Candidate(defaults_of(BACKLOG if scaling.policy == FIXED else scaling.policy), least)
    if scaling.policy == FIXED:
        return None, defaults
    return Candidate({**defaults.settings, **settings_in(scaling)}, least), defaults


def space_of(case: Case, own: Candidate | None, defaults: Candidate) -> Space:
    """Where to look. `replicas.min` is looked for up to what the mean load takes; only a spec that allows zero is offered zero. Raises CaseError for
    a law of which nobody knows where to look."""
    least = min(case.setup.bounds.least, 1)
    most = max(least, min(case.setup.bounds.most, int(case.load().replicas.mean()) + 1))
    entry = LAWS[case.setup.law.name]
    if not entry.search:
        known = ", ".join(name for name, one in LAWS.items() if one.search)
        raise CaseError(f"autoscaling.policy = {case.setup.law.name!r}: nobody knows where its settings are to be looked for; allowed: {known}")
    return Space(entry.search, (least, most), (own or defaults).settings)


def history_of_trace(trace: Trace, decode_weight: float, start_unix_s: float) -> History:
    """From a trace or a ledger whose second 0 was at `start_unix_s`. The work of a request is its prompt and its output times `decode_weight`: what
    the scheduler would have booked had it known the output, and the prompt whole, since a trace does not tell what a cache held."""
    work = trace.prompt_tokens + decode_weight * trace.output_tokens
    return history_of_requests(start_unix_s + trace.arrived_s, work.astype(np.float64))
