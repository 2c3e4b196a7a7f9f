"""The operators' page of a real gateway in a real browser: fed with a recorded answer, and a made-up one of many
states, it shows what `raylane status --json` shows of it; without a session nothing; and hostile names are text."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deployments.accounting.bill import Amounts, Bill, BillLine, LineKey, TimeShare
from deployments.gateway.operators.report import CellReport, SloReport
from deployments.wire import from_plain, to_plain
from tests.cli.test_narrow import report as made_up_report
from tests.deployments.gateway.conftest import make_rig  # noqa: F401  # the fixture
from tests.deployments.gateway.rig import ASK, CREDENTIALS, SECRET, Rig
from tests.pages.browser import CHROMIUM, Tab, tab

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

MakeRig = Callable[..., Awaitable[Rig]]
RECORDED = Path(__file__).parent / "recorded_status.json"
"""What `raylane status --json` printed of a cell on `infra/specs/simulated-autoscaling.yaml` under load."""
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
SHOWN = "document.querySelector('main')?.hidden === false && document.querySelector('#cost').innerText"


async def rows(page: Tab, table: str) -> list[dict[str, str]]:
    """The lines of a table, by the headings of its columns."""
    script = f"[...document.querySelectorAll('#{table} tr')].map(row => [...row.cells].map(cell => cell.innerText))"
    head, *lines = await page.value(script)
    return [dict(zip(head, line, strict=True)) for line in lines]


def text(value: Any) -> str:
    """As the page writes a value of the answer."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) and not value.is_integer() else f"{value:,.0f}"


async def login(page: Tab, rig: Rig, **screen: Any) -> None:
    async with rig.post("/raylane/codes", b"", headers=CREDENTIALS) as answer:
        await page.open(f"{rig.url}/raylane/#code={(await answer.json())['code']}", **screen)


async def shows(page: Tab, model: dict[str, Any]) -> None:
    """Of the chosen model, each lane, SLO and replica."""
    for lane, line in zip(model["lanes"], await rows(page, "lanes"), strict=True):
        expected = (lane["name"], *(text(lane[name]) for name in ("waiting", "work_s", "oldest_wait_s")))
        assert tuple(line.values())[:4] == expected
        assert line["wait p50 s"] == text(lane["eta_s"] and lane["eta_s"][0])
    for slo, line in zip(model["slos"], await rows(page, "slos"), strict=True):
        assert (line["class"], line["slo"]) == (slo["traffic_class"], slo["slo"])
        assert [line[name] for name in ("limit ms", "met", "missed")] == [
            text(slo[name]) for name in ("limit_ms", "met", "missed")
        ]
        assert line["attainment"] == f"{100 * slo['attainment']:.1f} %"
    there = [*model["replicas"], *model["starting"]]
    for replica, line in zip(there, await rows(page, "replicas"), strict=True):
        assert replica["replica_id"].endswith(line["replica"])
        assert line["state"] == replica.get("state", "starting")
        assert line["phase"] == replica.get("phase", "-")
        assert line["leases"] == text(replica.get("leases"))


