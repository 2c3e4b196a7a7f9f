"""API keys, the classes that they may claim, and limits of a tenant's own: who gets in, who gets 401, 403 or 429."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.entrance import digest_of
from deployments.gateway.placed import turned_away
from deployments.scheduling import Admission, AdmissionKind, RejectCause
from tests.deployments.gateway.fake_engine import good, waiting
from tests.deployments.gateway.rig import ASK, MakeRig, Rig, until

TENANTS: list[dict[str, Any]] = [
    {"name": "team-a", "keys": [digest_of("key-a"), digest_of("key-a2")], "classes": ["batch"], "max_concurrency": 2},
    {"name": "team-b", "keys": [digest_of("key-b")], "requests_per_minute": 2},
]


async def ask(rig: Rig, key: str | None, **headers: str) -> tuple[int, dict[str, Any], Any]:
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    status, payload, answered = await rig.answered(headers=headers)
    return status, json.loads(payload).get("error", {}), answered


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(tenants=TENANTS)


@pytest.mark.parametrize("key", [None, "", "key-c", "key-a ", "KEY-A", "key-\xe9"])
async def test_a_wrong_key_is_refused_before_the_body_is_read(rig: Rig, key: str | None) -> None:
    status, error, headers = await ask(rig, key)
    if key == "key-a ":  # HTTP strips it
        assert status == 200
        return
    assert (status, error["code"], headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert key in (None, "") or key not in error["message"]
    assert rig.engines[0].seen == []


async def test_each_key_of_a_tenant_works_and_never_reaches_an_engine(rig: Rig) -> None:
    for key in ("key-a", "key-a2", "key-b"):
        assert (await ask(rig, key))[0] == 200
    await rig.last(3)
    assert [ledger.tenant for ledger in rig.closed] == ["team-a", "team-a", "team-b"]
    assert [ledger.traffic_class for ledger in rig.closed] == ["batch", "batch", "interactive"]
    assert not any("key-" in value for seen in rig.engines[0].seen for value in seen.headers.values())


async def test_a_class_that_a_key_may_not_claim(rig: Rig) -> None:
    status, error, _ = await ask(rig, "key-a", **{"x-raylane-class": "interactive"})
    assert (status, error["code"], error["param"]) == (403, "class_not_allowed", "X-Raylane-Class")
    status, error, _ = await ask(rig, "key-b", **{"x-raylane-class": "nonsense"})
    assert (status, error["code"]) == (400, "invalid_value")
    assert "interactive, completion, batch" in error["message"]


@pytest.mark.parametrize(
    ("key", "tier", "header", "name"),
    [
        ("key-b", "flex", None, "batch"),
        ("key-b", "priority", None, "completion"),
        ("key-a", "priority", None, "batch"),
        ("key-b", "flex", "completion", "completion"),
        ("key-b", "auto", None, "interactive"),
        ("key-b", None, None, "interactive"),
        ("key-b", 7, None, "interactive"),
    ],
)
async def test_a_service_tier_chooses_a_class_that_the_tenant_may_claim(
    rig: Rig, key: str, tier: Any, header: str | None, name: str
) -> None:
    tiers = {"flex": "batch", "priority": "completion"}
    rig.service.configure(rig.service.spec.model_copy(update={"service_tiers": tiers}))
    headers = {"authorization": f"Bearer {key}"} | ({"x-raylane-class": header} if header else {})
    assert (await rig.ask({**ASK, "service_tier": tier}, headers=headers))[0] == 200
    await rig.last(1)
    assert rig.closed[0].traffic_class == name


async def test_limits_of_its_own_are_429_with_the_time_to_wait(rig: Rig) -> None:
    assert [(await ask(rig, "key-b"))[0] for _ in range(2)] == [200, 200]
    status, error, headers = await ask(rig, "key-b")
    assert (status, error["code"], error["type"]) == (429, "request_limit_exceeded", "rate_limit_error")
    assert 25 <= int(headers["retry-after"]) <= 34
    assert (await ask(rig, "key-a"))[0] == 200


@given(st.sampled_from([cause for cause in RejectCause if cause is not RejectCause.CONTEXT]), st.floats(0, 3_600))
def test_no_client_is_told_to_come_back_too_early(cause: RejectCause, wait_s: float) -> None:
    """A header has whole seconds."""
    error = turned_away("demo", "team-a", Admission(AdmissionKind.REJECT, "short", cause, retry_after_s=wait_s))
    assert wait_s <= int(error.headers["retry-after"]) < max(wait_s, 1.0) + 1


async def test_requests_at_once_are_counted_until_they_end(rig: Rig) -> None:
    rig.engines[0].behave = waiting(asyncio.Event())
    tasks = [asyncio.create_task(ask(rig, "key-a")) for _ in range(2)]
    await until(lambda: rig.engines[0].open == 2)
    status, error, _ = await ask(rig, "key-a")
    assert (status, error["code"]) == (429, "concurrency_limit_exceeded")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: rig.owner.scheduler.limits.at_once("team-a") == 0)
    rig.engines[0].behave = good
    assert (await ask(rig, "key-a"))[0] == 200
