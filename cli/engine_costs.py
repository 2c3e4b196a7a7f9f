"""Which cost file a command simulates with, and a word where it is of another engine than the spec's."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli.console import errors, fail
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.fits import misfits

Costs = Annotated[Path | None, typer.Option(help="The cost file of the engine (`docs/simulator.md`); default: the one that the spec names.")]


def engine_costs(spec: ClusterSpec, model: Model, file: Path | None) -> tuple[Path, CostFile]:
    """The cost file, by the option or by the spec, and what it holds. Ends the command where nobody names one. Raises CostFileError."""
    named = spec.costs_of(model)
    if file is None and named is None:
        fail(f"--costs: missing, and the spec names none (planning.costs) for model {model.name!r}", mend="raylane calibrate", code=2)
    path = file or Path(str(named))
    costs = read_cost_file(path)
    tell_misfits(spec, model, path, costs)
    return path, costs


def tell_misfits(spec: ClusterSpec, model: Model, file: Path, costs: CostFile) -> None:
    """Says on stderr where the file is of another engine."""
    for misfit in misfits(model, spec.pool_of(model, spec.regions_of(model)[0]), costs):
        errors.print(f"[bold yellow]another engine[/]: {escape(str(file))}: {escape(misfit)}")
