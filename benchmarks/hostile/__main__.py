"""`python -m benchmarks.hostile`: bodies that mean harm and shapes of structured output beside a stream of a cell with
vLLM, in turns with ordinary prompts; then beside a stream of vLLM alone."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness import JsonFile, console, run_facts, run_program, write_json
from benchmarks.hostile.engine import BODIES, beside_engine


def main(
    max_mib: Annotated[
        float, typer.Option(min=0.001, max=8, help="The largest body. 8 is the gateway's limit.")
    ] = 0.125,
    json_file: JsonFile = None,
) -> None:
    """Measure what hostile bodies cost a stream."""
    maximum = round(max_mib * 2**20)

    async def work(folder: Path) -> dict[str, Any]:
        found = await beside_engine(folder, maximum)
        return {"schema": 1, **run_facts(), "bodies": BODIES, "max_bytes": maximum, "engine": found}

    result = run_program(work)
    for name, value in result["engine"].items():
        console.print(f"{name}: {value}", highlight=False)
    write_json(result, json_file)


if __name__ == "__main__":
    typer.run(main)
