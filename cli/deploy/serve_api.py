"""The REST API of Ray's head: Serve's applications, and the cluster's nodes."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import requests

from cli.console import console

_ANSWER_S = 30.0
_POLL_S = 1.0
_TRIES = 3
"""Replicas that do not start, until a change is given up."""
_APPLICATIONS = "/api/serve/applications/"


class DeployError(RuntimeError):
    """A step failed; the message says which and why. The next deployment goes on from here."""


class ServeApi:
    """Serve's REST API at a URL. Every method but `answers` raises DeployError."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.headers["authorization"] = f"Bearer {token}"

    def answers(self) -> bool:
        try:
            return self._session.get(f"{self._url}/api/version", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def names(self) -> set[str]:
        return set(self.applications())

    def applications(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET").json()["applications"]
        return found

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's living nodes, by its state API."""
        found = self._ask("GET", path="/api/v0/nodes?limit=10000&detail=1").json()["data"]["result"]["result"]
        return [one for one in found if one["state"] == "ALIVE"]

    def workers(self) -> set[str]:
        """The addresses of the nodes but the head."""
        return {str(one["node_ip"]) for one in self.nodes() if not one["is_head_node"]}

    def put(self, config: Mapping[str, Any]) -> None:
        """Serve keeps what is as it was, and removes the applications that are not in the configuration."""
        self._ask("PUT", config)

    def wait_running(self, names: set[str], patience_s: float) -> None:
        """Until all of them run. Where replicas serve, others that do not start are a change that cannot: Serve would
        try for ever."""
        deadline, shown = time.monotonic() + patience_s, ""
        starting: dict[str, set[str]] = {}
        failures: Counter[str] = Counter()
        while True:
            found = self.applications()
            states = {name: str(found.get(name, {}).get("status", "missing")) for name in sorted(names)}
            for name in states:
                replicas = _replicas(found.get(name, {}))
                failures[name] += len(starting.get(name, set()) - replicas.keys())
                starting[name] = {one for one, state in replicas.items() if state == "STARTING"}
                if failures[name] >= _TRIES and "RUNNING" in replicas.values():
                    states[name] = "DEPLOY_FAILED"
            if failed := [name for name, status in states.items() if status in ("DEPLOY_FAILED", "UNHEALTHY")]:
                raise DeployError(
                    f"application {failed[0]!r} cannot run: {_why(found[failed[0]])}\nWhat ran before goes on; "
                    "`raylane deploy SPEC --rollback` goes back to the last spec that was whole"
                )
            if set(states.values()) == {"RUNNING"}:
                return
            line = ", ".join(f"{name}: {status.lower()}" for name, status in states.items())
            if line != shown:
                console.print(f"  {line}")
                shown = line
            if time.monotonic() > deadline:
                raise DeployError(f"not ready after {patience_s:.0f} s: {line}")
            time.sleep(_POLL_S)

    def wait_gone(self, patience_s: float) -> None:
        """Until there are no applications, or for so long."""
        deadline = time.monotonic() + patience_s
        while self.applications() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _ask(self, method: str, body: Mapping[str, Any] | None = None, path: str = _APPLICATIONS) -> requests.Response:
        try:
            answer = self._session.request(method, self._url + path, json=body, timeout=_ANSWER_S)
        except requests.RequestException as error:
            raise DeployError(f"the REST API of Ray's head: {error}") from error
        if answer.status_code != 200:
            raise DeployError(f"the REST API of Ray's head answered {answer.status_code}: {answer.text[:500]}")
        return answer


def _replicas(application: Mapping[str, Any]) -> dict[str, str]:
    """The states of an application's replicas."""
    deployments = application.get("deployments", {}).values()
    return {one["replica_id"]: one["state"] for deployment in deployments for one in deployment.get("replicas", ())}


def _why(application: Mapping[str, Any]) -> str:
    messages = [application["message"], *(one.get("message", "") for one in application["deployments"].values())]
    lines = [line.strip() for message in messages for line in str(message).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
