"""The cells of a cluster as a re-planner sees them: asked one beside the other, each with its secret."""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

from cli.gateway import error_message, known_secret, operator
from planning.replan import SiteBounds, SiteKey, SiteState

BOUNDS_PATH = "/raylane/bounds"
"""As `deployments/gateway/operators/bounds_page.py` has it."""
_ANSWER_S = 5.0


class CellError(Exception):
    """A cell did not answer as a cell; the message says how."""


class SecretRefused(CellError):
    """A cell does not know the secret."""


@dataclass(frozen=True, slots=True)
class ModelReading:
    """One model in one cell: the owner's epoch, what arrived since its start by (lane, class), its groups' states."""

    epoch: int
    flows: Mapping[tuple[str, str], int]
    groups: Mapping[str, SiteState]


@dataclass(slots=True)
class Cell:
    """One region's gateways at `url`. `readings`: the last one of each model, and when it was read (Unix time).
    `refused`: whether the last error was that of a wrong secret."""

    region: str
    url: str
    secret: str | None
    heard_s: float = 0.0
    error: str = ""
    refused: bool = False
    readings: dict[str, tuple[float, ModelReading]] = field(default_factory=dict)
    _session: requests.Session = field(default_factory=requests.Session)

    def look(self) -> None:
        """Reads the page; where that fails, `error` says why and the last readings stay."""
        self._session.trust_env = False  # a proxy of the environment is for other addresses
        try:
            models = self._ask("GET", None)["models"]
            now = time.time()
            for name, model in models.items():
                self.readings[name] = now, _reading(model)
            self.heard_s, self.error, self.refused = now, "", False
        except CellError as error:
            self.error, self.refused = str(error), isinstance(error, SecretRefused)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.refused = False
            self.error = f"{self.url}{BOUNDS_PATH}: not the page of a cell: {error!r}"

    def bound(self, bounds: Sequence[SiteBounds], for_s: float, why: str) -> None:
        """Orders the bounds for so many seconds. Raises CellError."""
        listed = [{"model": one.site.group, "floor": one.floor, "ceiling": one.ceiling} for one in bounds]
        self._ask("POST", {"bounds": listed, "for_s": for_s, "by": f"replan ({operator()})", "why": why})

    def _ask(self, method: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        headers = {} if self.secret is None else {"authorization": f"Bearer {self.secret}"}
        try:
            response = self._session.request(
                method, self.url + BOUNDS_PATH, json=body, headers=headers, timeout=_ANSWER_S
            )
            answer = response.json()
        except (requests.RequestException, ValueError) as error:
            raise CellError(f"{self.url} does not answer as a raylane gateway: {error}") from error
        if response.status_code == requests.codes.unauthorized:
            raise SecretRefused(f"{self.url} requires its cluster's secret; set {secret_variable(self.region)}")
        if response.status_code != requests.codes.ok:
            raise CellError(f"{self.url}: {error_message(answer) or f'HTTP {response.status_code}'}")
        if not isinstance(answer, dict):
            raise CellError(f"{self.url}{BOUNDS_PATH}: not the page of a cell")
        return answer


def _reading(model: Mapping[str, Any]) -> ModelReading:
    groups = {
        one["group"]: SiteState(
            int(one["applied"]), int(one["ready"]), None if one["room"] is None else int(one["room"])
        )
        for one in model["groups"]
    }
    flows = {(str(lane), str(traffic_class)): int(arrived) for lane, traffic_class, arrived in model["flows"]}
    return ModelReading(int(model["epoch"]), flows, groups)


def secret_variable(region: str) -> str:
    """The environment variable that has a region's secret; without it, RAYLANE_SECRET is for all."""
    return "RAYLANE_SECRET_" + "".join(letter if letter.isalnum() else "_" for letter in region).upper()


class Cells:
    """All of them, by region."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.by_region = {
            region: Cell(region, url, os.environ.get(secret_variable(region)) or known_secret(url))
            for region, url in urls.items()
        }

    def look(self) -> None:
        """Asks all of them at once."""
        with ThreadPoolExecutor(len(self.by_region)) as pool:
            list(pool.map(Cell.look, self.by_region.values()))

    def states(self, since_s: float) -> dict[SiteKey, SiteState]:
        """The state of each group that was heard of since then."""
        return {
            SiteKey(region, group): state
            for region, cell in self.by_region.items()
            for at_s, reading in cell.readings.values()
            if at_s >= since_s
            for group, state in reading.groups.items()
        }

    def bound(self, plan_of: Mapping[str, Sequence[SiteBounds]], for_s: float, why: str) -> dict[str, str]:
        """Orders each cell's bounds, all at once; by region, what went wrong."""

        def order(region: str) -> str:
            try:
                self.by_region[region].bound(plan_of[region], for_s, why)
            except CellError as error:
                return str(error)
            return ""

        regions = [region for region, bounds in plan_of.items() if bounds]
        if not regions:
            return {}
        with ThreadPoolExecutor(len(regions)) as pool:
            return {region: error for region, error in zip(regions, pool.map(order, regions), strict=True) if error}
