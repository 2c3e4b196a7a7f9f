"""`raylane deploy`: the command. It renders each region, says what would change, asks, and applies."""

import contextlib
import copy
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autoscaling.from_spec import scaling_problems
from cli.console import complain, console, fail
from cli.deploy.changes import DeployPlan, plan_of
from cli.deploy.kubectl import Kubernetes
from cli.deploy.record import Applied, AwsRecord, HeadRecord
from cli.deploy.rendering import estimates_of, rendering_of
from cli.deploy.serve_api import DeployError
from cli.deploy.state import DeployState, write_files
from cli.deploy.steps import Hosts, login
from cluster.launch import aws_region, default_secret, deploy_problems
from cluster.secrets import AwsSecret, SecretsFolder, SecretStore, SecretsUnavailable
from cluster.spec import AwsDeploy, ClusterSpec, KubernetesDeploy, Region, load_spec, parse_spec, section_of


def deploy(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec; its regions say where they run.")],
    region: Annotated[str | None, typer.Option(help="Only this region. Default: all that say where they run.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only show what would change.")] = False,
    render: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Only write the files, to FOLDER/REGION/. Reads no secret.")
    ] = None,
    down: Annotated[bool, typer.Option("--down", help="End the cells, and Ray on their machines.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Deploy the spec that was whole before the last deployment.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Apply without asking.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also print the files of a new cell.")] = False,
) -> None:
    """Bring a spec's cells up on your machines, EC2 or Kubernetes, change them, or end them. Repeating it changes
    nothing."""
    if sum((diff, down, render is not None)) > 1 or (rollback and (down or render is not None)):
        fail("--diff, --render, --down: allowed: one of them; --rollback: alone or with --diff", code=2)
    cluster, unplaced = _load(spec)
    regions = _chosen(cluster, region)
    if problems := [line for one in regions for line in deploy_problems(unplaced, unplaced.region(one.name))]:
        fail("\n  ".join(["the spec cannot be deployed:", *problems]), code=2)
    if render is not None:
        for one in regions:
            write_files(render / one.name, rendering_of(cluster, unplaced, one).files)
            console.print(f"rendered: {escape(str(render / one.name))}")
        return
    failed = False
    for one in regions:
        try:
            if down:
                _end_region(cluster, one, asks=not yes)
            else:
                back = spec.resolve().parent if rollback else None
                _deploy_region(cluster, unplaced, one, only_diff=diff, asks=not yes, verbose=verbose, back=back)
        except (DeployError, SecretsUnavailable, OSError) as error:
            complain(f"region {one.name}: {error}", hint="repeat the command: it goes on where it stopped")
            failed = True
    if failed:
        raise typer.Exit(1)


def _load(path: Path) -> tuple[ClusterSpec, ClusterSpec]:
    """The spec, and the spec with its paths as they are written."""
    spec = load_spec(path)
    unplaced = parse_spec(path.read_text(encoding="utf-8"), str(path))
    if problems := scaling_problems(spec, read_costs=False):
        fail("; ".join(problems), code=2)
    return spec, unplaced


def _chosen(spec: ClusterSpec, name: str | None) -> list[Region]:
    try:
        regions = list(spec.regions) if name is None else [spec.region(name)]
    except ValueError as error:
        fail(str(error), code=2)
    if name is None:
        regions = [one for one in regions if one.deploy is not None]
    if not regions:
        fail("no region of the spec says where it runs; needed: regions.*.deploy (docs/deploy.md)", code=2)
    return regions


def _deploy_region(
    spec: ClusterSpec,
    unplaced: ClusterSpec,
    region: Region,
    *,
    only_diff: bool,
    asks: bool,
    verbose: bool,
    back: Path | None,
) -> None:
    """`back`: the folder of the spec, where the one before is to be deployed. Raises DeployError, SecretsUnavailable,
    OSError."""
    from deployments.deployed import keys_digest  # imports Ray, which takes seconds

    with _locked(spec, region) as state:
        target = _target(spec, region, state)
        applied = target.record.read()
        if back is not None:
            spec, unplaced = _as_it_was(applied, spec, region, back)
            region = spec.region(region.name)
            target = _target(spec, region, state)
        secrets = {tenant.name: tenant.keys for tenant in spec.tenants} | target.shared_secrets()
        estimates = estimates_of(spec, unplaced, region, applied.estimates)
        plan = plan_of(rendering_of(spec, unplaced, region, estimates), keys_digest(secrets), applied)
        _show(plan, verbose)
        for line in target.outlook(plan):
            console.print(f"  {escape(line)}")
        if only_diff:
            return
        if plan.is_nothing and target.is_up():
            console.print(f"region {region.name}: nothing to do; the cell has this spec.")
            return
        if plan.is_nothing:
            console.print(f"region {region.name}: the spec is applied, but the cell does not answer: applying it again")
        if asks and not _confirmed(region):
            console.print("Nothing was changed.")
            return
        with target.record.lock():
            if target.record.read() != applied:
                raise DeployError("another deployment has changed the cell meanwhile; nothing was changed: look again")
            target.apply(plan)
    console.print(f"[bold green]region {region.name}: ready[/]")


