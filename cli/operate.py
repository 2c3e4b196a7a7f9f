"""What an operator does to a running cluster: `raylane apply`, `hold`, `pin`, `release`, `controls`, `cordon`, `drain`, and `key`."""

import json
import secrets
from pathlib import Path
from typing import Annotated, Any

import requests
import typer
from rich.markup import escape

from cli.console import console, errors, fail, seconds_of, shown_span
from cli.gateway import Url, Why, base_url, no_answer, order, put, read, secret_of, show_orders
from cluster.spec import SpecError, load_spec
from deployments.gateway.tenants import digest_of


def apply(
    spec: Annotated[Path, typer.Argument(help="The changed cluster spec, YAML.")],
    url: Annotated[str | None, typer.Option(help="The gateway, as http://host:port; without it, the cluster on this machine.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what would change.")] = False,
) -> None:
    """Apply a changed spec to a running cluster, without a restart; says what changes first."""
    from autoscaling.from_spec import scaling_problems  # the other commands here need no scaling policies

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


Model = Annotated[str, typer.Argument(help="The model's name, as in the spec.")]
Replicas = Annotated[int, typer.Argument(min=0, help="How many replicas.")]
Span = Annotated[str, typer.Option("--for", help="For how long: 90s, 30m, 2h, 1d; at most 7d.")]


def hold(model: Model, replicas: Replicas, span: Span, why: Why = "", url: Url = None) -> None:
    """Keep at least so many replicas for a while, whatever the autoscaler wants; it may have more."""
    _control("hold", model, replicas, span, why, url)


def pin(model: Model, replicas: Replicas, span: Span, why: Why = "", url: Url = None) -> None:
    """Keep exactly so many replicas for a while, whatever the autoscaler wants."""
    _control("pin", model, replicas, span, why, url)


def release(model: Model, why: Why = "", url: Url = None) -> None:
    """End what holds or pins a model: its autoscaler decides again."""
    order(url, "/raylane/release", {"model": model, "why": why})
    console.print(f"Model {model!r} is neither held nor pinned.")


def controls(url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> None:
    """Show what is held, pinned and cordoned: until when, by whom, why."""
    base = base_url(url)
    try:
        response = read(base, "/raylane/controls", timeout_s=10)
        response.raise_for_status()
        answer = response.json()
    except (requests.RequestException, ValueError) as error:
        no_answer(base, error)
    if as_json:
        console.print_json(json.dumps(answer))
    else:
        show_orders(answer)


def _control(kind: str, model: str, replicas: int, span: str, why: str, url: str | None) -> None:
    try:
        for_s = seconds_of(span)
    except ValueError as error:
        fail(f"--for {error}", code=2)
    order(url, "/raylane/controls", {"model": model, "kind": kind, "replicas": replicas, "for_s": for_s, "why": why})
    what = "at least" if kind == "hold" else "exactly"
    console.print(f"Model {model!r} has {what} {replicas} replicas for {shown_span(for_s)}; `raylane release {model}` ends it.")


def cordon(
    replica: Annotated[str, typer.Argument(help="The replica's id, or its beginning or end (`raylane status` shows them).")],
    undo: Annotated[bool, typer.Option("--undo", help="Lift the cordon.")] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Keep new work off a replica; what it has goes on. Lasts until --undo, or the replica's end."""
    answer = order(url, "/raylane/cordon", {"replica": replica, "undo": undo, "why": why})
    name = escape(answer["replica"])
    if undo:
        console.print(f"{name} takes new work again.")
    else:
        console.print(f"{name} is cordoned: it finishes what it has. `raylane cordon {escape(replica)} --undo` lifts it.")


def drain(
    name: Annotated[str, typer.Argument(help="The replica's id (with --node or --spot: its node's), or its beginning or end.")],
    node: Annotated[bool, typer.Option("--node", help="Drain all replicas of a node.")] = False,
    spot: Annotated[bool, typer.Option("--spot", help="The node is to be taken away: as --node, and the reason is a spot notice.")] = False,
    why: Why = "",
    url: Url = None,
) -> None:
    """Drain a replica: it finishes what it has, takes nothing new, and Serve starts another. For good: there is no undo."""
    body: dict[str, Any] = {"node" if node or spot else "replica": name, "why": why, "reason": "spot_notice" if spot else "operator"}
    answer = order(url, "/raylane/drain", body)
    for replica_id in answer["draining"]:
        console.print(f"{escape(replica_id)} drains; Serve starts another in its place.")
    if not answer["audited"]:
        console.print("[yellow]note[/]: the directory did not answer, so this is not in the audit.")
    if answer["failed"]:
        fail("; ".join(f"{replica_id}: {error}" for replica_id, error in answer["failed"].items()), mend="raylane status")


_BYTES = 32


def key() -> None:
    """Make an API key: the key for the tenant (shown this once), and the digest for `tenants.keys` in the spec."""
    made = "rl-" + secrets.token_urlsafe(_BYTES)
    errors.print("The first line is the key: give it to the tenant, it is kept nowhere. The second goes into the spec, under tenants.keys.")
    typer.echo(made)
    typer.echo(digest_of(made))
