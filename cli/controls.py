"""`raylane hold`, `pin`, `release`, `controls`: an operator's word on the number of a model's replicas, and all that is in force."""

import json
from typing import Annotated

import requests
import typer

from cli.console import console, fail
from cli.duration import seconds_of, shown_span
from cli.local_http import base_url, no_answer, read
from cli.order import Url, Why, order, show

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
        show(answer)


def _control(kind: str, model: str, replicas: int, span: str, why: str, url: str | None) -> None:
    try:
        for_s = seconds_of(span)
    except ValueError as error:
        fail(f"--for {error}", code=2)
    order(url, "/raylane/controls", {"model": model, "kind": kind, "replicas": replicas, "for_s": for_s, "why": why})
    what = "at least" if kind == "hold" else "exactly"
    console.print(f"Model {model!r} has {what} {replicas} replicas for {shown_span(for_s)}; `raylane release {model}` ends it.")
