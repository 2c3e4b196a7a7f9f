"""The runs that are recorded of the scheduler: how many replicas, which load, which policies, and what goes wrong how
often."""

from dataclasses import dataclass
from typing import Any

from tests.recorded.scheduler_adapter import Plain


@dataclass(frozen=True)
class Settings:
    """One run. Rates are a second; `load` is the share of the replicas' seats that arrivals would fill."""

    name: str
    inputs: int
    replicas: int = 4
    load: float = 0.8
    policies: tuple[Plain, ...] = ()
    seats: tuple[int, ...] = (16,)
    kv_tokens: tuple[int, ...] = (40_000,)
    step_tokens: int = 2_048
    bindings: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    tenants: tuple[str, ...] = ("",)
    tenant_weights: tuple[float, ...] = (1.0,)
    prompt_median: float = 600.0
    prompt_sigma: float = 1.2
    longest_prompt: int = 30_000
    patience_s: float = 60.0
    sessions: int = 0
    deadly: float = 0.0
    """Share of requests whose prompt kills the engine that runs it."""
    deaths: float = 0.0
    drains: float = 0.0
    silences: float = 0.0
    cordons: float = 0.0
    reloads: float = 0.0
    owners: float = 0.0
    bursts: float = 0.0
    empties: float = 0.0
    """All replicas drain, and another is expected after a while."""
    gateways_leave: float = 0.0
    cancels: float = 0.03
    failures: float = 0.01
    refusals: float = 0.01
    whole_answers: float = 0.2
    hostile: float = 0.02


def lane(name: str, up_to_tokens: int | None, weight: float, max_wait_s: float, cap_s: float = 600.0) -> Plain:
    return {"name": name, "up_to_tokens": up_to_tokens, "weight": weight, "max_wait_s": max_wait_s, "cap_s": cap_s}


def tenant(
    name: str,
    weight: float,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    at_once: int | None = None,
) -> Plain:
    return {
        "name": name,
        "weight": weight,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "max_concurrency": at_once,
    }


LANES = [lane("short", 500, 4.0, 4.0), lane("medium", 3_000, 2.0, 8.0), lane("long", None, 1.0, 15.0)]
POLICY: Plain = {
    "lanes": LANES,
    "order": "shortest",
    "promoted_share": 0.25,
    "decode_weight": 4.0,
    "max_waiting": 400,
    "stickiness_ms": 100.0,
    "tenants": [],
}
TENANTS = [
    tenant("gold", 4.0),
    tenant("free", 0.5, 150.0),
    tenant("busy", 1.0, None, 200_000.0),
    tenant("other", 1.0, None, None, 8),
]
POLICIES = (
    POLICY,
    {**POLICY, "tenants": TENANTS},
    {**POLICY, "lanes": [lane("all", None, 1.0, 6.0, 20.0)], "order": "arrival", "promoted_share": 0.5},
    {**POLICY, "lanes": [lane("tiny", 150, 9.0, 2.0, 5.0), *LANES], "decode_weight": 8.0, "tenants": TENANTS[:2]},
    {
        **POLICY,
        "lanes": [lane("short", 2_000, 1.0, 3.0, 8.0), lane("long", None, 0.2, 9.0, 8.0)],
        "max_waiting": 90,
        "stickiness_ms": 10.0,
    },
    {
        **POLICY,
        "promoted_share": 0.05,
        "stickiness_ms": 2.0,
        "tenants": [tenant("gold", 0.5), tenant("free", 2.0, 2_000.0, None, 60)],
    },
)
SHARED: dict[str, Any] = {"tenants": ("gold", "free", "busy", "other"), "tenant_weights": (3.0, 2.0, 4.0, 1.0)}
RUNS = (
    Settings(
        "everything, in short",
        2_000,
        3,
        1.0,
        POLICIES,
        seats=(6, 4),
        kv_tokens=(12_000, 30_000),
        bindings=((0.0, 1.0), (0.25, 2.0)),
        sessions=40,
        deadly=0.01,
        deaths=0.06,
        drains=0.15,
        silences=0.15,
        cordons=0.3,
        reloads=0.1,
        owners=0.15,
        bursts=0.1,
        empties=0.036,
        gateways_leave=0.09,
        **SHARED,
    ),
    Settings("steady", 6_000, 8, 0.6, POLICIES[:1], sessions=60, bursts=0.05, **SHARED),
    Settings(
        "overload with tenants", 8_000, 4, 1.7, (POLICIES[1],), patience_s=40.0, sessions=40, bursts=0.05, **SHARED
    ),
    Settings("full lanes", 6_000, 3, 2.0, (POLICIES[4], POLICIES[3]), reloads=0.02, patience_s=20.0, **SHARED),
    Settings(
        "replicas die",
        7_000,
        5,
        0.9,
        ({**POLICY, "stickiness_ms": 1.0}, POLICIES[1]),
        sessions=20,
        deaths=0.24,
        silences=0.24,
        bursts=0.02,
        **SHARED,
    ),
    Settings(
        "deadly prompts",
        7_000,
        8,
        0.7,
        POLICIES[:2],
        deadly=0.02,
        silences=0.09,
        owners=0.03,
        gateways_leave=0.06,
        **SHARED,
    ),
    Settings(
        "unequal replicas, long prompts",
        7_000,
        6,
        1.1,
        ({**POLICY, "stickiness_ms": 1.0}, POLICIES[5]),
        seats=(32, 8, 4),
        kv_tokens=(90_000, 36_000, 34_000),
        prompt_median=2_500.0,
        prompt_sigma=1.5,
        sessions=100,
        bindings=((0.0, 2.0), (0.1, 1.0)),
        reloads=0.05,
        drains=0.06,
    ),
    Settings(
        "reloads",
        7_000,
        4,
        1.2,
        POLICIES,
        reloads=0.3,
        bindings=((0.0, 1.0), (0.5, 0.5), (0.1, 4.0)),
        drains=0.06,
        cordons=0.15,
        **SHARED,
    ),
    Settings(
        "owners change",
        8_000,
        4,
        1.1,
        POLICIES[:4],
        owners=0.24,
        gateways_leave=0.15,
        reloads=0.02,
        deaths=0.06,
        drains=0.06,
        **SHARED,
    ),
    Settings(
        "an hour with little traffic",
        6_000,
        2,
        0.06,
        POLICIES[:2],
        deadly=0.03,
        deaths=0.004,
        silences=0.004,
        bursts=0.005,
        **SHARED,
    ),
    Settings(
        "none left, one expected",
        6_000,
        3,
        1.0,
        POLICIES[:3],
        empties=0.18,
        drains=0.15,
        reloads=0.01,
        cordons=0.24,
        **SHARED,
    ),
)
