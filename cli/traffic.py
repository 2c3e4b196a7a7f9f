"""`raylane traffic`: draws the requests of a traffic file, shows them in figures, and writes them as a trace; likewise
with any trace."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from cli.console import console, fail, plain_table
from cli.option_groups import with_groups
from cli.options import Seed, TrafficOptions, chosen_requests, show_changes
from planning.workload.lengths import IntArray
from planning.workload.scaling import LengthLimits, within
from planning.workload.trace import LABELS, Trace
from planning.workload.traces import write_trace
from planning.workload.traffic.file import TrafficFile

_PEAK_S = 600.0


Context = Annotated[
    int | None,
    typer.Option(
        min=16, help="A model's context in tokens. Longer requests are rejected, or shrunk with --fit-lengths."
    ),
]


@with_groups
def traffic(
    choice: TrafficOptions,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A traffic file (.yaml), or a trace.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the requests to this file as raylane trace JSONL (.gz: compressed).")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of traffic files, and exit.")] = False,
    context: Context = None,
    seed: Seed = None,
) -> None:
    """Generate the requests of a traffic file, or read a trace; summarise them, or write them to a file."""
    if schema:
        typer.echo(json.dumps(TrafficFile.model_json_schema(), indent=2))
        return
    if file is None:
        fail("FILE is missing", hint="raylane traffic infra/traffic/day.yaml", code=2)
    if choice.fit_lengths and context is None:
        fail("--fit-lengths: needs --context TOKENS", code=2)
    trace = chosen_requests(file, choice, seed)
    if context is not None:
        trace = within(trace, LengthLimits(context, fit=choice.fit_lengths))
    show_changes(trace.changes)
    if not len(trace):
        fail(f"{file}: no request fits --context {context}", hint="--fit-lengths", code=2)
    _show(file, trace)
    if out is not None:
        try:
            write_trace(out, trace)
        except OSError as error:
            fail(f"--out {out}: cannot be written: {error.strerror}", code=2)
        console.print(f"written to {out}")


def _show(file: Path, trace: Trace) -> None:
    busy_s = min(_PEAK_S, max(trace.span_s, 1.0))
    after = np.searchsorted(trace.arrived_s, trace.arrived_s + busy_s)
    peak = (after - np.arange(len(trace))).max() / busy_s
    until = float(trace.arrived_s[-1])
    mean = f", {len(trace) / trace.span_s:.3g} requests/s" if trace.span_s else ""
    console.print(
        f"[bold]{file.name}[/]: {len(trace):,} requests in {until:,.0f} s{mean}, {peak:.3g} in the busiest "
        f"{busy_s:.0f} s"
    )
    table = plain_table("tokens", "mean", "p50", "p90", "p99", "maximum", left=1)
    for name, tokens in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        table.add_row(name, *(f"{value:,.0f}" for value in _figures(tokens)))
    console.print(table)
    for name in LABELS:
        labels = getattr(trace, name)
        if labels is not None:
            counts = np.bincount(labels.codes, minlength=len(labels.names))
            maximum = np.argsort(-counts, kind="stable")[:8]
            shown = ", ".join(
                f"{labels.names[code] or '(none)'} {counts[code] / len(trace):.1%}" for code in maximum if counts[code]
            )
            console.print(
                f"{name.removeprefix('traffic_')}: {shown}{', ...' if (counts > 0).sum() > len(maximum) else ''}"
            )
    if trace.prefixes is not None:
        shared = (trace.prefixes.counts > 0).mean()
        console.print(
            f"prefixes: {shared:.1%} of the requests begin with hashed chunks of {trace.prefixes.chunk_tokens} tokens"
        )
    if trace.session is not None:
        console.print(f"sessions: {len(np.unique(trace.session[trace.session >= 0])):,}")


def _figures(tokens: IntArray) -> tuple[float, ...]:
    return (
        float(tokens.mean()),
        *(float(value) for value in np.quantile(tokens, (0.5, 0.9, 0.99))),
        float(tokens.max()),
    )
