"""Asks a running gateway over HTTP, with the cluster's secret, and sends it an operator's orders.

Proxies of the environment are ignored: such a proxy would be asked for this machine's own loopback address.
"""

import getpass
import json
import os
import socket
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import requests
import typer
from rich.markup import escape

from cli.console import console, fail
from cli.run_dir import RunDir, State, checked_secret, known_clusters, read_secret
from deployments.gateway.operators.report import STATUS_PATH, CellReport
from deployments.wire import WireError, from_plain

Url = Annotated[
    str | None, typer.Option(help="The gateway, as http://HOST:PORT. Default: the cluster on this machine.")
]
Why = Annotated[str, typer.Option(help="The reason, for the audit log.")]
ModelKey = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model's name, as in the spec; of a group: MODEL@GROUP.")
]
AnswerT = TypeVar("AnswerT")

_ALIVE_S = 2.0
"""How long one of several gateways may take to say that it lives (seconds)."""


def get(url: str, timeout_s: float, secret: str | None = None) -> requests.Response:
    """The response to a GET. Raises requests.RequestException."""
    return _send("GET", url, timeout_s, secret)


def ask(base: str, path: str, kind: type[AnswerT], timeout_s: float = 10.0) -> AnswerT:
    """What one of the operators' pages of the gateway at `base` answers. Ends the command on any error."""
    answer = _answer("GET", base, path, timeout_s, known_secret(base))
    try:
        return from_plain(answer, kind)
    except WireError as error:
        _no_answer(base, error)


def cell_report(base: str) -> CellReport:
    """The report of the cell whose gateway is at `base`. Ends the command on any error."""
    return ask(base, STATUS_PATH, CellReport, timeout_s=5)


def order(url: str | None, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Sends an order of this operator; returns the gateway's answer. Ends the command on any error."""
    base = base_url(url)
    answer = _answer("POST", base, path, 15, _secret_of(base), json.dumps({**body, "by": operator()}))
    if "note" in answer:
        console.print(f"[yellow]note[/]: {escape(answer['note'])}")
    return answer


def page_link(base: str) -> str:
    """A link that opens the cell's page in a browser: once, within a minute. Ends the command on any error."""
    code = _answer("POST", base, "/raylane/codes", 10, _secret_of(base))["code"]
    return f"{base}/raylane/#code={code}"


def send_spec(url: str | None, spec: str, dry_run: bool) -> dict[str, Any]:
    """Sends a spec (JSON) to be applied; returns the gateway's answer. Ends the command on any error."""
    base = base_url(url)
    return _answer("PUT", base, "/raylane/spec" + ("?dry_run=1" if dry_run else ""), 10, _secret_of(base), spec)


def operator() -> str:
    """The name of this machine's user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"uid {os.getuid()}"


def base_url(url: str | None) -> str:
    """The gateway's URL: the given one, else that of the only cluster on this machine."""
    if url is not None:
        return url.rstrip("/")
    states = known_clusters()
    if not states:
        fail("no cluster is up on this machine", hint="raylane up")
    if len(states) > 1:
        fail(
            "several clusters are up; name one with --url: "
            + ", ".join(f"{state.name} at {' '.join(RunDir(state.name).urls())}" for state in states),
            code=2,
        )
    urls = RunDir(states[0].name).urls()
    if not urls:
        fail(f"no gateway of cluster {states[0].name!r} has registered yet", hint="try again in a few seconds")
    return next((url for url in urls[:-1] if _answers(url)), urls[-1])


def port_problem(host: str, port: int) -> str:
    """Why no gateway can listen there on this machine; empty: one can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def known_secret(base: str) -> str | None:
    """The secret of the cluster on this machine that answers at `base`, else the environment's RAYLANE_SECRET."""
    state = _cluster_at(base)
    if state is not None:
        return read_secret(RunDir(state.name).path / "secret")
    return checked_secret(os.environ.get("RAYLANE_SECRET", ""), "RAYLANE_SECRET") or None


def _cluster_at(base: str) -> State | None:
    """The cluster that was brought up on this machine and has a gateway there."""
    for state in known_clusters():
        if any(_place(url) == _place(base) for url in RunDir(state.name).urls()):
            return state
    return None


def _answers(url: str) -> bool:
    try:
        return _send("GET", url + "/health", _ALIVE_S, None).ok
    except requests.RequestException:
        return False


def _send(method: str, url: str, timeout_s: float, secret: str | None, body: str | None = None) -> requests.Response:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    if body is not None:
        headers["content-type"] = "application/json"
    with requests.Session() as session:
        session.trust_env = False
        return session.request(
            method, url, data=None if body is None else body.encode(), headers=headers, timeout=timeout_s
        )


def _answer(
    method: str, base: str, path: str, timeout_s: float, secret: str | None, body: str | None = None
) -> dict[str, Any]:
    try:
        response = _send(method, base + path, timeout_s, secret, body)
        if response.status_code == requests.codes.unauthorized:
            _no_secret(base)
        answer = response.json()
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
        if response.status_code != requests.codes.ok and "error" not in answer:
            response.raise_for_status()
    except (requests.RequestException, ValueError) as error:
        _no_answer(base, error)
    if response.status_code != requests.codes.ok:
        fail(error_message(answer) or f"HTTP {response.status_code}")
    return answer


def error_message(answer: Any) -> str:
    """What the page of an error says: a gateway's, or that of a load balancer before it; empty: nothing that is
    known."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else error if isinstance(error, str) else ""


def _no_answer(base: str, error: Exception) -> NoReturn:
    """A cluster whose gateway died starts another by itself."""
    up = _cluster_at(base)
    problem = f"{base} does not answer as a raylane gateway: {error}"
    if up is None:
        fail(problem, hint="raylane up")
    if up.address:
        fail(f"{problem}. Cluster {up.name!r} was deployed on Ray at {up.address}", hint="ray status; raylane up again")
    problem = f"{problem}. Cluster {up.name!r} is up (process {up.pid}): its gateway is starting or restarting"
    fail(problem, hint=f"try again in a few seconds; the reason is in {up.ray_temp_dir}/session_latest/logs/raylet.err")


def _secret_of(base: str) -> str:
    return known_secret(base) or _no_secret(base)


def _no_secret(base: str) -> NoReturn:
    fail(f"the gateway at {base} requires its cluster's secret", hint="set RAYLANE_SECRET")


def _place(url: str) -> tuple[str, int | None]:
    """Host and port; this machine's loopback under one name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "localhost" if host in ("127.0.0.1", "::1") else host, parts.port
