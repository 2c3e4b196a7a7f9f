"""`raylane shadow report|promote|rollback MODEL`: a second scaling policy beside the active one: how it would have
done, and to promote it."""

import json
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from cli.console import Table, console, fail
from cli.gateway import AsJson, Url, Why, ask, base_url, order

shadow = typer.Typer(
    help="Compare a second scaling policy with the active one; promote it, or roll back.", no_args_is_help=True
)
Model = Annotated[str, typer.Argument(help="The model's name, as in the spec; of a group: MODEL@GROUP.")]


@shadow.command()
def report(model: Model, url: Url = None, as_json: AsJson = False) -> None:
    """Compare the active policy with its shadow on the traffic since both have been running."""
    answer = ask(base_url(url), "/raylane/status")
    views = {key: one for part in answer["models"] for key, one in _views(part)}
    found = views.get(model)
    if found is None:
        fail(f"model {model!r}: not served here; allowed: {', '.join(views)}", code=2)
    standing = (found["scaling"] or {}).get("shadow")
    if not standing:
        fail(
            f"model {model!r} has no shadow policy, or the shadow has not decided yet",
            hint="autoscaling.shadow in the spec, and `raylane apply SPEC`",
        )
    if as_json:
        console.print_json(json.dumps(standing))
    else:
        _show(model, standing)


@shadow.command()
def promote(model: Model, why: Why = "", url: Url = None) -> None:
    """Make the shadow the active policy, and the active one the shadow. Rolls back by itself if the SLO is missed
    (autoscaling.rollback)."""
    _exchange(model, "promote", why, url)


@shadow.command()
def rollback(model: Model, why: Why = "", url: Url = None) -> None:
    """Undo the last promotion."""
    _exchange(model, "rollback", why, url)


def _exchange(model: str, kind: str, why: str, url: str | None) -> None:
    answer = order(url, "/raylane/shadow", {"model": model, "kind": kind, "why": why})
    console.print(
        f"Model {escape(repr(model))} now scales by policy {escape(answer['active'])}; its shadow is "
        f"{escape(answer['shadow'])}."
    )
    console.print("This lasts until the next `raylane apply`. To keep it, add this to the model in the spec:")
    console.print(escape(yaml.safe_dump({"autoscaling": answer["autoscaling"]}, sort_keys=False)))


def _views(model: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What scales by itself: the model, or each of its groups."""
    return [(one["model"], one) for one in model.get("groups", ())] or [(model["name"], model)]


def _show(model: str, standing: dict[str, Any]) -> None:
    active, other = standing["active"], standing["shadow"]
    met, missed = standing["met"], standing["missed"]
    table = Table(
        title=f"model {model}: {_hours(standing['seconds'])} on the same traffic",
        title_justify="left",
        title_style="bold",
    )
    for column in ("", f"active: {active['policy']}", f"shadow: {other['policy']}"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("replicas now", str(active["number"]), str(other["number"]))
    table.add_row("replica-hours", f"{active['replica_hours']:.2f}", f"{other['replica_hours']:.2f}")
    table.add_row("short of capacity (fluid model)", f"{active['short_s']:.0f} s", f"{other['short_s']:.0f} s")
    table.add_row("changes", str(active["changes"]), str(other["changes"]))
    table.add_row("flaps", str(active["flaps"]), str(other["flaps"]))
    console.print(table)
    console.print(f"They agreed {standing['agreement']:.1%} of the time.")
    if met + missed:
        console.print(
            f"Under the active policy {missed} of {met + missed} requests missed their SLO "
            f"({missed / (met + missed):.2%})."
        )
    capacity = standing["work_per_replica_s"]
    known = "not known yet" if capacity is None else f"{capacity:,.0f} tokens of work per second and replica"
    console.print(
        f"Fluid model: capacity {known}, start-up {standing['start_up_s']:.0f} s; capacity unknown for "
        f"{_hours(standing['unknown_s'])}."
    )
    console.print("The model compares two policies on one stream; it predicts no latency (`docs/autoscaling.md`).")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
