"""Replicas that follow the load, on the real stack: Serve's controller, the owner's books, simulated engines that eight
requests fill."""

import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil
import pytest
import requests

from tests.autoscaling.setups import replayed
from tests.live.cluster import LiveCluster, eventually
from tests.live.scaling import apply, burst, last_pair, logs, metric, names, ready, records, scaling, zero_and_back
from tests.smoke.simulated.conftest import SMALL as MODEL

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("vllm_meanwhile")]

LONG: dict[str, Any] = {"model": MODEL, "prompt": "one two three", "max_tokens": 60}
REQUESTS_PER_S = 5.3
"""Of them, that a full replica answers at most: eight in the 60 steps of 25 ms that they take."""


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield session


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_burst_is_decided_on_as_soon_as_it_is_seen_and_nothing_is_lost_up_and_down(
    scaled: LiveCluster, session: aiohttp.ClientSession, replicas: int
) -> None:
    reported: list[str] = []
    await burst(scaled, session, REQUESTS_PER_S, replicas, reported, **LONG)
    print(*reported)


def test_decisions_are_on_metrics_and_in_the_log_with_their_reasons(scaled: LiveCluster) -> None:
    found = metric(scaled, "raylane_scaling_decisions_total")
    counted = {labels: number for labels, number in found.items() if f'model="{MODEL}"' in labels}
    reasons = {one.decision.reason for one in records(scaled) if one.decision.limit is None}
    reported = {labels.split('reason="')[1].split('"')[0] for labels in counted}
    assert {"consolidate", "backlog"} & reasons <= reported
    assert sum(counted.values()) > 20

    def shown() -> set[float]:
        states = metric(scaled, "raylane_replicas")
        return {states[f'{{model="{MODEL}",state="{state}"}}'] for state in ("requested", "applied", "ready")}

    eventually(lambda: shown() == {1.0})  # each of the two gateways shows what it has heard so far


def test_operators_and_a_changed_spec_are_followed_live(scaled: LiveCluster) -> None:
    scaled.done("pin", MODEL, "2", "--for", "10m", "--why", "a test")
    eventually(lambda: scaling(scaled)["reason"] == "pinned" and ready(scaled) == 2)
    both = names(scaled)
    apply(scaled, replicas={"min": 2, "count": 2})
    eventually(lambda: last_pair(scaled).scaler.bounds.minimum == 2)
    scaled.done("release", MODEL)
    eventually(lambda: scaling(scaled)["reason"] == "min_replicas")
    assert names(scaled) == both, "no engine restarts for a changed setting"
    apply(scaled, replicas={"min": 1, "count": 1})
    eventually(lambda: scaling(scaled)["requested"] == 1 and ready(scaled) == 1)
    assert names(scaled) < both, "nor for another one; which of them goes is Serve's choice"


def test_a_shadow_is_reported_promoted_and_taken_back(scaled: LiveCluster) -> None:
    eventually(lambda: bool(scaling(scaled).get("shadow")))
    assert "replica-hours" in scaled.done("shadow", "report", MODEL)
    for command, active in (("promote", "fixed"), ("rollback", "backlog")):
        assert f"now scales by policy {active}" in scaled.done("shadow", command, MODEL, "--why", "a test")
        eventually(lambda active=active: last_pair(scaled).choice.name == active)  # type: ignore[misc]
    orders = json.loads(scaled.done("explain", "--orders", "--json"))
    assert [one["kind"] for one in orders[-2:]] == ["promote", "rollback"]


def test_to_zero_and_back_the_first_request_is_answered(scaled: LiveCluster) -> None:
    zero_and_back(scaled, **LONG)


def test_a_restarted_controller_goes_on(scaled: LiveCluster) -> None:
    apply(scaled, replicas={"min": 1, "count": 1})
    eventually(lambda: ready(scaled) == 1)
    before = len(logs(scaled))
    (controller,) = [process for process in scaled.family() if "ServeController" in " ".join(process.cmdline())]
    controller.send_signal(signal.SIGKILL)
    psutil.wait_procs([controller], timeout=30)
    eventually(lambda: len(logs(scaled)) == before + 1)
    eventually(lambda: scaling(scaled)["requested"] == 1 and not scaling(scaled)["alarms"])
    learned = last_pair(scaled).scaler.policy
    assert learned.capacity.per_s is not None  # type: ignore[attr-defined]
    assert requests.post(scaled.url + "/v1/completions", json={**LONG, "max_tokens": 5}, timeout=120).status_code == 200


def test_the_log_replays_exactly_and_is_explained(scaled: LiveCluster) -> None:
    files = logs(scaled)
    found = replayed(files)
    assert found.difference is None
    assert found.counted >= 4
    explained = scaled.done("explain", MODEL, "--last", "20", "--log", str(files[0]), "--log", str(files[1]))
    assert "why: " in explained
    assert "otherwise: with " in explained
    assert len(json.loads(scaled.done("explain", MODEL, "--last", "3", "--json"))) == 3
    assert "every decision is the same as recorded" in scaled.done("replay", str(files[0]))
