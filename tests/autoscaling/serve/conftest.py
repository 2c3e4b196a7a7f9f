"""What the tests of scaling's turns share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.autoscaling.serve.scaling_harness import Run, ScalingHarness


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    all_harness: list[ScalingHarness] = []

    def make(ready: int = 1, folder: Path = tmp_path, **given: Any) -> ScalingHarness:
        all_harness.append(ScalingHarness(folder, ready, **given))
        return all_harness[-1]

    yield make
    for one in all_harness:
        one.scaling.close()
