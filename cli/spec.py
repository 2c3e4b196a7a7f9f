"""`raylane spec`: checks a cluster spec, prints the schema of all specs, and takes over what Terraform made."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from autoscaling.from_spec import scaling_problems
from cli.console import Table, console, errors
from cli.from_terraform import from_terraform
from cluster.artifacts import missing_sources
from cluster.spec import ClusterSpec, SpecError, load_spec
from deployments.engine.simulated.costs import cost_problems
from deployments.engine_model.itl_bounds import itl_problems
from planning.fit.of_spec import COLUMNS, ModelFit, fits

spec = typer.Typer(
    help="Check a cluster spec, print its JSON schema, or take over what Terraform made.", no_args_is_help=True
)
spec.command("from-terraform")(from_terraform)


@spec.command()
def check(file: Annotated[Path, typer.Argument(help="The spec, YAML.")]) -> None:
    """Check a spec. Each problem names the key, the value and what is allowed."""
    try:
        cluster = load_spec(file)
    except SpecError as error:
        _refuse(file, error.problems)
    if problems := scaling_problems(cluster, read_costs=False):
        _refuse(file, problems)
    found = list(fits(cluster))
    _show_fits(found)
    if problems := [problem for one in found for problem in one.problems]:
        _refuse(file, problems)
    for problem in cluster.unknown_gpus():
        errors.print(f"[yellow]not known[/]: {escape(problem)}")
    for problem in missing_sources(cluster):  # a fact of this machine, not of the spec: another one may hold them
        errors.print(f"[yellow]not on this machine[/]: {escape(problem)}")
    for problem in cost_problems(cluster):
        errors.print(f"[yellow]cannot be simulated[/]: {escape(problem)}")
    for problem in itl_problems(cluster):
        errors.print(f"[yellow]cannot always be kept[/]: {escape(problem)}")
    if (cache := cluster.gateway.cache) is not None and cache.semantic is not None and cache.semantic.doubt is not None:
        errors.print(f"[yellow]answers wrongly[/]: {escape(cache.semantic.doubt)}")
    for problem in scaling_problems(cluster):
        errors.print(f"[yellow]cannot be scaled as written[/]: {escape(problem)}")
    for region in cluster.regions:
        for view in cluster.views_in(region):
            pool = cluster.pool_of(view, region)
            simulated = ", [yellow]simulated[/]" if view.engine == "simulated" else ""
            console.print(
                f"  {view.group_key}: {view.replicas.count} x {pool.accelerator} in "
                f"{region.name}/{pool.name}{simulated}"
            )
        for model in cluster.models:
            if model.groups and region in cluster.regions_of(model):
                console.print(f"  {model.name}: lanes {_lanes(cluster.lane_groups(model, region))} in {region.name}")
    for view in cluster.views_in():
        if (schedule := view.replicas.schedule) is not None:
            console.print(f"  {view.group_key}: replicas by schedule, {escape(schedule.in_words())}")
    console.print(f"[green]{escape(str(file))} is a usable spec[/] (cluster {cluster.name!r})")


def _lanes(groups: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{lane}: {' then '.join(names)}" for lane, names in groups.items())


def _show_fits(found: Sequence[ModelFit]) -> None:
    """What each model takes and holds on one GPU of its pool, where that is known."""
    table = Table(*COLUMNS, title="Memory of one GPU", title_justify="left")
    for one in found:
        if one.fit is None:
            errors.print(f"[yellow]fit not checked[/]: {one.model} on {one.place}: {escape(str(one.unknown))}")
            continue
        table.add_row(*one.row())
        for left in one.left_out:
            errors.print(f"[yellow]not counted[/]: {one.model} on {one.place}: memory of {left}")
    if table.row_count:
        console.print(table)


def _refuse(file: Path, problems: Sequence[str]) -> NoReturn:
    errors.print(f"[bold red]{escape(str(file))}[/]: {len(problems)} problem(s)")
    for problem in problems:
        errors.print(f"  {escape(problem)}")
    raise typer.Exit(1) from None


@spec.command()
def schema() -> None:
    """Print the JSON schema of cluster specs, for editors and CI."""
    typer.echo(json.dumps(ClusterSpec.model_json_schema(), indent=2))
