"""Asks a running gateway over HTTP, with the cluster's secret, and gives it an operator's orders.

No proxy stands in between: one that the environment names would be asked for this machine's own loopback.
"""

import getpass
import json
import os
import time
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import requests
import typer
from rich.markup import escape
from rich.table import Table

from cli.console import console, fail, shown_span
from cli.run_dir import RunDir, known_clusters


def get(url: str, timeout_s: float, secret: str | None = None) -> requests.Response:
    """The answer to a GET that carries the cluster's secret, if one is given. Raises requests.RequestException."""
    with requests.Session() as session:
        session.trust_env = False
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        return session.get(url, headers=headers, timeout=timeout_s)


def read(base: str, path: str, timeout_s: float) -> requests.Response:
    """The answer of the gateway at `base` to a GET of one of its operators' pages; ends the command where it does not know our secret. Raises
    requests.RequestException."""
    response = get(base + path, timeout_s, known_secret(base))
    if response.status_code == requests.codes.unauthorized:
        _no_secret(base)
    return response


def put(url: str, body: str, params: Mapping[str, str], secret: str, timeout_s: float) -> requests.Response:
    """The answer to a PUT of JSON that carries the cluster's secret. Raises requests.RequestException."""
    with requests.Session() as session:
        session.trust_env = False
        headers = {"content-type": "application/json", "authorization": f"Bearer {secret}"}
        return session.put(url, data=body.encode(), params=dict(params), headers=headers, timeout=timeout_s)


def post(url: str, body: str, secret: str, timeout_s: float) -> requests.Response:
    """The answer to a POST of JSON that carries the cluster's secret. Raises requests.RequestException."""
    with requests.Session() as session:
        session.trust_env = False
        headers = {"content-type": "application/json", "authorization": f"Bearer {secret}"}
        return session.post(url, data=body.encode(), headers=headers, timeout=timeout_s)


def base_url(url: str | None) -> str:
    """The gateway's URL: the given one, else that of the one cluster on this machine."""
    if url is not None:
        return url.rstrip("/")
    states = known_clusters()
    if not states:
        fail("no cluster is up on this machine", mend="raylane up")
    if len(states) > 1:
        fail("several clusters are up; name one with --url: " + ", ".join(f"{state.name} at {state.url}" for state in states), code=2)
    return states[0].url.rstrip("/")


def no_answer(base: str, error: Exception) -> NoReturn:
    """Ends the command: nobody answers there, or not in a gateway's words. A cluster whose gateway died brings another up by itself."""
    up = next((state for state in known_clusters() if state.url.rstrip("/") == base), None)
    told = f"{base} does not answer as a raylane gateway: {error}"
    if up is None:
        fail(told, mend="raylane up")
    told = f"{told}. Cluster {up.name!r} is up (process {up.pid}): its gateway is starting, or starts again by itself"
    fail(told, mend=f"wait, and look again; why it went: {up.ray_temp_dir}/session_latest/logs/raylet.err")


def secret_of(base: str) -> str:
    """The cluster's secret: of the cluster on this machine that answers there, else from the environment's RAYLANE_SECRET; ends the command where
    there is none."""
    return known_secret(base) or _no_secret(base)


def known_secret(base: str) -> str | None:
    """As `secret_of`; None where there is none."""
    for state in known_clusters():
        if _place(state.url) == _place(base):
            return (RunDir(state.name).path / "secret").read_text()
    return os.environ.get("RAYLANE_SECRET")


def _place(url: str) -> tuple[str, int | None]:
    """Host and port; this machine's loopback under one name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "localhost" if host in ("127.0.0.1", "::1") else host, parts.port


def _no_secret(base: str) -> NoReturn:
    fail(f"the secret of the cluster at {base} is needed", mend="set RAYLANE_SECRET")


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


def show_orders(orders: dict[str, Any]) -> None:
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
