"""Gives an operator's order to a running cluster, and says what is in force."""

import getpass
import json
import os
import time
from typing import Annotated, Any

import requests
import typer
from rich.markup import escape
from rich.table import Table

from cli.console import console, fail
from cli.duration import shown_span
from cli.local_http import base_url, no_answer, post, secret_of

Url = Annotated[str | None, typer.Option(help="The gateway, as http://host:port; without it, the cluster on this machine.")]
Why = Annotated[str, typer.Option(help="The reason, for those who read the audit.")]


def order(url: str | None, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The gateway's answer to an order of this operator, or the command's end with what is wrong."""
    base = base_url(url)
    try:
        response = post(base + path, json.dumps({**body, "by": operator()}), secret_of(base), timeout_s=15)
        answer: dict[str, Any] = response.json()
    except (requests.RequestException, ValueError) as error:
        no_answer(base, error)
    if response.status_code != 200:
        fail(answer.get("error", {}).get("message", f"HTTP {response.status_code}"))
    if "note" in answer:
        console.print(f"[yellow]note[/]: {escape(answer['note'])}")
    return answer


def operator() -> str:
    """Who gives it: the name of the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"uid {os.getuid()}"


def show(orders: dict[str, Any]) -> None:
    """What is in force, as tables; a line where there is nothing."""
    if orders["controls"]:
        table = Table(title="holds and pins", title_justify="left", title_style="bold", show_edge=False)
        for column in ("model", "what", "replicas", "for another", "by", "why"):
            table.add_column(column, justify="right" if column in ("replicas", "for another") else "left")
        for one in orders["controls"]:
            left = shown_span(one["until_unix_s"] - time.time())
            table.add_row(one["model"], one["kind"], str(one["replicas"]), left, escape(one["by"]), escape(one["why"]))
        console.print(table)
    if orders["cordons"]:
        table = Table(title="cordons", title_justify="left", title_style="bold", show_edge=False)
        for column in ("replica", "for", "by", "why"):
            table.add_column(column)
        for one in orders["cordons"]:
            table.add_row(escape(one["replica_id"]), shown_span(time.time() - one["at_unix_s"]), escape(one["by"]), escape(one["why"]))
        console.print(table)
    if not orders["controls"] and not orders["cordons"]:
        console.print("Nothing is held, pinned or cordoned.")
