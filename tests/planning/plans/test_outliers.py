"""Figures in another unit are named, and those of the shipped worksheets are not."""

from pathlib import Path
from typing import Any

import pytest

from cluster.files import shipped
from planning.plans.outliers import outliers
from planning.plans.planner import case_from
from planning.worksheet.load import load_worksheet
from tests.planning.plans import small


def priced(usd: float) -> dict[str, Any]:
    return {"gpu_prices": [{"gpu": "L4", "region": "us-east-1", "on_demand_usd_per_gpu_hour": usd}]}


@pytest.mark.parametrize(
    ("sheet", "said"),
    [
        (priced(80.0), "gpu_prices.0.on_demand_usd_per_gpu_hour = 80.0: over ten times the highest that is known, $"),
        (priced(0.008), "gpu_prices.0.on_demand_usd_per_gpu_hour = 0.008: under a tenth of the lowest that is known"),
        (priced(1.0), ""),
        (
            small.chat(rates=small.steadily(90_000.0)),
            "demand.0: 9e+04 requests/s at its peak: over ten times what the spec's pools carry",
        ),
        (
            small.chat(input_tokens={"mean": 2}, output_tokens={"mean": 3}),
            "demand.0: 5 tokens of prompt and answer on average: under a tenth of lanes.short.up_to_tokens = 384",
        ),
        ({}, ""),
    ],
)
def test_what_is_ten_times_outside_is_named_with_its_table(tmp_path: Path, sheet: dict[str, Any], said: str) -> None:
    found = outliers(small.case(tmp_path, sheet))
    assert len(found) == bool(said), found
    assert not said or found[0].startswith(said)


@pytest.mark.parametrize("name", ["one-region", "three-regions"])
def test_the_shipped_worksheets_are_plausible(name: str) -> None:
    assert outliers(case_from(*load_worksheet(shipped(f"plans/{name}.yaml")))) == []
