"""`raylane shadow report|promote|rollback MODEL`: a second scaling policy beside the active one: how it would have
done, and to promote it."""

import typer
import yaml
from rich.markup import escape

from autoscaling.shadow.contest import ShadowStanding
from cli.console import AsJson, console, fail, plain_table, print_json
from cli.gateway import ModelKey, Url, Why, base_url, cell_report, order
from deployments.wire import WireError, from_plain

shadow = typer.Typer(
    help="Compare a second scaling policy with the active one; promote it, or roll back.", no_args_is_help=True
)


@shadow.command()
def report(model: ModelKey, url: Url = None, as_json: AsJson = False) -> None:
    """Compare the active policy with its shadow on the traffic since both have been running."""
    base = base_url(url)
    scaled = {one.model: one for served in cell_report(base).models for one in served.scaled}
    if model not in scaled:
        fail(f"model {model!r}: not served here; allowed: {', '.join(scaled)}", code=2)
    state = scaled[model].scaling
    if state is None or not state.shadow:
        fail(
            f"model {model!r} has no shadow policy, or the shadow has not decided yet",
            hint="autoscaling.shadow in the spec, and `raylane apply SPEC`",
        )
    if as_json:
        print_json(state.shadow)
        return
    try:
        _show(model, from_plain(state.shadow, ShadowStanding))
    except WireError as error:
        fail(f"{base}: {error}")


@shadow.command()
def promote(model: ModelKey, why: Why = "", url: Url = None) -> None:
    """Make the shadow the active policy, and the active one the shadow. Rolls back by itself if the SLO is missed
    (autoscaling.rollback)."""
    _exchange(model, "promote", why, url)


@shadow.command()
def rollback(model: ModelKey, why: Why = "", url: Url = None) -> None:
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


def _show(model: str, standing: ShadowStanding) -> None:
    active, other = standing.active, standing.shadow
    title = f"model {model}: {_hours(standing.seconds)} on the same traffic"
    table = plain_table("", f"active: {active.policy}", f"shadow: {other.policy}", left=1, title=title)
    table.add_row("replicas now", str(active.number), str(other.number))
    table.add_row("replica-hours", f"{active.replica_hours:.2f}", f"{other.replica_hours:.2f}")
    table.add_row("short of capacity (fluid model)", f"{active.short_s:.0f} s", f"{other.short_s:.0f} s")
    table.add_row("changes", str(active.changes), str(other.changes))
    table.add_row("flaps", str(active.flaps), str(other.flaps))
    console.print(table)
    console.print(f"They agreed {standing.agreement:.1%} of the time.")
    if answered := standing.met + standing.missed:
        console.print(
            f"Under the active policy {standing.missed} of {answered} requests missed their SLO "
            f"({standing.missed / answered:.2%})."
        )
    capacity = standing.work_per_replica_s
    known = "not known yet" if capacity is None else f"{capacity:,.0f} tokens of work per second and replica"
    console.print(
        f"Fluid model: capacity {known}, start-up {standing.start_up_s:.0f} s; capacity unknown for "
        f"{_hours(standing.unknown_s)}."
    )
    console.print("The model compares two policies on one stream; it predicts no latency (`docs/autoscaling.md`).")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
