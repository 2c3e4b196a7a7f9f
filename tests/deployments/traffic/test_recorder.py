import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from deployments.gateway.operators.traffic_page import TRAFFIC_PATH
from deployments.protocol import Finished, Usage
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LogHealth
from deployments.telemetry.verdicts import RequestVerdict
from deployments.traffic import recorder as recorder_module
from deployments.traffic.counts import Period, Stream, Stretches, StretchRecord, TrafficCounts
from deployments.traffic.recorder import TrafficRecorder, count
from deployments.wire import from_plain
from tests.deployments.gateway.conftest import make_rig  # noqa: F401
from tests.deployments.gateway.rig import CREDENTIALS, Rig


def ledger(ended_unix_s: float = 100.0, **fields: object) -> Ledger:
    made = Ledger("r", "a", "/v1/completions", arrived_s=5.0, arrived_unix_s=ended_unix_s - 2.0, submitted_s=5.1)
    made.ended_s, made.model, made.traffic_class, made.tenant = 7.0, "demo", "batch", "someone"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def finished(prompt_tokens: int, cached_tokens: int, output_tokens: int, sequences: int = 1) -> Finished:
    return Finished("a", 200, Usage(prompt_tokens, cached_tokens, output_tokens, 0, sequences, 0.1, 0.2), 0.1, 0.3)


def counted(*ledgers: Ledger) -> Stretches:
    found = Stretches()
    for one in ledgers:
        count(found, one, "eu")
    return found


def test_a_request_counts_where_it_ended() -> None:
    found = counted(ledger(119.0, finished=finished(100, 30, 7)), ledger(121.0, finished=finished(50, 0, 3)))
    keys = [(period, begin, stream.tenant) for period, begin, stream in found.counts]
    assert keys == [(Period.MINUTE, 60, ""), (Period.HOUR, 0, "someone"), (Period.MINUTE, 120, "")]
    hour = found.counts[Period.HOUR, 0, Stream("demo", "batch", "eu", "someone")]
    assert (hour.requests, hour.finished, hour.prompt_tokens, hour.cached_tokens, hour.output_tokens) == (
        2,
        2,
        150,
        30,
        10,
    )


def test_rejected_cancelled_and_invalid_requests() -> None:
    rejected, expired, cancelled = ledger(), ledger(), ledger(finished=finished(0, 0, 0, sequences=0))
    rejected.decide(RequestVerdict.REJECTED, "backlog", 6.0)
    expired.decide(RequestVerdict.EXPIRED, "queue_wait_s", 6.0)
    found = counted(rejected, expired, cancelled, ledger(submitted_s=None), ledger(traffic_class=""))
    assert found.of(Period.MINUTE, 100.0, Stream("demo", "batch", "eu")) == TrafficCounts(requests=3, rejected=2)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def recorder_at(path: Path, clock: Clock) -> TrafficRecorder:
    return TrafficRecorder(path, "eu", LogHealth("traffic"), clock)


def test_restarts_go_on_and_a_clock_that_is_set_back_harms_nothing(tmp_path: Path) -> None:
    clock = Clock()
    for later_s in (10.0, 20.0):
        recorder = recorder_at(tmp_path / "t.sqlite", clock)
        clock.now += later_s
        recorder.add(ledger(clock.now))
        recorder.flush()
    clock.now -= 500.0
    recorder.flush()
    clock.now += 5.0
    recorder.flush()
    found = recorder.store.read(Period.HOUR)
    assert sum(counts.requests for counts in found.counts.values()) == 2
    assert found.seconds == {(Period.HOUR, 0): 35.0}


def test_a_file_that_is_damaged_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_text("something else altogether" * 200)
    recorder = recorder_at(path, Clock())
    recorder.add(ledger())
    for _ in range(2):
        recorder.flush()
    assert len(recorder.store.read(Period.HOUR).counts) == 1
    assert (tmp_path / "t.sqlite.broken").exists()


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MAX_PENDING", 10)
    (tmp_path / "file").write_text("")
    health = LogHealth("traffic")
    recorder = TrafficRecorder(tmp_path / "file" / "t.sqlite", "eu", health, Clock())
    for number in range(30):
        recorder.add(ledger(tenant=f"tenant-{number}"))
    recorder.flush()
    assert health.error is not None
    assert health.lost_lines == 30


async def page(rig: Rig, query: str, headers: dict[str, str] = CREDENTIALS) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(rig.gateway.others.own_url + TRAFFIC_PATH + query, headers=headers) as response,
    ):
        return response.status, json.loads(await response.read())


async def test_the_page_shows_what_the_gateway_counted(
    make_rig: Callable[..., Awaitable[Rig]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await make_rig()
    assert await page(rig, "") == (200, {"stores": {}, "missing": 0})
    for _ in range(3):
        await rig.ask()
    await rig.settled()
    rig.gateway._traffic.flush()
    status, answer = await page(rig, "?period=minute&hours=1")
    stores = answer["stores"]
    assert isinstance(stores, dict)
    ((_, record),) = stores.items()
    found = from_plain(record, StretchRecord).stretches()
    assert status == 200
    assert sum(counts.requests for counts in found.counts.values()) == 3
    ((_, _, stream),) = list(found.counts)[:1]
    assert (stream.model, stream.tenant) == ("demo", "")

    async def ask(path: str, kind: type) -> list[object]:
        return [{"stores": stores | {"other": record}}]

    monkeypatch.setattr(rig.gateway.others, "ask", ask)
    monkeypatch.setattr(rig.gateway.others, "urls", {"a": "", "b": ""})
    _, answer = await page(rig, "?period=minute")
    assert isinstance(answer["stores"], dict)
    assert (set(answer["stores"]), answer["missing"]) == ({*stores, "other"}, 1)
    _, answer = await page(rig, "?period=minute&here=1")
    assert (answer["stores"], answer["missing"]) == (stores, 0)


@pytest.mark.parametrize(
    ("query", "message"), [("?period=day", "period = 'day'"), ("?hours=0", "hours = '0'"), ("?hours=x", "hours = 'x'")]
)
async def test_the_page_refuses_what_it_does_not_know(
    make_rig: Callable[..., Awaitable[Rig]],  # noqa: F811
    query: str,
    message: str,
) -> None:
    rig = await make_rig(engines=0)
    status, answer = await page(rig, query)
    assert status == 400
    assert isinstance(answer["error"], dict)
    assert answer["error"]["message"].startswith(message)
    assert (await page(rig, query, {}))[0] == 401
