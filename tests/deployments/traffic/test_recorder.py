import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from deployments.cell.directory import Directory
from deployments.gateway.operators.directory_pages import TRAFFIC_PATH
from deployments.protocol import Finished, Usage
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LogHealth
from deployments.telemetry.verdicts import RequestVerdict
from deployments.traffic import recorder as recorder_module
from deployments.traffic.counts import Period, Stream, Stretches, StretchRecord, TrafficCounts
from deployments.traffic.recorder import TrafficRecorder, count
from deployments.wire import from_plain
from tests.deployments.cell.successors import next_directory
from tests.deployments.gateway.conftest import make_rig  # noqa: F401
from tests.deployments.gateway.rig import CREDENTIALS, Handle, Rig


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


def recorder_at(clock: Clock, health: LogHealth | None = None, gateway_id: str = "gateway") -> TrafficRecorder:
    return TrafficRecorder(gateway_id, "eu", health or LogHealth("traffic"), clock)


async def counted_by(directory: Directory, period: Period) -> Stretches:
    return (await directory.traffic_since(period, 0.0)).stretches()


async def test_restarts_go_on_and_a_clock_that_is_set_harms_nothing(tmp_path: Path) -> None:
    clock = Clock()
    for later_s in (10.0, 20.0):
        directory = next_directory(tmp_path)
        recorder = recorder_at(clock, gateway_id=f"gateway-{later_s}")
        clock.now += later_s
        recorder.add(ledger(clock.now))
        await recorder.deliver(Handle(directory))
    for wrong_s in (-500.0, 365 * 86_400.0):
        clock.now += wrong_s
        await recorder.deliver(Handle(directory))
    clock.now -= 365 * 86_400.0
    await recorder.deliver(Handle(directory))
    clock.now += 5.0
    await recorder.deliver(Handle(directory))
    found = await counted_by(directory, Period.HOUR)
    assert sum(counts.requests for counts in found.counts.values()) == 2
    assert found.seconds == {(Period.HOUR, 0): 35.0}


class Forgetful(Directory):
    """It writes, and its answer is lost."""

    async def traffic(self, gateway_id: str, delivery: int, counted: StretchRecord) -> None:
        await super().traffic(gateway_id, delivery, counted)
        raise TimeoutError


async def test_what_is_delivered_again_counts_once() -> None:
    directory, forgetful = Directory(), Forgetful()
    forgetful.store = directory.store
    recorder = recorder_at(Clock())
    for answers in (forgetful, forgetful, directory, directory):
        recorder.add(ledger())
        await recorder.deliver(Handle(answers))
    found = await counted_by(directory, Period.HOUR)
    assert sum(counts.requests for counts in found.counts.values()) == 4


async def test_what_waits_for_the_directory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MAX_PENDING", 10)
    health = LogHealth("traffic")
    recorder = recorder_at(Clock(), health)
    for number in range(60):
        recorder.add(ledger(tenant=f"tenant-{number}"))
        if number == 29:
            await recorder.deliver(object())
            assert health.error is not None
            assert health.lost_lines == 0, "they are under way"
    await recorder.deliver(object())
    assert health.lost_lines == 30


async def page(rig: Rig, query: str, headers: dict[str, str] = CREDENTIALS) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(rig.gateway.others.own_url + TRAFFIC_PATH + query, headers=headers) as response,
    ):
        return response.status, json.loads(await response.read())


async def test_the_page_shows_what_the_gateway_counted(
    make_rig: Callable[..., Awaitable[Rig]],  # noqa: F811
) -> None:
    rig = await make_rig()
    assert await page(rig, "") == (200, {"counts": [], "watched": []})
    for _ in range(3):
        await rig.ask()
    await rig.settled()
    await rig.gateway._traffic.deliver(Handle(rig.directory))
    status, answer = await page(rig, "?period=minute&hours=1")
    found = from_plain(answer, StretchRecord).stretches()
    assert status == 200
    assert sum(counts.requests for counts in found.counts.values()) == 3
    ((_, _, stream),) = list(found.counts)[:1]
    assert (stream.model, stream.tenant) == ("demo", "")


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
