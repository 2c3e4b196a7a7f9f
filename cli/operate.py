"""What an operator does to a running cluster: `raylane apply`, `hold`, `pin`, `release`, `controls`, `cordon`, `drain`,
`ladder`, and `key`."""

import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from cli.console import AsJson, console, errors, fail, plain_table, print_json, seconds_of, show, shown_span
from cli.gateway import ModelKey, Url, Why, ask, base_url, cell_report, order, send_spec
from cli.status import ladder_line
from cluster.spec import load_spec
from deployments.cell.scaling_state import ScalingState
from deployments.ladder_stats import LadderMode

Replicas = Annotated[int, typer.Argument(min=0, help="The number of replicas.")]
Span = Annotated[str, typer.Option("--for", help="How long: 90s, 30m, 2h, 1d; at most 7d.")]
_KEY_BYTES = 32
UNSCHEDULABLE = "unschedulable"
"""The alarm of an autoscaler that cannot get what it wants (`autoscaling/serve/scaling.py`)."""
_FOLLOWED_S = 3.0
"""The autoscaler looks for orders once a second."""


def apply(
    spec: Annotated[Path, typer.Argument(help="The changed cluster spec, YAML.")],
    url: Url = None,
    check: Annotated[bool, typer.Option("--check", help="Only print what would change.")] = False,
) -> None:
    """Apply a changed spec to a running cluster. Nothing restarts."""
    from autoscaling.from_spec import scaling_problems  # the other commands here need no scaling policies

    desired = load_spec(spec)
    if problems := scaling_problems(desired):
        fail("; ".join(problems), code=2)
    changes = send_spec(url, desired.model_dump_json(), dry_run=check)["changes"]
    if not changes:
        console.print("The running cluster already has this spec.")
        return
    for change in changes:
        console.print(f"  {escape(change['key'])}: {escape(str(change['from']))} -> {escape(str(change['to']))}")
    console.print(f"{len(changes)} change(s) {'would apply' if check else 'applied'}; nothing restarts.")


def hold(model: ModelKey, replicas: Replicas, span: Span, why: Why = "", url: Url = None) -> None:
    """Keep at least this many replicas of a model for a while. The autoscaler may add more."""
    _control("hold", model, replicas, span, why, url)


def pin(model: ModelKey, replicas: Replicas, span: Span, why: Why = "", url: Url = None) -> None:
    """Keep exactly this many replicas of a model for a while."""
    _control("pin", model, replicas, span, why, url)


def release(model: ModelKey, why: Why = "", url: Url = None) -> None:
    """End a model's hold or pin. The autoscaler decides again."""
    ended = order(url, "/raylane/release", {"model": model, "why": why})["ended"]
    if not ended:
        console.print(f"Model {model!r} was neither held nor pinned; nothing has changed.")
    for one in ended:
        console.print(
            f"Ended: the {one['kind']} of model {model!r} at {one['replicas']} replicas by {escape(one['by'])}."
        )