def _as_it_was(applied: Applied, spec: ClusterSpec, region: Region, folder: Path) -> tuple[ClusterSpec, ClusterSpec]:
    """The spec that was whole before, with the keys that its tenants have now. Raises DeployError."""
    if applied.way_back is None:
        raise DeployError("nothing was whole before; there is nothing to go back to")
    content = copy.deepcopy(applied.way_back)
    keys = {tenant.name: list(tenant.keys) for tenant in spec.tenants}
    for tenant in content.get("tenants", []):
        if tenant["name"] not in keys:
            raise DeployError(f"tenants.{tenant['name']}: the spec of before has it; its keys must be in this spec")
        tenant["keys"] = keys[tenant["name"]]
    source = f"the spec of {region.name} before"
    return section_of(ClusterSpec, content, source, folder), section_of(ClusterSpec, content, source)


def _end_region(spec: ClusterSpec, region: Region, *, asks: bool) -> None:
    """Raises DeployError, SecretsUnavailable, OSError."""
    with _locked(spec, region) as state:
        target = _target(spec, region, state)
        lock: AbstractContextManager[None]
        try:
            applied, lock = target.record.read(), target.record.lock()
        except DeployError as error:
            if not state.files.is_dir():
                raise
            complain(f"region {region.name}: {error}", hint="going on with what this machine deployed last")
            applied, lock = Applied(), contextlib.nullcontext()
        else:
            if applied == Applied():
                console.print(f"region {region.name}: nothing is deployed.")
                return
        if asks and not _confirmed(region, "End the cell of region"):
            console.print("Nothing was changed.")
            return
        with lock:
            target.down(applied)
    console.print(f"region {region.name}: down")


@contextmanager
def _locked(spec: ClusterSpec, region: Region) -> Iterator[DeployState]:
    """The state of the region's cell, for one command at a time. Raises DeployError."""
    state = DeployState(spec.cell_name(region))
    with state.lock() as is_ours:
        if not is_ours:
            raise DeployError(f"another `raylane deploy` of {spec.cell_name(region)!r} is running")
        yield state


def _show(plan: DeployPlan, verbose: bool) -> None:
    for line in plan.touched:
        console.print(f"  {escape(line)}")
    if plan.is_new and not verbose:
        files = plan.rendering.files
        console.print(f"  files: {', '.join(sorted(files))} ({len(plan.diffs)} lines; --verbose prints them)")
        return
    for line in plan.diffs:
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else None
        console.print(escape(line), style=style)


def _confirmed(region: Region, question: str = "Apply this to region") -> bool:
    if not sys.stdin.isatty():
        fail(f"region {region.name}: not applied; standard input is no terminal to ask at", hint="--yes", code=2)
    return typer.confirm(f"{question} {region.name}?")


def _target(spec: ClusterSpec, region: Region, state: DeployState) -> Hosts | Kubernetes:
    deploy = region.deploy
    assert deploy is not None
    if isinstance(deploy, KubernetesDeploy):
        return Kubernetes(spec, region, deploy, state)
    cell = spec.cell_name(region)
    store: SecretStore
    if deploy.secrets.kind == "aws":
        store = AwsSecret(deploy.secrets.name or default_secret(cell), aws_region(region))
    else:
        store = SecretsFolder(
            state.secrets if deploy.secrets.folder is None else Path(deploy.secrets.folder).expanduser()
        )
    if isinstance(deploy, AwsDeploy):
        return Hosts(spec, region, deploy, state, store, AwsRecord(cell, aws_region(region)))
    return Hosts(spec, region, deploy, state, store, HeadRecord(login(deploy, deploy.head), cell))
