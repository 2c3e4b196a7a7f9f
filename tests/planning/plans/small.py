"""A small worksheet for the tests of plans: two regions, a cheap group with a small context and a dear one."""

from pathlib import Path
from typing import Any

import yaml

from cluster.spec import BoundsSchedule, ClusterSpec
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from planning.capacity.judging import RateBound
from planning.plans.answer import WorksheetPlan
from planning.plans.planner import PlanLimits, case_from, planned
from planning.plans.question import Case, Rates, rate_jobs
from planning.plans.rates import GroupRate, RateJob
from planning.worksheet.load import load_worksheet
from planning.worksheet.sheet import Worksheet

SPEC: dict[str, Any] = yaml.safe_load("""
name: small
regions:
  - {name: us-east-1, pools: [{name: l4, accelerator: L4, nodes: 2, gpus_per_node: 2}]}
  - {name: eu-central-1, pools: [{name: l4, accelerator: L4, nodes: 2, gpus_per_node: 2}]}
models:
  - name: demo
    source: demo
    settings: {max_model_len: 8192, max_num_seqs: 16, max_num_batched_tokens: 2048}
    replicas: {count: 1, min: 1, max: 4}
classes: [{name: interactive, ttft_ms: 2000, attainment: 0.9}]
autoscaling: {policy: backlog}
""")
CHAT: dict[str, Any] = {"name": "chat", "model": "demo", "class": "interactive"} | {
    "rates": [
        {"region": "us-east-1", "hourly_requests_per_s": [0.5] * 8 + [4.0] * 10 + [0.5] * 6},
        {"region": "eu-central-1", "requests_per_s": 1.0},
    ],
    "input_tokens": {"values": [100, 3000], "weights": [9, 1]},
    "output_tokens": {"mean": 20},
}
SHEET: dict[str, Any] = {
    "name": "small",
    "spec": "spec.yaml",
    "demand": [CHAT],
    "candidates": [
        {"name": "cheap", "model": "demo", "gpu": "L4", "costs": "cheap.json", "settings": {"max_model_len": 2048}},
        {"name": "large", "model": "demo", "gpu": "H100", "costs": "large.json"},
    ],
    "gpu_prices": [
        {"gpu": gpu, "region": region, "on_demand_usd_per_gpu_hour": usd, "spot_usd_per_gpu_hour": usd / 2}
        for gpu, usd in (("L4", 1.0), ("H100", 6.0))
        for region in ("us-east-1", "eu-central-1")
    ],
}
RATES = {"cheap": 2.0, "large": 10.0}
"""Requests/s of a replica, for tests that need no simulator."""


def write(folder: Path, sheet: dict[str, Any] | None = None, spec: dict[str, Any] | None = None) -> Path:
    """The files; the worksheet's path."""
    for name, speed in (("cheap", 1.0), ("large", 5.0)):
        cost = CostModel(line(0.2 / speed, 3e-4 / speed), line(0.0, 4e-5), plain_attention(1e-7 / speed, 4e-10))
        file = cost_file("demo", "a test", "measured", EngineModelLimits(16, 2_048, 60_000), cost, error=0.05)
        write_cost_file(folder / f"{name}.json", file)
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC | (spec or {}), sort_keys=False))
    path = folder / "sheet.yaml"
    path.write_text(yaml.safe_dump(SHEET | (sheet or {}), sort_keys=False))
    return path


def chat(**changes: Any) -> dict[str, Any]:
    """The demand of a worksheet: that stream with changes."""
    return {"demand": [CHAT | changes]}


def steadily(requests_per_s: float) -> list[dict[str, Any]]:
    """A stream's rates, of one region."""
    return [{"region": "us-east-1", "requests_per_s": requests_per_s}]


def loaded(
    folder: Path, sheet: dict[str, Any] | None = None, spec: dict[str, Any] | None = None
) -> tuple[Worksheet, ClusterSpec]:
    return load_worksheet(write(folder, sheet, spec))


def case(folder: Path, sheet: dict[str, Any] | None = None, spec: dict[str, Any] | None = None) -> Case:
    return case_from(*loaded(folder, sheet, spec))


def rate(job: RateJob) -> GroupRate:
    """Without a simulator; a band of long prompts takes ten times as long."""
    each = RATES[job.offer.view.group] * (1.0 if job.band.input_tokens < 1_000 else 0.1)
    each *= 0.9 if job.network_s else 1.0
    return GroupRate(each, 0.9 * each, 1.1 * each, RateBound.TTFT, 1.0)


def rates(found: Case) -> Rates:
    return {key: rate(job) for key, job in rate_jobs(found, {}).items()}


def plan(
    folder: Path, sheet: dict[str, Any] | None = None, utilisation: float = 0.9, spec: dict[str, Any] | None = None
) -> WorksheetPlan:
    """Placed at `RATES`, not simulated."""
    found = case(folder, sheet, spec)
    return planned(found, rates(found), utilisation, PlanLimits(gap=0.02, limit_s=300), lambda text: None)


def lowest(minimum: int, schedule: BoundsSchedule | None, hours: int) -> list[int]:
    """The fewest replicas of each hour (of a day, or of a week), as a spec's entries say."""
    found = [minimum] * hours
    for entry in () if schedule is None else schedule.entries:
        begin, end = (minutes // 60 for minutes in entry.span_min)
        for day in entry.weekdays if hours > 24 else (0,):
            for hour in range(begin, end):
                found[(24 * day + hour) % hours] = entry.min or 0
    return found