def controls(url: Url = None, as_json: AsJson = False) -> None:
    """List holds, pins and cordons: until when, by whom, why."""
    answer = ask(base_url(url), "/raylane/controls", dict)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def cordon(
    replica: Annotated[str, typer.Argument(help="The replica's id, or the start or end of it (see `raylane status`).")],
    undo: Annotated[bool, typer.Option("--undo", help="Lift the cordon.")] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Send no new requests to a replica; running ones finish. Lasts until --undo, or until the replica ends."""
    answer = order(url, "/raylane/cordon", {"replica": replica, "undo": undo, "why": why})
    name = escape(answer["replica"])
    if undo:
        console.print(f"{name} takes new work again.")
    else:
        console.print(
            f"{name} is cordoned: it finishes its running requests. `raylane cordon {escape(replica)} --undo` lifts "
            "the cordon."
        )


def drain(
    name: Annotated[
        str, typer.Argument(help="The replica's id, or the start or end of it. With --node or --spot: the node's id.")
    ],
    node: Annotated[bool, typer.Option("--node", help="Drain all replicas of a node.")] = False,
    spot: Annotated[
        bool, typer.Option("--spot", help="Drain all replicas of a node that will be reclaimed (reason: spot notice).")
    ] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Drain a replica: it finishes its running requests, and Ray Serve starts another. There is no undo."""
    body: dict[str, Any] = {
        "node" if node or spot else "replica": name,
        "why": why,
        "reason": "spot_notice" if spot else "operator",
    }
    answer = order(url, "/raylane/drain", body)
    for replica_id in answer["draining"]:
        console.print(f"{escape(replica_id)} drains; Ray Serve starts another in its place.")
    if not answer["audited"]:
        console.print("[yellow]note[/]: the directory did not answer, so the audit log does not hold this order.")
    if answer["failed"]:
        fail(
            "; ".join(f"{replica_id}: {error}" for replica_id, error in answer["failed"].items()), hint="raylane status"
        )


def ladder(
    model: Annotated[str | None, typer.Argument(help="The model; without it, the ladders of all are shown.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Go exactly so far: a step's name, or none.")] = None,
    at_most: Annotated[str | None, typer.Option("--at-most", help="Go no further: a step's name, or none.")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Leave the ladder to itself again.")] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Show which steps of a model's ladder are in force, or say how far it goes."""
    given = {LadderMode.AT: at, LadderMode.AT_MOST: at_most, LadderMode.AUTO: "" if auto else None}
    orders = [(mode, step) for mode, step in given.items() if step is not None]
    if len(orders) > 1 or (orders and model is None):
        fail("--at, --at-most, --auto: allowed: one of them, with a model", code=2)
    for mode, step in orders:
        body = {"model": model, "mode": mode.value, "step": "" if step == "none" else step, "why": why}
        model = order(url, "/raylane/ladder", body)["model"]  # whose alias it may be
    shown = [one for one in cell_report(base_url(url)).models if model in (None, one.name)]
    for one in shown:
        console.print(f"[bold]{escape(one.name)}[/]: {ladder_line(one) or 'no ladder'}")
    if not shown:
        fail(f"model {model!r} is not served here")


def key() -> None:
    """Make an API key for a tenant, and the digest for `tenants.keys` in the spec."""
    from deployments.gateway.entrance import digest_of  # with it comes the web framework, which no other command needs

    made = "rl-" + secrets.token_urlsafe(_KEY_BYTES)
    errors.print(
        "First line: the key. Give it to the tenant; it is stored nowhere. Second line: its digest, for tenants.keys "
        "in the spec."
    )
    typer.echo(made)
    typer.echo(digest_of(made))


def _control(kind: str, model: str, replicas: int, span: str, why: str, url: str | None) -> None:
    try:
        for_s = seconds_of(span)
    except ValueError as error:
        fail(f"--for {error}", code=2)
    order(url, "/raylane/controls", {"model": model, "kind": kind, "replicas": replicas, "for_s": for_s, "why": why})
    what = "at least" if kind == "hold" else "exactly"
    order_words = f"Model {model!r} is to have {what} {replicas} replicas for {shown_span(for_s)}"
    ready, state = _followed(base_url(url), model, replicas)
    if state is not None and state.requested < replicas and UNSCHEDULABLE in state.alarms:
        fail(
            f"{order_words}, but there is room for {state.requested}: no GPU, quota or node for more. The {kind} "
            "stays in force",
            hint=f"raylane release {model}",
        )
    console.print(f"{order_words}; {ready} ready now. `raylane release {model}` ends it.")


def _followed(base: str, model: str, replicas: int) -> tuple[int, ScalingState | None]:
    """The ready replicas of a model or group, and its autoscaler's last decision: the one that follows an order for so
    many, where that comes soon."""
    deadline = time.monotonic() + _FOLLOWED_S
    while True:
        found = next(one for served in cell_report(base).models for one in served.scaled if one.model == model)
        state = found.scaling
        settled = state is not None and (state.requested >= replicas or UNSCHEDULABLE in state.alarms)
        if settled or time.monotonic() >= deadline:
            return found.ready, state
        time.sleep(0.2)


def _show(orders: dict[str, Any]) -> None:
    if orders["controls"]:
        table = plain_table("model", "by", "why", "what", "replicas", "time left", left=4, title="holds and pins")
        for one in orders["controls"]:
            left = shown_span(one["until_unix_s"] - time.time())
            table.add_row(one["model"], escape(one["by"]), escape(one["why"]), one["kind"], str(one["replicas"]), left)
        show(table)
    if orders["cordons"]:
        table = plain_table("replica", "by", "why", "since", left=3, title="cordons")
        for one in orders["cordons"]:
            since = shown_span(time.time() - one["at_unix_s"])
            table.add_row(*(escape(one[key]) for key in ("replica_id", "by", "why")), since)
        show(table)
    if orders["ladders"]:
        table = plain_table("model", "by", "why", "order", "since", left=4, title="ladders")
        for one in orders["ladders"]:
            since = shown_span(time.time() - one["at_unix_s"])
            word = {"at": "at", "at_most": "at most at"}[one["ladder"]["mode"]]
            step = one["ladder"]["step"] or "none"
            table.add_row(one["model"], escape(one["by"]), escape(one["why"]), f"{word} {step}", since)
        show(table)
    if not any(orders.values()):
        console.print("Nothing is held, pinned or cordoned, and all ladders are left to themselves.")
