"""`python -m benchmarks.serving`: reads the options, runs the comparison, prints the tables, writes the JSON."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from benchmarks.harness import JsonFile, console, plain_table, run_program, write_json
from benchmarks.serving.compare import ComparisonOptions, compare
from benchmarks.serving.contest import ComparisonShape, parse_points
from benchmarks.serving.sides import SIDES, SideName, one_replica_spec, write_spec
from cli.private_cell import free_port
from cluster.spec import parse_spec

Option = typer.Option


def main(
    rounds: Annotated[int, Option(min=1, help="Rounds for each point; each side has one turn in a round.")] = 5,
    points: Annotated[str, Option(help="Concurrencies, or multiples of max_num_seqs.")] = "8,32,64,4x",
    sides: Annotated[str, Option(help="The sides; the first is compared with each of the others.")] = ",".join(SIDES),
    round_s: Annotated[float, Option(help="The approximate duration of a turn (seconds).")] = 10.0,
    prompt_tokens: Annotated[int, Option(min=1)] = 64,
    stream: Annotated[bool, Option(help="Whether answers are streamed in the rounds.")] = True,
    singles: Annotated[int, Option(min=0, help="Single requests to each side, one at a time, always streamed.")] = 200,
    checkout: Annotated[
        Path | None, Option(help="The folder of the side `checkout`: another checkout of raylane, with a .venv.")
    ] = None,
    json_file: JsonFile = None,
    quick: Annotated[
        bool, Option("--quick", help="A test run, not a measurement: 2 rounds of 3 s and 20 single requests.")
    ] = False,
) -> None:
    """Compare our endpoint with bare vLLM and with ray.serve.llm: one machine, one run, in turns."""
    shape = ComparisonShape(prompt_tokens, rounds=rounds, round_s=round_s, singles=singles, stream=stream)
    if quick:
        shape = dataclasses.replace(shape, rounds=2, round_s=3.0, singles=20)
    chosen = _sides(sides, checkout)
    text = one_replica_spec(free_port())
    try:
        concurrencies = parse_points(points, parse_spec(text).models[0].settings.max_num_seqs)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--points'") from error
    choice = ComparisonOptions(chosen, concurrencies, shape, checkout)
    result = run_program(lambda folder: compare(write_spec(folder, text), folder, choice, console.print))
    console.print(render(result))
    write_json(result, json_file)


def _sides(text: str, checkout: Path | None) -> list[SideName]:
    if checkout is not None and not (checkout / ".venv" / "bin" / "raylane").is_file():
        raise typer.BadParameter(
            f"{str(checkout)!r} has no .venv/bin/raylane; allowed: a checkout after `make install`",
            param_hint="'--checkout'",
        )
    allowed: tuple[SideName, ...] = SIDES if checkout is None else (*SIDES, "checkout")
    names = [part.strip() for part in text.split(",")]
    chosen = [side for name in names for side in allowed if side == name]
    if len(chosen) != len(names) or len(set(chosen)) < max(2, len(names)):
        raise typer.BadParameter(
            f"{text!r}; allowed: two or more different ones of {', '.join(allowed)}", param_hint="'--sides'"
        )
    if any(side.startswith("serve-llm") for side in chosen) and importlib.util.find_spec("pyarrow") is None:
        raise typer.BadParameter(
            f"{text!r}: ray.serve.llm cannot be imported without pyarrow: pip install pyarrow", param_hint="'--sides'"
        )
    return chosen


def render(result: dict[str, Any]) -> Group:
    """One table of throughput and one of spaced TTFT, over the facts of the machine."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    facts = (
        f"{machine['cores']} cores of {machine['processor']}, load {machine['load_average'][0]} at the start; "
        f"{versions}; model {result['model']}"
    )
    failed = sum(turn["failed"] for turn in _turns(result))
    tables = [_throughput(result), *([_singles(result)] if result["shape"]["singles"] else [])]
    return Group(
        *tables,
        Text(_shape(result["shape"])),
        Text(facts),
        Text(f"{failed} failed requests", style="red" if failed else "green"),
    )


def _throughput(result: dict[str, Any]) -> Table:
    table = plain_table(
        "output tokens/s: ours / rival (the median of the rounds' ratios, and its interval)",
        *("rival", "clients", "ratio", "interval", "ours", "rival", "TTFT p50 ours", "rival"),
    )
    for found in result["comparisons"]:
        for point in found["points"]:
            ratio = point["ratio"]
            ours, rival = (_middle_turn(point, found[role]) for role in ("ours", "rival"))
            table.add_row(
                found["rival"],
                str(point["concurrency"]),
                f"{ratio['median']:.3f}",
                f"{ratio['low']:.3f}-{ratio['high']:.3f} ({ratio['coverage']:.0%})",
                f"{ours['tokens_per_s']:.0f}",
                f"{rival['tokens_per_s']:.0f}",
                _ms(ours["ttft_p50_ms"]),
                _ms(rival["ttft_p50_ms"]),
            )
    return table


def _shape(shape: dict[str, Any]) -> str:
    how = "streamed" if shape["stream"] else "not streamed"
    return (
        f"{shape['prompt_tokens']} tokens of prompt, {shape['output_tokens']} of output, {how}; {shape['rounds']} "
        "rounds"
    )


def _singles(result: dict[str, Any]) -> Table:
    table = plain_table(
        "TTFT of spaced single requests in ms, and the median of the pairs' differences",
        *("rival", "p50 ours", "rival", "p99 ours", "rival", "difference", "interval"),
    )
    for found in result["comparisons"]:
        singles = found["singles"]
        ours, rival = (singles["ttft_ms"][found[role]] for role in ("ours", "rival"))
        difference = singles["ttft_difference_ms"]
        spread = (
            ("-", "-")
            if difference is None
            else (f"{difference['median']:+.2f}", f"{difference['low']:+.2f} to {difference['high']:+.2f}")
        )
        table.add_row(
            found["rival"], *(_ms(side[percentile]) for percentile in ("p50", "p99") for side in (ours, rival)), *spread
        )
    return table


def _middle_turn(point: dict[str, Any], side: str) -> dict[str, Any]:
    """The turn with the side's median throughput."""
    turns = sorted((each[side] for each in point["rounds"]), key=lambda turn: float(turn["tokens_per_s"]))
    middle: dict[str, Any] = turns[len(turns) // 2]
    return middle


def _turns(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        each[found[role]]
        for found in result["comparisons"]
        for point in found["points"]
        for each in point["rounds"]
        for role in ("ours", "rival")
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    typer.run(main)
