"""`raylane shadow report|promote|rollback MODEL`: a second law beside the active one: how it would have done, and to make it the active one."""

import json
from typing import Annotated, Any

import requests
import typer
import yaml
from rich.markup import escape
from rich.table import Table

from cli.console import console, fail
from cli.gateway import Url, Why, base_url, no_answer, order, read

shadow = typer.Typer(help="A second scaling law that runs beside the active one: compare, promote, take back.", no_args_is_help=True)
Model = Annotated[str, typer.Argument(help="The model's name, as in the spec.")]


@shadow.command()
def report(model: Model, url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Compare the active law and its shadow on the traffic since both run."""
    base = base_url(url)
    try:
        answer = read(base, "/raylane/status", timeout_s=10).json()
    except (requests.RequestException, ValueError) as error:
        no_answer(base, error)
    found = next((one for one in answer["models"] if one["name"] == model), None)
    if found is None:
        fail(f"model {model!r}: not served here; allowed: {', '.join(one['name'] for one in answer['models'])}", code=2)
    standing = (found["scaling"] or {}).get("shadow")
    if not standing:
        fail(f"model {model!r} has no shadow, or it has not decided yet", mend="autoscaling.shadow in the spec, and `raylane apply SPEC`")
    if as_json:
        console.print_json(json.dumps(standing))
    else:
        _show(model, standing)


@shadow.command()
def promote(model: Model, why: Why = "", url: Url = None) -> None:
    """Make the shadow the active law; the active one becomes the shadow. Taken back by itself where the SLO burns (autoscaling.rollback)."""
    _exchange(model, "promote", why, url)


@shadow.command()
def rollback(model: Model, why: Why = "", url: Url = None) -> None:
    """Take the last promotion back."""
    _exchange(model, "rollback", why, url)


def _exchange(model: str, kind: str, why: str, url: str | None) -> None:
    answer = order(url, "/raylane/shadow", {"model": model, "kind": kind, "why": why})
    console.print(f"Model {escape(repr(model))} now scales by law {escape(answer['active'])}; its shadow is {escape(answer['shadow'])}.")
    console.print("It is in force until the next `raylane apply`. In the spec's file it reads, at the model:")
    console.print(escape(yaml.safe_dump({"autoscaling": answer["autoscaling"]}, sort_keys=False)))


def _show(model: str, standing: dict[str, Any]) -> None:
    active, other = standing["active"], standing["shadow"]
    kept, missed = standing["kept"], standing["missed"]
    table = Table(title=f"model {model}: {_hours(standing['seconds'])} on the same traffic", title_justify="left", title_style="bold")
    for column in ("", f"active: {active['law']}", f"shadow: {other['law']}"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("replicas now", str(active["number"]), str(other["number"]))
    table.add_row("replica-hours", f"{active['replica_hours']:.2f}", f"{other['replica_hours']:.2f}")
    table.add_row("short of capacity (fluid model)", f"{active['short_s']:.0f} s", f"{other['short_s']:.0f} s")
    table.add_row("changes", str(active["changes"]), str(other["changes"]))
    table.add_row("flaps", str(active["flaps"]), str(other["flaps"]))
    console.print(table)
    console.print(f"They agreed {standing['agreement']:.1%} of the time.")
    if kept + missed:
        console.print(f"Under the active law {missed} of {kept + missed} promises were really missed ({missed / (kept + missed):.2%}).")
    capacity = standing["work_per_replica_s"]
    known = "unknown yet" if capacity is None else f"{capacity:,.0f} tokens of work a second and replica"
    console.print(f"The fluid model takes: capacity {known}, a start {standing['start_up_s']:.0f} s; unknown for {_hours(standing['unknown_s'])}.")
    console.print("It compares two laws on one stream and forecasts no latency (`docs/autoscaling.md`).")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
