"""What several planning commands share: the spec's model, the cost file, the traffic that is chosen, and where results
are written."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from rich.markup import escape

from autoscaling.signals.signals import PastStart
from cli.console import console, errors, fail
from cluster.files import is_special, write_whole
from cluster.spec import ClusterSpec, Model, load_spec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.fits import misfits
from planning.simulator.starts import recorded_starts
from planning.unmodelled import Unmodelled
from planning.workload.changes import REJECTED, TraceChange
from planning.workload.formats import FORMATS
from planning.workload.scaling import LengthLimits, first_requests, load_scaled, time_scaled, window
from planning.workload.trace import Trace, TraceError
from planning.workload.traces import read_requests


def chosen_model(spec_file: Path, model: str | None) -> tuple[ClusterSpec, Model]:
    """The spec in the file, and its model of that name (None: the first). Ends the command if there is none."""
    spec = load_spec(spec_file)
    chosen = next((one for one in spec.models if model in (None, one.name)), None)
    if chosen is None:
        fail(f"--model {model!r}: not in the spec; allowed: {', '.join(one.name for one in spec.models)}", code=2)
    return spec, chosen


def replica_count(model: Model, replicas: int | None) -> int:
    """The number of replicas: `replicas`, else the spec's count; at least 1."""
    count = replicas or model.replicas.count
    if count < 1:
        fail(f"model {model.name!r} has {count} replicas; needed: at least 1", hint="--replicas N", code=2)
    return count


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")]
ModelName = Annotated[str | None, typer.Option(help="The model. Default: the spec's first.")]
PricePerGpuHour = Annotated[
    float | None, typer.Option(min=0, help="US dollars. Default: the pool's price in the spec.")
]
Report = Annotated[Path | None, typer.Option(help="Write an HTML report (one file, readable offline).")]
Costs = Annotated[
    Path | None, typer.Option(help="The engine's cost file (docs/simulator.md). Default: the one that the spec names.")
]


def group_costs(spec: ClusterSpec, model: Model, file: Path | None, several: bool) -> dict[str, tuple[Path, CostFile]]:
    """The cost file of each group of the model in its first region, and its content; `several`: for all its regions.
    Ends the command where one is missing, or one is given for several groups. Raises CostFileError."""
    views = spec.groups_of(model, spec.regions_of(model)[0])
    if len(views) > 1 and file is not None:
        named = ", ".join(view.group for view in views)
        fail(
            f"--costs {file}: the groups of model {model.name!r} ({named}) have different engines; needed: the cost "
            "file of each in the spec (groups.autoscaling.costs or groups.simulated.costs)",
            code=2,
        )
    return {view.group: engine_costs(spec, view, file, several) for view in views}


def engine_costs(spec: ClusterSpec, model: Model, file: Path | None, several: bool = False) -> tuple[Path, CostFile]:
    """The cost file that the option or the spec names, and its content. Ends the command if neither does. Raises
    CostFileError."""
    named = spec.costs_of(model)
    if file is None and named is None:
        fail(
            f"--costs: missing, and the spec names none (autoscaling.costs) for model {model.group_key!r}",
            hint="raylane calibrate, or an estimate by raylane costs",
            code=2,
        )
    path = file or Path(str(named))
    costs = read_cost_file(path)
    tell_misfits(spec, model, path, costs, several)
    return path, costs


def tell_misfits(spec: ClusterSpec, model: Model, file: Path, costs: CostFile, several: bool = False) -> None:
    """Warns on stderr if the file describes another engine than the spec's in the first region, or in any."""
    regions = spec.regions_of(model)[: None if several else 1]
    found = {
        misfit: f" (region {region.name})" if several else ""
        for region in reversed(regions)
        for misfit in misfits(model, spec.pool_of(model, region), costs)
    }
    for misfit, where in found.items():
        errors.print(f"[bold yellow]cost file of another engine[/]: {escape(str(file))}: {escape(misfit + where)}")


TRACE_HELP = (
    f"Traffic: a traffic file (.yaml), or a trace (plain or .gz): {', '.join(known.name for known in FORMATS)}."
)

