"""`python -m benchmarks.serving`: reads the options, runs the comparison, prints the tables, writes the JSON."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.serving.compare import Choice, compare
from benchmarks.serving.contest import Shape, Streamed
from benchmarks.serving.points import parse_points
from benchmarks.serving.program import console, run_program, write_json
from benchmarks.serving.report import render
from benchmarks.serving.sides import SIDES, SideName
from benchmarks.serving.spec import one_replica_spec, write_spec
from cli.private_cell import free_port
from cluster.spec import parse_spec

Option = typer.Option


def main(
    rounds: Annotated[int, Option(min=1, help="Rounds a point; each has a turn of both sides.")] = 5,
    points: Annotated[str, Option(help="Concurrencies, or multiples of max_num_seqs.")] = "8,32,64,4x",
    sides: Annotated[str, Option(help="The first is compared with each of the others.")] = ",".join(SIDES),
    round_s: Annotated[float, Option(help="About how long a turn is, in seconds.")] = 10.0,
    prompt_tokens: Annotated[int, Option(min=1)] = 64,
    output_tokens: Annotated[int, Option(min=1)] = 64,
    stream: Annotated[Streamed, Option(help="Whether the rounds' answers are streamed; mixed: to every other client.")] = Streamed.YES,
    singles: Annotated[int, Option(min=0, help="Spaced single requests a side, always streamed.")] = 200,
    single_every_s: Annotated[float, Option(help="Seconds from one single request to the next, the sides in turns.")] = 0.15,
    source: Annotated[str | None, Option(help="Another model than the spec's: a folder or a hub name.")] = None,
    alone: Annotated[bool, Option("--alone", help="Measure each rival once more with nobody else up.")] = False,
    checkout: Annotated[Path | None, Option(help="Another checkout of raylane with a .venv: the side `checkout`.")] = None,
    json_file: Annotated[Path | None, Option("--json", help="Write the result as JSON.")] = None,
    quick: Annotated[bool, Option("--quick", help="2 rounds of 3 s and 20 singles: whether it works, not a measurement.")] = False,
) -> None:
    """Compare our endpoint with bare vLLM and with ray.serve.llm: one machine, one run, in turns."""
    shape = Shape(prompt_tokens, output_tokens, rounds, round_s, singles, single_every_s, stream)
    if quick:
        shape = dataclasses.replace(shape, rounds=2, round_s=3.0, singles=20)
    chosen = _sides(sides, checkout)
    text = one_replica_spec(free_port(), source)
    try:
        concurrencies = parse_points(points, parse_spec(text).models[0].settings.max_num_seqs)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--points'") from error
    if stream is Streamed.MIXED and any(concurrency % 2 for concurrency in concurrencies):
        raise typer.BadParameter(f"{points!r} with --stream mixed; allowed: even numbers of clients", param_hint="'--points'")
    choice = Choice(chosen, concurrencies, shape, alone, checkout)
    result = run_program(lambda folder: compare(write_spec(folder, text), folder, choice, console.print))
    console.print(render(result))
    write_json(result, json_file)


def _sides(text: str, checkout: Path | None) -> list[SideName]:
    if checkout is not None and not (checkout / ".venv" / "bin" / "raylane").is_file():
        raise typer.BadParameter(f"{str(checkout)!r} has no .venv/bin/raylane; allowed: a checkout after `make install`", param_hint="'--checkout'")
    allowed: tuple[SideName, ...] = SIDES if checkout is None else (*SIDES, "checkout")
    names = [part.strip() for part in text.split(",")]
    chosen = [side for name in names for side in allowed if side == name]
    if len(chosen) != len(names) or len(set(chosen)) < max(2, len(names)):
        raise typer.BadParameter(f"{text!r}; allowed: two or more different ones of {', '.join(allowed)}", param_hint="'--sides'")
    if any(side.startswith("serve-llm") for side in chosen) and importlib.util.find_spec("pyarrow") is None:
        raise typer.BadParameter(f"{text!r}: ray.serve.llm cannot be imported without pyarrow: pip install pyarrow", param_hint="'--sides'")
    return chosen


if __name__ == "__main__":
    typer.run(main)
