"""The cell as the autoscaler of one model sees it: the directory through Ray, the owner's state through HTTP.

Nothing waits long: a call that is always open listens to the directory, and the owner has a second to answer. Facts
that cannot be had now are reported as missing; earlier ones stay valid as long as their age allows (`Bounds.stale_s`).
"""

import logging
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import ray
import requests

from autoscaling.serve.room import Node
from cluster.node_labels import POOL
from cluster.spec import model_of
from deployments.cell.departure_tracker import own_presence
from deployments.cell.directory import find_directory
from deployments.cell.listing import Listing
from deployments.cell.scaling_facts import SCALING_PATH, ScalingFacts, read_scaling_facts
from deployments.cell.scaling_state import ScalingState

log = logging.getLogger("raylane.scaling")

_TIMEOUT_S = 1.0
_WATCH_S = 30.0
_ANSWER_S = 5.0
_NODES_EVERY_S = 10.0
_SPEC_PATH = "/raylane/spec"
_SHADOW_PATH = "/raylane/shadow"


class CellClient:
    """`listing`: the directory's last report; `scaling_facts`: the owner's last report, `age_s` seconds ago. None
    before the first."""

    def __init__(self, model: str) -> None:
        self.listing: Listing | None = None
        self.scaling_facts: ScalingFacts | None = None
        self.nodes: tuple[Node, ...] = ()
        self._trouble = ""
        self._model = model_of(model)
        self._directory: Any = None
        self._watch: Any = None
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy stands between the cell's processes
        self._read_s = 0.0
        self._nodes_s = 0.0

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._read_s

    def look(self) -> None:
        """Reads what is new. Never raises: what fails is tried again next time."""
        try:
            self._listen()
            self._look_at_nodes()
        except Exception as error:  # any failure of Ray: its head may be away
            log.info("the directory does not answer: %r", error)
            self._directory = self._watch = None
        try:
            self._read()
            self._trouble = ""
        except (OSError, ValueError) as error:
            if not self._trouble:
                log.warning("the owner's state of model %s cannot be read: %s", self._model, error)
            self._trouble = str(error)

    def publish(self, state: ScalingState) -> None:
        """Reports a decision to the directory, without waiting for an answer."""
        if self._directory is not None:
            try:
                self._directory.scaling.remote(state, own_presence())
            except Exception as error:  # any failure of Ray
                log.info("a decision could not be reported to the directory: %r", error)

    def spec(self) -> bytes:
        """The whole spec in force, from the owner. Raises OSError."""
        return self._ask(_SPEC_PATH)

    def roll_back(self, why: str) -> None:
        """Rolls the model's last promotion back in the spec, for the whole cell. Raises OSError."""
        order = {"model": self._model, "kind": "rollback", "by": "autoscaler", "why": why, "force": True}
        self._ask(_SHADOW_PATH, order)

    def close(self) -> None:
        self._session.close()

    def _listen(self) -> None:
        if not ray.is_initialized():  # Ray would start a cluster of its own
            raise RuntimeError("this process is not in a Ray cluster")
        if self._directory is None:
            self._directory = find_directory()
            secret = ray.get(self._directory.secret.remote(), timeout=_ANSWER_S)
            self._session.headers["authorization"] = f"Bearer {secret}"
        patience_s = _ANSWER_S if self.listing is None else 0.0
        while True:
            if self._watch is None:
                self._watch = self._directory.watch.remote(
                    -1 if self.listing is None else self.listing.version, _WATCH_S
                )
            ready, _ = ray.wait([self._watch], timeout=patience_s)
            if not ready:
                return
            self._watch, patience_s = None, 0.0
            self.listing = ray.get(ready[0], timeout=_ANSWER_S)

    def _look_at_nodes(self) -> None:
        if time.monotonic() >= self._nodes_s:
            self._nodes_s = time.monotonic() + _NODES_EVERY_S
            self.nodes = tuple(_alive(ray.nodes()))

    def _read(self) -> None:
        began_s = time.monotonic()
        self.scaling_facts = read_scaling_facts(self._ask(f"{SCALING_PATH}/{quote(self._model)}"))
        self._read_s = began_s

    def _ask(self, path: str, order: object = None) -> bytes:
        """The owner's answer to a GET, or to a POST of that order, over a connection that is kept. Raises OSError where
        there is none in a second, or it is no 200."""
        owners = () if self.listing is None else self.listing.owners
        url = next((ownership.url for ownership in owners if ownership.model == self._model), None)
        if url is None:
            raise OSError(f"no gateway owns model {self._model!r}")
        method = "GET" if order is None else "POST"
        answer = self._session.request(method, url + path, json=order, timeout=_TIMEOUT_S, allow_redirects=False)
        if answer.status_code != 200:
            raise OSError(f"{url}{path}: HTTP {answer.status_code}: {answer.content[:200]!r}")
        return answer.content


def _alive(nodes: Iterable[dict[str, Any]]) -> Iterable[Node]:
    return (Node(node["NodeID"], node["Resources"], node["Labels"].get(POOL)) for node in nodes if node.get("Alive"))