TraceFile = Annotated[Path, typer.Option(help=TRACE_HELP)]
WithRange = Annotated[
    bool,
    typer.Option(
        "--range/--no-range",
        help="Run the simulation twice more, with the lowest and the highest likely costs, and show the range of each "
        "figure.",
    ),
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of --load-scale and of a traffic file. Default: 0, and the file's own.")
]


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What is made of a file's requests, in the order in which it applies."""

    from_s: Annotated[
        float, typer.Option("--from", min=0, metavar="SECONDS", help="Skip requests that arrive before this second.")
    ] = 0.0
    to_s: Annotated[
        float | None,
        typer.Option("--to", min=0, metavar="SECONDS", help="Skip requests that arrive at this second or later."),
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N requests of the window.")] = None
    time_scale: Annotated[
        float,
        typer.Option(
            min=1e-6, max=1e6, help="Multiply all arrival times: 0.5 sends the same requests in half the time."
        ),
    ] = 1.0
    load_scale: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=1_000,
            help="Change the load: below 1 keeps this share of the requests, above 1 adds time-shifted copies.",
        ),
    ] = 1.0
    fit_lengths: Annotated[
        bool,
        typer.Option(
            "--fit-lengths",
            help="Shrink all lengths by one factor, so that the longest request fits the model's context. Default: "
            "reject requests that are too long.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How long replicas take to start, and when the traffic begins."""

    start_up_s: Annotated[
        float | None,
        typer.Option(
            "--start-up",
            min=0,
            metavar="SECONDS",
            help="How long a replica takes to start. Default: by the phases of --starts or of the spec (models.start), "
            "else the simulated engine's start_up_s, else 60.",
        ),
    ] = None
    starts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The cell.sqlite of a cell: how long the phases of a start take, by its recorded starts.",
        ),
    ] = None
    start_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When the traffic begins, for bounds by time of day and forecasts: 2026-11-23T07:00 (in the time zone "
            "of replicas.schedule, else UTC) or with an offset. Default without a schedule: midnight UTC.",
        ),
    ] = None

    def past(self, model: str) -> list[PastStart]:
        """The recorded starts of a model; none without a record. Ends the command where it cannot be used."""
        try:
            return [] if self.starts is None else recorded_starts(self.starts, model)
        except (OSError, ValueError) as error:
            fail(f"--starts {self.starts}: {error}", code=2)

    def unix_s(self, model: Model) -> float:
        """When the traffic begins. Ends the command where `--start-at` is no time, or is missing although it
        matters."""
        schedule = next((view.replicas.schedule for view in model.views if view.replicas.schedule is not None), None)
        if self.start_at is None:
            if schedule is None:
                return 0.0
            fail(
                f"--start-at: missing; models.{model.name}.replicas.schedule has bounds by time of day, so when the "
                "traffic begins matters",
                hint="--start-at 2026-11-23T07:00",
                code=2,
            )
        try:
            at = datetime.fromisoformat(self.start_at)
        except ValueError:
            allowed = "a time, as 2026-11-23T07:00 or 2026-11-23T07:00+01:00"
            fail(f"--start-at {self.start_at!r}: allowed: {allowed}", code=2)
        zone = UTC if schedule is None else ZoneInfo(schedule.time_zone)
        return (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()


@dataclass(frozen=True, slots=True)
class PrivateCellOptions:
    """A cell that the command brings up for itself."""

    replicas: Annotated[
        int | None, typer.Option(min=1, max=64, help="Replicas to run on this machine. Default: the spec's count.")
    ] = None
    length_scale: Annotated[
        float,
        typer.Option(
            min=1e-3,
            max=1.0,
            help="Multiply the trace's lengths. Reduced if the longest request would not fit the context.",
        ),
    ] = 1.0
    pin: Annotated[
        bool, typer.Option("--pin", help="Give each replica a core of its own, and everything else the rest.")
    ] = False
    keep: Annotated[Path | None, typer.Option(help="Keep the step logs and the ledger in this folder.")] = None


def chosen_requests(path: Path, choice: TrafficOptions, seed: int | None = None) -> Trace:
    """The requests of a file that the options choose. Raises TraceError."""
    # Only without a window may the reader cut at the limit by itself: the limit counts from the window's start.
    whole = choice.from_s == 0 and choice.to_s is None
    trace = read_requests(path, choice.limit if whole else None, seed)
    if not whole:
        trace = window(trace, choice.from_s, choice.to_s)
    if choice.limit is not None:
        trace = first_requests(trace, choice.limit)
    trace = scaled(path, trace, choice, seed or 0)
    if not len(trace):
        ends = "" if choice.to_s is None else f", --to {choice.to_s:g}"
        raise TraceError(
            f"{path}: no requests are left after --from {choice.from_s:g}{ends}, --load-scale {choice.load_scale:g}"
        )
    days = float(trace.arrived_s[-1]) / 86_400
    if days > _LONG_DAYS:
        errors.print(f"[bold yellow]a long trace[/]: {escape(str(path))}: {days:,.0f} days; are its times in seconds?")
    return trace


_LONG_DAYS, _MAX_DAYS = 14, 366


def length_limits(model: Model, costs: Mapping[str, CostFile], fit_lengths: bool) -> LengthLimits:
    """What requests must fit on the engines of the cost files, by group: on that which holds the longest."""
    engines = [(view.settings.max_model_len, costs[view.group].engine) for view in model.views if view.group in costs]
    context, engine = max(engines, key=lambda one: min(one[0], one[1].kv_tokens))
    longest, kv_tokens = max(context for context, _ in engines), min(context, engine.kv_tokens)
    return LengthLimits(longest, kv_tokens, engine.block_tokens, fit_lengths)


def show_unmodelled(found: Sequence[Unmodelled]) -> None:
    """What the spec asks for that the simulator does not model, on stdout."""
    if found:
        console.print("[bold yellow]not modelled in this spec:[/]")
    for one in found:
        console.print(f"  {one.kind.value}: {escape(str(one))}")


def show_changes(changes: Sequence[TraceChange], of: str = "the trace") -> None:
    """What was changed on the way from the file to the traffic, on stdout."""
    if changes:
        console.print(f"changes to {of}:")
    for change in changes:
        style = "bold yellow" if change.kind in REJECTED else None
        console.print(f"  {change.kind.value}: {escape(str(change))}", style=style)


def scaled(path: Path, trace: Trace, choice: TrafficOptions, seed: int) -> Trace:
    """The requests of the file on the stretched clock, so many times as many of them. Raises TraceError."""
    stretched = time_scaled(trace, choice.time_scale)
    days = float(stretched.arrived_s.max(initial=0.0)) / 86_400
    if days > _MAX_DAYS:
        raise TraceError(
            f"{path}: its last request comes {days:,.0f} days after its first; allowed: at most {_MAX_DAYS}. Are its "
            "times in seconds, and is none corrupt?"
        )
    return load_scaled(stretched, choice.load_scale, seed)


def write_page(path: Path, html: str) -> list[str]:
    """Writes a report, and says where on stderr: stdout may be a program's. Returns what is wrong, if anything."""
    try:
        write_whole(path, html)
    except OSError as error:
        return [f"{path}: cannot be written: {error.strerror}"]
    errors.print(f"report: {path}")
    return []


def check_outputs(**places: Path | None) -> None:
    """Ends the command where a file cannot be written: better before a long run than after it. Each by the name of its
    option, None where none was asked for."""
    for name, place in places.items():
        if place is None:
            continue
        folder, problem = os.path.dirname(os.path.realpath(place)), ""
        if os.path.isdir(place):
            problem = "is a folder; name a file in it"
        elif is_special(place):
            problem = "is not a regular file; allowed: a regular file, or a path that does not exist"
        elif not os.path.isdir(folder):
            problem = f"the folder {folder} does not exist"
        elif not os.access(folder, os.W_OK | os.X_OK):
            problem = f"the folder {folder} is not writable"
        if problem:
            fail(f"--{name.replace('_', '-')} {place}: {problem}", code=2)
