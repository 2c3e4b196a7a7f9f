"""`raylane drill`: a fault of a region, a zone or a link, with traffic: until when the SLO holds again, what is lost,
what it costs; simulated, or live beside what the simulation predicts."""

import asyncio
import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cli.bench.client import EndpointError
from cli.bench.run import allow_many_connections
from cli.console import console, fail, show
from cli.drill.live import FaultError, LiveClients, LivedDrill, UsersCells, live_drill
from cli.drill.local_cells import local_cells
from cli.drill.options import (
    FaultOptions,
    LoadOptions,
    read_case,
    read_drill,
    read_endpoints,
    read_traffic,
)
from cli.options import AsJson, Costs, ModelName, Report, SpecFile, check_outputs
from cli.server_process import ServerError, end_descendants
from planning.drill.drill import Drill, DrillTraffic
from planning.drill.findings import findings_of
from planning.drill.record import DrillRecord
from planning.drill.result import (
    COMPARED_COLUMNS,
    LINE_COLUMNS,
    PHASE_COLUMNS,
    DrillResult,
    DrillRun,
    compared_rows,
    finding_rows,
    phase_rows,
)
from planning.drill.simulated import DrillCase, simulate_drill, simulated_recoveries
from planning.report.drill import render
from planning.report.file import ReportFileError, write_report
from planning.simulator.faults import FaultKind

Kind = Annotated[FaultKind, typer.Argument(metavar="KIND", help="What happens: " + ", ".join(FaultKind) + ".")]
Live = Annotated[
    bool,
    typer.Option(
        "--live/--simulated",
        help="On real cells: a cell for each region, started on this machine, or those of --endpoint. Default: in the "
        "simulator.",
    ),
]
Cell = Annotated[str | None, typer.Option(help="The region that it befalls. Default: the spec's first.")]
Others = Annotated[
    list[str] | None,
    typer.Option("--other", help="Of a link: the region at its other end; repeatable. Default: all others."),
]
At = Annotated[float, typer.Option("--at", min=1, metavar="SECONDS", help="When it begins.")]
For = Annotated[
    float | None,
    typer.Option(
        "--for",
        min=1,
        metavar="SECONDS",
        help="How long it lasts. Default: to the end (a region, a zone), 30 s (else).",
    ),
]
Length = Annotated[
    float, typer.Option("--length", min=10, max=3_600, metavar="SECONDS", help="How long requests arrive.")
]
Share = Annotated[
    float | None, typer.Option(min=0.01, max=1, help="Of zone-loss: the share of replicas. Default: 0.5.")
]
Speed = Annotated[
    float | None, typer.Option(min=0.01, max=1, help="Of brown-out: the engines' share of their speed. Default: 0.5.")
]
MoreRtt = Annotated[
    float | None,
    typer.Option(
        "--more-rtt-ms", min=1, max=10_000, help="Of slow-link: how much longer round trips are. Default: 200."
    ),
]
Load = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SHARE|REGION=SHARE",
        help="Traffic, as a share of a cell's simulated capacity: 0.5, or eu=1.5,us=0.5. Default: 0.5.",
    ),
]
Rate = Annotated[
    list[str] | None, typer.Option(metavar="N|REGION=N", help="Traffic in requests a second, instead of --load.")
]
RttMs = Annotated[
    list[str] | None,
    typer.Option(
        "--rtt-ms",
        metavar="MS|A:B=MS",
        help="Round trips between regions. Default: those of the clouds' regions that are known, else 50.",
    ),
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="REGION=URL", help="With --live: your own cells; one for each region."),
]
BeginCommand = Annotated[
    str | None, typer.Option(help="With --endpoint: the shell command that makes the fault (docs/drills.md).")
]
EndCommand = Annotated[str | None, typer.Option(help="With --endpoint: the shell command that ends it.")]
ApiKeyEnv = Annotated[
    str | None, typer.Option(help="With --endpoint: the environment variable that holds the API key.")
]
Patience = Annotated[
    float,
    typer.Option("--timeout", min=1, max=3_600, help="A client's patience with a request (seconds)."),
]
Keep = Annotated[Path | None, typer.Option(help="With --live: keep the cells' specs, logs and traces in this folder.")]


