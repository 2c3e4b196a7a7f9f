"""`raylane apply SPEC`: changes lanes, classes, scheduling, tenants, limits and time-outs of a running cluster; nothing restarts."""

from pathlib import Path
from typing import Annotated, Any

import requests
import typer
from rich.markup import escape

from autoscaling.from_spec import scaling_problems
from cli.console import console, fail
from cli.local_http import base_url, no_answer, put, secret_of
from cluster.spec import SpecError, load_spec


def apply(
    spec: Annotated[Path, typer.Argument(help="The changed cluster spec, YAML.")],
    url: Annotated[str | None, typer.Option(help="The gateway, as http://host:port; without it, the cluster on this machine.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what would change.")] = False,
) -> None:
    """Apply a changed spec to a running cluster, without a restart; says what changes first."""
    base = base_url(url)
    try:
        wanted = load_spec(spec)
    except SpecError as error:
        fail(f"{error.source} is not a usable spec:\n  " + "\n  ".join(error.problems), code=2)
    if problems := scaling_problems(wanted):
        fail("; ".join(problems), code=2)
    try:
        response = put(f"{base}/raylane/spec", wanted.model_dump_json(), {"dry_run": "1"} if check else {}, secret_of(base), timeout_s=10)
        answer: dict[str, Any] = response.json()
    except (requests.RequestException, ValueError) as error:
        no_answer(base, error)
    if response.status_code != 200:
        fail(answer.get("error", {}).get("message", f"HTTP {response.status_code}"))
    changes = answer["changes"]
    if not changes:
        console.print("Nothing differs from what runs.")
        return
    for change in changes:
        console.print(f"  {escape(change['key'])}: {escape(str(change['from']))} -> {escape(str(change['to']))}")
    console.print(f"{len(changes)} change(s) {'would be ' if check else ''}in force; nothing restarts.")
