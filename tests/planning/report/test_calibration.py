"""The calibration's page: it loads nothing, and shows every part, the host's costs and all that was not covered."""

import json
import re
from html import escape

import numpy as np
import pytest

from cluster.spec import Model
from deployments.engine.step_log import EngineFacts, StepLine
from planning.costs.calibration import Calibration, LoneKernels, Measurements, calibration
from planning.costs.steps import EngineSteps
from planning.report.calibration import headline, render

KERNELS = LoneKernels(0.004, 0.0045, 32)


def some_calibration(kernels: LoneKernels | None = KERNELS) -> Calibration:
    """Of a step log that is made up: 5 ms a step, and 10 us a token."""
    rng, now_s, lines = np.random.default_rng(3), 0.0, []
    for number in range(4_000):
        decodes = 1 + number // 40 % 40
        tokens = int(rng.integers(1, 1_500)) if number % 7 == 0 else 0
        now_s += 0.005 + 1e-5 * (tokens + decodes) + 1e-7 * 300 * decodes
        lines.append(StepLine(now_s, bool(tokens) * 1, tokens, decodes, decodes, 0, 300 * decodes / 65_536))
    log = EngineSteps(EngineFacts(64, 2_048, 65_536, 16), tuple(lines))
    model = Model.model_validate({"name": "m", "source": "org/m", "settings": {"max_model_len": 4_096}})
    return calibration(model, True, Measurements((log,), 0.005, (), (), 697, 3), "one replica", kernels)


@pytest.fixture(scope="module")
def page() -> str:
    return render(some_calibration(), 700, 3)


def test_the_page_loads_nothing_and_shows_all(page: str) -> None:
    record = some_calibration().file.calibration
    assert record is not None
    assert escape(headline(record)) in page
    for text in (*(one.part for one in record.residuals), *record.not_covered):
        assert escape(text) in page
    assert "3 of 700 requests failed" in page
    figures = re.findall(r'class="figure" data-plot="([^"]+)" data-axis="own">(.*?)</script>', page, flags=re.S)
    assert [key for key, _ in figures] == ["residuals-plot", "decodes-plot", "prompts-plot", "reach-plot"]
    for key, figure in figures:
        assert json.loads(figure)["data"]
        assert f'id="{key}"' in page
    own = page[: page.index("<script>")]
    assert not re.search(r'(src|href)="(?!#)', own)


def test_an_unknown_gpu_is_said(page: str) -> None:
    assert "beside kernels of 4.00 ms by the data sheet" in page
    assert "needs a GPU that is known" in render(some_calibration(None), 700, 3)


def test_a_cost_file_without_a_calibration_is_refused() -> None:
    found = some_calibration()
    plain = Calibration(found.file.model_copy(update={"calibration": None}), found.fitted, found.held, found.steps)
    with pytest.raises(ValueError, match="no calibration"):
        render(plain, 700, 3)
