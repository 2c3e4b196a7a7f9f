"""Asks a gateway over HTTP, and nobody in between: a proxy that the environment names would be asked for this machine's own loopback."""

import os
from collections.abc import Mapping
from typing import NoReturn
from urllib.parse import urlsplit

import requests

from cli.console import fail
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
