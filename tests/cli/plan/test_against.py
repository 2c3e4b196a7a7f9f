"""`raylane plan WORKSHEET --against` as a user types it: recordings, traces, and a gateway's page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from deployments.traffic.counts import Stream, Stretches
from deployments.traffic.published_drift import read_drift
from deployments.wire import to_plain
from planning.drift.recording import stretches_of_trace
from planning.workload.trace import Trace
from planning.workload.traces import write_trace
from tests.cell_store import keep_traffic
from tests.commands import ran
from tests.http_server import Handler, listening
from tests.planning.drift.drawn import MONDAY_S
from tests.planning.plans import small

pytestmark = pytest.mark.whole
RATES = [{"region": "us-east-1", "requests_per_s": 2.0}]
SHEET: dict[str, Any] = small.chat(rates=RATES)
STREAM = Stream("demo", "interactive", "us-east-1")


def run(sheet: Path, *arguments: object, code: int | None = 0) -> Result:
    return ran("plan", sheet, "--workers", "1", "--against", *arguments, code=code, columns=160)


def drawn(factor: float = 1.0) -> Trace:
    """An hour of the worksheet's traffic; then twenty minutes of it with longer prompts."""
    rng = np.random.default_rng(1)
    arrived_s = np.sort(rng.random(2 * 4_800)) * 4_800
    prompt = np.where(rng.random(len(arrived_s)) < 0.9, 100, 3_000) * np.where(arrived_s < 3_600, 1, factor)
    return Trace(arrived_s, prompt.astype(np.int64), rng.geometric(1 / 20, len(arrived_s)).astype(np.int64))


def recorded(factor: float = 1.0) -> Stretches:
    return stretches_of_trace(drawn(factor), STREAM, MONDAY_S)


def test_a_recording_as_the_worksheet_says(tmp_path: Path) -> None:
    store = keep_traffic(tmp_path / "cell.sqlite", recorded())
    result = run(small.write(tmp_path, SHEET), store)
    assert "as the worksheet says" in result.output
    assert "demo, interactive in us-east-1" in result.output
    assert "of traffic, Mon 00:00 to Mon 01:20 (UTC)" in result.output
    assert "last hour" in result.output


@pytest.mark.long
def test_prompts_that_double_are_named_with_what_they_do_to_the_plan(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", drawn(2.0))
    sheet, memo = small.write(tmp_path, SHEET), ("--memo", tmp_path / "rates.jsonl")
    shown = run(sheet, tmp_path / "trace.jsonl", *memo, code=3)
    assert "off the worksheet: prompt tokens of demo, interactive in us-east-1 in the last hour" in shown.output
    assert "cost: $" in shown.output
    file = tmp_path / "drift.json"
    result = run(sheet, tmp_path / "trace.jsonl", *memo, "--json", "--publish", file, code=3)
    assert [one.quantity for one in read_drift(file).figures] == ["prompt_tokens"]
    values = json.loads(result.stdout)
    assert [one["quantity"] for one in values["off"]] == ["prompt_tokens"]
    (figure,) = [one for one in values["compared"]["figures"] if one["quantity"] == "prompt_tokens"]
    assert figure["hours"][-1]["observed"] / figure["hours"][-1]["expected"] == pytest.approx(2, rel=0.1)
    assert figure["hours"][0]["low"] <= figure["hours"][0]["most"]
    plan = values["plan"]
    assert plan["needed_usd_per_hour"] >= plan["expected_usd_per_hour"] > 0


def test_drift_is_shown_and_published_where_there_is_no_plan_for_it(tmp_path: Path) -> None:
    sheet, trace, file = small.write(tmp_path, SHEET), tmp_path / "trace.jsonl", tmp_path / "drift.json"
    write_trace(trace, drawn(1_000.0))
    result = run(sheet, trace, "--publish", file, code=3)
    assert "off the worksheet: prompt tokens" in result.output
    assert "the plan for the recorded traffic: " in result.output
    assert [one.quantity for one in read_drift(file).figures] == ["prompt_tokens"]


@pytest.mark.parametrize("option", [("--out", "plan.html"), ("--write-spec", "planned.yaml"), ("--thorough",)])
def test_what_makes_no_sense_with_a_comparison_is_refused(tmp_path: Path, option: tuple[str, ...]) -> None:
    places = (option[0], *(tmp_path / name for name in option[1:]))
    result = run(small.write(tmp_path, SHEET), "live", *places, code=2)
    assert f"{option[0]}: allowed only without --against" in result.output


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """Serves the pages that a gateway serves, as the last requests left them."""
    small.write(tmp_path, SHEET)
    pages = {
        "/raylane/traffic": json.dumps(to_plain(recorded().record())),
        "/raylane/spec": small.loaded(tmp_path, SHEET)[1].model_dump_json(),
    }

    class Gateway(Handler):
        def do_GET(self) -> None:
            self.answer(200, pages[self.path.partition("?")[0]].encode())

    with listening(Gateway) as url:
        yield url


def test_the_live_cluster(tmp_path: Path, gateway: str) -> None:
    file = tmp_path / "drift.json"
    result = run(small.write(tmp_path, SHEET), "live", "--url", gateway, "--publish", file)
    assert read_drift(file).figures == ()
    assert "as the worksheet says" in result.output


def test_what_can_not_be_compared(tmp_path: Path) -> None:
    sheet = small.write(tmp_path)
    assert "missing: cannot be read" in run(sheet, tmp_path / "missing", code=2).output
    write_trace(tmp_path / "trace.jsonl", drawn())
    result = run(sheet, tmp_path / "trace.jsonl", code=2)
    assert "names no region; the worksheet has eu-central-1, us-east-1" in result.output
    assert "no minute was recorded" in run(sheet, keep_traffic(tmp_path / "empty.sqlite", Stretches()), code=2).output
