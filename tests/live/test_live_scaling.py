"""Nothing but SLOs and the bounds is configured: on a real Ray the model follows a load that doubles and falls, says
why, and knows after a restart of the cell what a replica carries."""

import time
from pathlib import Path
from typing import Any

import pytest

from autoscaling.policies.backlog.policy import BacklogPolicy
from autoscaling.scaler.decision import ScalingDecision
from tests.live.clients import clients
from tests.live.cluster import LiveCluster, eventually_async, held, shipped_spec
from tests.live.scaling import last_pair, load, ready, records, scaling
from tests.smoke.simulated.conftest import SEQUENCES, small_in
from tests.smoke.simulated.conftest import SMALL as MODEL

pytestmark = [pytest.mark.long, pytest.mark.timeout(2_700)]

LONG: dict[str, Any] = {"model": MODEL, "prompt": "one two three", "max_tokens": 60}
SETTLES_S = 300.0
FALLS_S = 1_200.0
"""Twice the ten minutes that steps down wait for."""


def spec_in(folder: Path) -> dict[str, Any]:
    spec = shipped_spec("simulated-h100")
    model = small_in(folder)
    del model["autoscaling"], spec["lanes"]
    model["replicas"] = {"min": 1, "max": 8}
    spec["regions"][0]["pools"].append({"name": "cpu"})
    return spec | {"models": [model], "classes": [{"name": "interactive", "ttft_ms": 2_000}]}


def requested(cell: LiveCluster) -> int:
    return int(scaling(cell)["requested"])


def changes(cell: LiveCluster) -> list[ScalingDecision]:
    """The decisions so far that changed the number."""
    return [one.decision for one in records(cell) if one.decision.changes]


def carries(cell: LiveCluster, since_s: float) -> float | None:
    """What a full replica does in a second, by the newest decision, if that is not older; None: it is unknown."""
    last = records(cell)[-1]
    return last.decision.terms.get("replica_work_per_s") if last.inputs.signals.unix_s >= since_s else None


async def test_slos_alone_scale_a_model_up_and_down_and_a_restart_knows_its_capacity(
    tmp_path: Path, tell: list[str]
) -> None:
    spec = spec_in(tmp_path)
    with held(tmp_path, "doubling", spec) as cell:
        assert isinstance(last_pair(cell).scaler.policy, BacklogPolicy)
        async with clients() as session:
            async with load(cell, session, SEQUENCES, **LONG) as answers:
                await eventually_async(lambda: len(answers) >= 20 * SEQUENCES, SETTLES_S, every_s=0.5)
                before = requested(cell)
                async with load(cell, session, SEQUENCES, **LONG) as more:
                    await eventually_async(lambda: before < requested(cell) == ready(cell), SETTLES_S, every_s=0.5)
            async with load(cell, session, 1, **LONG) as few:
                await eventually_async(lambda: changes(cell)[-1].reason == "consolidate", FALLS_S, every_s=0.5)
                await eventually_async(lambda: ready(cell) == requested(cell), SETTLES_S, every_s=0.5)
        assert {(one.status, one.end) for one in (*answers, *more, *few)} == {(200, "done")}
        steps = changes(cell)
        tell.append(", ".join(f"{one.applied} to {one.requested}: {one.reason}" for one in steps))
        assert {one.reason for one in steps if one.requested > one.applied} <= {"demand", "backlog", "occupancy"}
        assert steps[-1].reason == "consolidate"
        explained = cell.done("explain", MODEL, "--last", str(len(steps)))
        assert explained.count("why: ") == len(steps)
        learned = carries(cell, 0.0)
        assert learned is not None
    down_s = time.time()
    with held(tmp_path, "doubling", spec) as cell:
        await eventually_async(lambda: carries(cell, down_s) is not None, every_s=0.2)
        tell.append(f"a full replica's work a second: {learned:.0f}, {carries(cell, down_s):.0f} after a restart")
        assert carries(cell, down_s) == pytest.approx(learned, rel=0.1)
