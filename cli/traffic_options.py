"""The options that choose traffic, and what they give: a trace or a traffic file, a window of it, and its scales. Used by `raylane simulate` and
`raylane traffic`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from planning.workload.formats import FORMATS
from planning.workload.scaling import first_requests, load_scaled, time_scaled, window
from planning.workload.trace import Trace, TraceError
from planning.workload.traces import read_requests

TRACE_HELP = f"Traffic: a traffic file (.yaml), or a trace, .gz or plain: {', '.join(known.name for known in FORMATS)}."

TraceFile = Annotated[Path, typer.Option(help=TRACE_HELP)]
FromS = Annotated[float, typer.Option("--from", min=0, metavar="SECONDS", help="Leave out what arrives before this second of the traffic.")]
ToS = Annotated[float | None, typer.Option("--to", min=0, metavar="SECONDS", help="Leave out what arrives from this second on.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N requests of the window.")]
TimeScale = Annotated[float, typer.Option(min=1e-6, max=1e6, help="Stretches the clock: 0.5 plays twice as fast, and all changes twice as steep.")]
LoadScale = Annotated[
    float, typer.Option(min=1e-6, max=1_000, help="So many times the requests in the same time: thinned, or shifted copies laid over each other.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of --load-scale and of a traffic file's draws. Default: 0, and the file's own.")]


@dataclass(frozen=True, slots=True)
class Choice:
    """The options' values, in the order in which they are applied."""

    from_s: float = 0.0
    to_s: float | None = None
    limit: int | None = None
    time_scale: float = 1.0
    load_scale: float = 1.0
    seed: int | None = None


def chosen_requests(path: Path, choice: Choice) -> Trace:
    """The requests of a file that the options choose. Raises TraceError."""
    # Only without a window may the reader cut at the limit by itself: the limit counts from the window's start.
    whole = choice.from_s == 0 and choice.to_s is None
    trace = read_requests(path, choice.limit if whole else None, choice.seed)
    if not whole:
        trace = window(trace, choice.from_s, choice.to_s)
    if choice.limit is not None:
        trace = first_requests(trace, choice.limit)
    trace = scaled(trace, choice)
    if not len(trace):
        ends = "" if choice.to_s is None else f", --to {choice.to_s:g}"
        raise TraceError(f"{path}: no request is left by --from {choice.from_s:g}{ends}, --load-scale {choice.load_scale:g}")
    return trace


def scaled(trace: Trace, choice: Choice) -> Trace:
    """The requests on the stretched clock, so many times as many of them."""
    return load_scaled(time_scaled(trace, choice.time_scale), choice.load_scale, choice.seed or 0)