def drill(
    kind: Kind,
    spec_file: SpecFile,
    live: Live = False,
    cell: Cell = None,
    other: Others = None,
    at_s: At = 30.0,
    for_s: For = None,
    length_s: Length = 90.0,
    share: Share = None,
    speed: Speed = None,
    more_rtt_ms: MoreRtt = None,
    load: Load = None,
    rate: Rate = None,
    input_tokens: Annotated[str, typer.Option(help="Prompt lengths, as in `raylane bench`.")] = "lognormal:900:0.8",
    output_tokens: Annotated[str, typer.Option(help="Answer lengths, as in `raylane bench`.")] = "lognormal:200:0.6",
    seed: Annotated[int, typer.Option(min=0, help="Of the traffic.")] = 0,
    rtt_ms: RttMs = None,
    model: ModelName = None,
    costs: Costs = None,
    endpoint: Endpoints = None,
    begin_command: BeginCommand = None,
    end_command: EndCommand = None,
    api_key_env: ApiKeyEnv = None,
    timeout_s: Patience = 120.0,
    keep: Keep = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Lose a region, a zone or a link under traffic: when the SLO holds again, what is lost, what it costs."""
    check_outputs(report=report)
    case = replace(read_case(spec_file, model, costs, rtt_ms or []), patience_s=timeout_s)
    faults = FaultOptions(cell, other or [], at_s, for_s, length_s, share, speed, more_rtt_ms)
    plan = read_drill(kind, faults, case.cells)
    traffic = read_traffic(case, plan, LoadOptions(load or [], rate or [], input_tokens, output_tokens, seed))
    endpoints = read_endpoints(endpoint or [], case.cells)
    own = _OwnCells(endpoints, begin_command, end_command, keep)
    own.check(live, case, plan)
    if live:
        clients = LiveClients(timeout_s, _api_key(api_key_env))
        result = _live(case, plan, traffic, own, clients)
    else:
        result = _result(case, plan, traffic, None)
    if report is not None:
        try:
            write_report(report, render(result))
        except ReportFileError as error:
            fail(str(error))
    if as_json:
        console.print_json(json.dumps(result.as_json()))
    else:
        _show(result)
    if not result.good:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _OwnCells:
    """The user's own cells, or none: then local ones are started."""

    endpoints: dict[str, str]
    begin_command: str | None
    end_command: str | None
    keep: Path | None

    def check(self, live: bool, case: DrillCase, plan: Drill) -> None:
        """Ends the command where options do not fit each other."""
        if self.endpoints and not live:
            fail("--endpoint: allowed with --live only", code=2)
        if not self.endpoints and (self.begin_command or self.end_command):
            fail("--begin-command and --end-command: allowed with --endpoint only; local faults need none", code=2)
        if self.endpoints and not self.begin_command:
            fail("--begin-command: missing; your own cells are not touched by anything but your command", code=2)
        if self.endpoints and plan.phases.get("after") and not self.end_command:
            fail(f"--end-command: missing; needed: what ends the {plan.kind} after --for, or no --for", code=2)
        if not live or self.endpoints:
            return
        if plan.kind is FaultKind.BROWN_OUT and case.model.engine != "simulated":
            fail(
                f"{plan.kind}: local cells can slow down simulated engines only, and {case.model.name!r} has "
                f"engine: {case.model.engine}; allowed: --endpoint with --begin-command",
                code=2,
            )
        if case.spec.tenants:
            fail(f"tenants: the spec has {len(case.spec.tenants)}; allowed for local cells: a spec without", code=2)
        if self.keep is not None and self.keep.exists() and any(self.keep.iterdir()):
            fail(f"--keep {self.keep}: is not empty; allowed: an empty folder, or one that does not exist", code=2)


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        fail(
            f"--api-key-env {variable!r}: is not set in the environment; allowed: a variable that holds the key", code=2
        )
    return key


def _live(case: DrillCase, plan: Drill, traffic: DrillTraffic, own: _OwnCells, clients: LiveClients) -> DrillResult:
    """Runs it live, and simulates the traffic as it was sent. Ends the command where that fails."""
    allow_many_connections()
    try:
        with tempfile.TemporaryDirectory(prefix="raylane-") as scratch:
            lived = asyncio.run(_lived(case, plan, traffic, own, clients, own.keep or Path(scratch)))
    except (ServerError, EndpointError, FaultError) as error:
        fail(str(error), hint="raylane doctor")
    finally:
        end_descendants()
    simulated = plan
    if plan.kind is FaultKind.ZONE_LOSS and not own.endpoints:
        # Serve starts successors at once: there are nodes.
        simulated = replace(plan, faults=tuple(replace(one, room_elsewhere=True) for one in plan.faults))
    if plan.kind is FaultKind.REGION_LOSS:
        case = replace(case, starts=lived.started)
    return _result(case, plan, lived.traffic, lived, simulated)


async def _lived(
    case: DrillCase, plan: Drill, traffic: DrillTraffic, own: _OwnCells, clients: LiveClients, folder: Path
) -> LivedDrill:
    with console.status("starting") as status:

        def tell(text: str) -> None:
            status.update(escape(text))

        if own.endpoints:
            users = UsersCells(own.endpoints, own.begin_command or "", own.end_command)
            try:
                return await live_drill(case, plan, traffic, users, clients, tell)
            finally:
                await users.restore(plan)
        tell(f"starting {len(case.cells)} cells")
        async with local_cells(case.spec, case.model.name, case.rtt_s, folder) as cells:
            return await live_drill(case, plan, traffic, cells, clients, tell)


def _result(
    case: DrillCase, plan: Drill, traffic: DrillTraffic, lived: LivedDrill | None, simulated_plan: Drill | None = None
) -> DrillResult:
    def run_of(record: DrillRecord) -> DrillRun:
        return DrillRun(record, findings_of(plan, record, case.slo))

    with console.status("simulating"):
        simulated = run_of(simulate_drill(case, simulated_plan or plan, traffic))
        near_s = simulated_recoveries(case, simulated_plan or plan, traffic)
    return DrillResult(
        case.spec.name,
        case.model.name,
        case.slo,
        plan,
        traffic,
        case.rtt_s,
        simulated,
        near_s,
        None if lived is None else run_of(lived.record),
        None if lived is None else lived.late_s,
        case.starts,
    )


def _show(result: DrillResult) -> None:
    style = "bold green" if result.good else "bold red"
    console.print(f"[{style}]{escape(result.headline)}[/]")
    console.print(escape(f"{'live' if result.live else 'simulated'}: {result.drill.in_words()}"))
    if result.came_back:
        console.print(escape(result.came_back))
    console.print(f"simulated with costs 4 % lower to 4 % higher, the SLO held again: {result.prediction}")
    found = result.seen.findings
    show(_table("", LINE_COLUMNS, finding_rows(found, result.drill)))
    show(_table("", PHASE_COLUMNS, phase_rows(found)))
    if result.live is not None:
        show(_table("simulated and live", COMPARED_COLUMNS, compared_rows(result.compared)))


def _table(title: str, columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(title=title or None, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