async def test_it_shows_what_status_shows(
    make_rig: MakeRig,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, made_up = from_plain(json.loads(RECORDED.read_text()), CellReport), made_up_report().models[0]
    slos = SloReport("interactive", "ttft", 500.0, 0.9, 1_234, 10), SloReport("interactive", "itl", 50.0, 0.95, 0, 0)
    report = replace(recorded, cluster=HOSTILE, models=(recorded.models[0], replace(made_up, name=HOSTILE, slos=slos)))

    async def answer() -> CellReport:
        return report

    async def bill(*asked: object) -> Bill:
        key = LineKey(0, "here", "demo", "", TimeShare.WORK, "", "", Fraction(5, 2))
        outside = replace(key, share=TimeShare.EXTERNAL, usd_per_hour=Fraction(0))
        spent = Amounts(external_in=10**12, external_out=5 * 10**11)
        return Bill((BillLine(key, Amounts(3_600 * 10**9)), BillLine(outside, spent)))

    rig = await make_rig()
    monkeypatch.setattr(rig.directory, "cost_bill", bill)
    monkeypatch.setattr(rig.gateway._status, "report", answer)
    async with rig.post("/v1/completions", {**ASK, "user": HOSTILE}) as served:
        await served.read()
        request_id = served.headers["x-request-id"]
    status = to_plain(report)
    async with tab(tmp_path / "browser") as page:
        await page.open(f"{rig.url}/raylane/")
        await page.until("!document.querySelector('#login').hidden")
        assert await page.value("document.querySelector('main').hidden")
        assert not [one for one in report.models[0].lanes if one.name in await page.value("document.body.innerText")]
        await page.value(f"document.querySelector('#login input').value = '{SECRET}'")
        await page.value("document.querySelector('#login button').click()")
        await page.until(SHOWN)
        await page.call("Network.clearBrowserCookies")
        page.errors.clear()  # the answer 401 that made it ask
        for width, dark in ((1280, False), (390, True)):
            await login(page, rig, width=width, dark=dark)
            await page.until(SHOWN)
            assert await page.value("document.documentElement.scrollWidth") == width, "nothing sticks out"
            ground = "rgb(17, 20, 24)" if dark else "rgb(255, 255, 255)"
            assert await page.value("getComputedStyle(document.body).backgroundColor") == ground
            assert await page.value("location.hash") == ""
        assert HOSTILE in await page.value("document.querySelector('#cell').textContent")
        for model, line in zip(status["models"], await rows(page, "models"), strict=True):
            assert line["model"] == model["name"]
            assert line["desired"] == text(model["desired_replicas"])
            assert line["ready"] == text(sum(one["state"] == "ready" for one in model["replicas"]))
            assert line["waiting"] == text(sum(lane["waiting"] for lane in model["lanes"]))
            assert (line["running"], line["finished"]) == (text(model["leases"]), text(model["endings"]["finished"]))
            assert (line["TTFT p50 ms"], line["p95"]) == tuple(text(model["ttft_ms"][one]) for one in ("p50", "p95"))
        paid = {"replica-hours": "1.0000", "usd": "4.0000", "idle usd": "0.0000"}
        assert await rows(page, "cost") == [{"model": name, **paid} for name in ("demo", "all")]
        for at, model in enumerate(status["models"]):
            await page.value(f"document.querySelector('#model').selectedIndex = {at}")
            await page.until(f"document.querySelector('#lanes').rows.length === {len(model['lanes']) + 1}")
            await shows(page, model)
        for model, line in zip(status["models"], await rows(page, "decisions"), strict=True):
            decision = model["scaling"]
            assert (line["model"], line["reason"]) == (decision["model"], decision["reason"])
            assert (line["requested"], line["applied"]) == (text(decision["requested"]), text(decision["applied"]))
        await page.until("document.querySelectorAll('#charts canvas').length === 4")
        await page.value(f"document.querySelector('#ask input').value = '{request_id}'")
        await page.value("document.querySelector('#ask button').click()")
        await page.until("document.querySelector('#reasons').innerText")
        stages = {line["stage"]: line["ms"] for line in await rows(page, "stages")}
        async with aiohttp.ClientSession() as session:
            url = f"{rig.url}/raylane/requests/{request_id}"
            async with session.get(url, headers=CREDENTIALS) as known:
                assert stages == {name: text(1e3 * s) for name, s in (await known.json())["stages_s"].items()}
        await asyncio.sleep(1.2)
        ages = await page.value("[...document.querySelectorAll('[data-of]')].map(one => one.textContent)")
        assert len(ages) == 5
        assert all(one.endswith(" s old") for one in ages)
        assert await page.value("document.querySelectorAll('img, script:not([src])').length") == 0
        await rig.gateway._server.stop(0.1)
        await page.until("document.querySelector('#problem').innerText")
        assert not [error for error in page.errors if "ERR_" not in error], "the console is clean"
