"""What `raylane tune` starts from: spec, traffic and costs as a case; and whether the simulator may be relied on."""

from dataclasses import dataclass
from pathlib import Path

from autoscaling.forecast.history import History
from cli.console import fail
from cli.options import (
    StartOptions,
    TrafficOptions,
    chosen_model,
    chosen_requests,
    engine_costs,
    length_limits,
    scaled,
)
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.telemetry.published_error import read_published
from deployments.wire import to_json
from planning.simulator.workload import Workload, workload_of
from planning.tune.advice import Trust, judge
from planning.tune.case import TuningCase, case_of, history_of_trace, own_and_defaults, space_of
from planning.tune.space import Space
from planning.tune.trial import Candidate
from planning.unmodelled import unmodelled
from planning.workload.changes import TraceChange
from planning.workload.trace import Trace, TraceError
from planning.workload.traces import read_requests

REFUSED = 3
"""The exit code where the simulator's error is unknown or too large."""


@dataclass(frozen=True)
class Inputs:
    """`text`: of the spec's file, with its own line ends. `own` is None where the spec keeps a fixed number of
    replicas. `history_changes`: what was changed in the traffic of the days before. `check`: the case on another
    trace."""

    spec_file: Path
    text: str
    spec: ClusterSpec
    model: Model
    costs: Path
    cost: CostFile
    case: TuningCase
    own: Candidate | None
    defaults: Candidate
    space: Space
    history_changes: tuple[TraceChange, ...] = ()
    check: TuningCase | None = None

    @property
    def held_fixed(self) -> list[str]:
        """The parts of the model's scaling that are used as they are, and not searched."""
        schedule, region = self.model.replicas.schedule, self.spec.regions_of(self.model)[0]
        found = [] if schedule is None else [f"replicas.schedule ({schedule.in_words()})"]
        others = [view.group for view in self.spec.groups_of(self.spec.model(self.model.name), region)]
        others = [name for name in others if name != self.model.group]
        if others:
            named = ", ".join(others)
            found.append(
                f"the other groups ({named}), their replicas and settings; no request runs on a group that is not "
                "tried first for it"
            )
        return found

    def as_json(self) -> dict[str, object]:
        """What is not modelled, what was changed in the traffic, and what was held fixed."""
        return {
            "not_modelled": to_json(unmodelled(self.model, self.cost, self.spec)),
            "changes": [change.as_json() for change in self.case.work.changes],
            "history_changes": [change.as_json() for change in self.history_changes],
            "held_fixed": self.held_fixed,
        }


def chosen_group(spec: ClusterSpec, model: Model, group: str | None) -> Model:
    """The view to tune. Ends the command where the model has several groups and none of them is named."""
    views = {view.group: view for view in spec.groups_of(model, spec.regions_of(model)[0])}
    if group is None and len(views) == 1:
        return next(iter(views.values()))
    if group is None or group not in views:
        missing = "missing" if group is None else f"{group!r} is unknown"
        fail(f"--group: {missing}; model {model.name!r} is tuned by group, allowed: {', '.join(views)}", code=2)
    return views[group]


def trusted(spec_file: Path, model: str | None, error: Path | None, anyway: bool) -> Trust:
    """What is known of the simulator's error on this deployment: by `error`, else by the file that the spec names. Ends
    the command where that is too much, or unknown, unless it is to go on `anyway`."""
    spec, chosen = chosen_model(spec_file, model)
    place = error or (None if spec.gateway.simulator_error is None else Path(spec.gateway.simulator_error))
    trust = judge(None if place is None else read_published(place), chosen.name)
    if trust.doubts and not anyway:
        hint = (
            f"raylane rehearse {spec_file} --trace FILE --costs FILE --out error.json, and --error error.json; or "
            "--anyway"
        )
        fail("no proposal: " + "; ".join(trust.doubts), hint=hint, code=REFUSED)
    return trust


def gathered(
    spec_file: Path,
    model: str | None,
    costs: Path | None,
    trace: Path,
    choice: TrafficOptions,
    starts: StartOptions,
    history: Path | None,
    group: str | None,
    seed: int | None,
    check: Path | None = None,
) -> Inputs:
    """Reads it all. Ends the command where something can not be used."""
    spec, whole = chosen_model(spec_file, model)
    chosen = chosen_group(spec, whole, group)
    began_s = starts.unix_s(chosen)
    try:
        cost_path, cost = engine_costs(spec, chosen, costs)
        limits = length_limits(chosen, {chosen.group: cost}, choice.fit_lengths)
        work = workload_of(chosen_requests(trace, choice, seed), spec, chosen, limits)
        past = None if history is None else scaled(history, read_requests(history, None, seed), choice, seed or 0)
        before = None if past is None else _ending_at(began_s, past, spec.scheduling.decode_weight)

        def case_on(requests: Workload) -> TuningCase:
            start_up_s, past_starts = starts.start_up_s, starts.past(chosen.name)
            return case_of(spec, chosen, cost, requests, start_up_s, before, past_starts, began_s)

        case = case_on(work)
        other = None if check is None else scaled(check, read_requests(check, None, seed), choice, seed or 0)
        checked = None if other is None else case_on(workload_of(other, spec, chosen, limits))
        own, defaults = own_and_defaults(spec, chosen)
        text = spec_file.read_bytes().decode("utf-8")
        space = space_of(case, own, defaults)
        changes = () if past is None else past.changes
        return Inputs(spec_file, text, spec, chosen, cost_path, cost, case, own, defaults, space, changes, checked)
    except ValueError as problem:
        fail(str(problem), code=2)


def _ending_at(unix_s: float, trace: Trace, decode_weight: float) -> History:
    """The traffic of the days before: its last request came when the traffic to tune on begins."""
    if not len(trace):
        raise TraceError("--history: no requests are left; allowed: a trace and scales that leave at least one")
    return history_of_trace(trace, decode_weight, unix_s - float(trace.arrived_s[-1]))
