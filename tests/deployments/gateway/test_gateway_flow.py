"""Flows: the first cause counts, deadlines belong to hops, and a cancellation from elsewhere passes."""

import asyncio
import time

import pytest

from cluster.spec import Timeouts
from deployments.gateway.flow import Aborted, Awaited, EndCause, Flows, RequestFlow
from deployments.openai.errors import ApiError, ErrorCode
from deployments.telemetry.ledger import Ledger

TIMES = Timeouts(queue_wait_s=1, connect_s=1, first_byte_s=10, between_bytes_s=20, client_stall_s=30, total_s=100)


def flow() -> RequestFlow:
    return RequestFlow(Ledger("r", "e", "/v1/completions", time.monotonic(), 0.0), TIMES)


async def aborted(one: RequestFlow, act: object) -> Aborted:
    """What a guarded wait ends with when `act` is done to its flow."""

    async def wait() -> None:
        with one.guard():
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    act()  # type: ignore[operator]
    with pytest.raises(Aborted) as caught:
        await task
    assert task.cancelling() == 0
    return caught.value


@pytest.mark.parametrize(
    ("awaited", "limit_s", "code"),
    [
        (Awaited.UPLOAD, 30, ErrorCode.CLIENT_TOO_SLOW),
        (Awaited.FIRST_BYTE, 10, ErrorCode.FIRST_BYTE_TIMEOUT),
        (Awaited.BETWEEN_BYTES, 20, ErrorCode.BETWEEN_BYTES_TIMEOUT),
        (Awaited.CLIENT, 30, None),
        (Awaited.LANE, 100, ErrorCode.TOTAL_TIMEOUT),
        (Awaited.WHOLE_ANSWER, 100, ErrorCode.TOTAL_TIMEOUT),
    ],
)
async def test_each_wait_has_its_deadline_and_error(awaited: Awaited, limit_s: float, code: ErrorCode | None) -> None:
    one = flow()
    start = time.monotonic()
    one.wait_for(awaited, start)
    one.expire(start + limit_s - 0.1)
    assert one.cause is None
    error = (await aborted(one, lambda: one.expire(start + limit_s + 0.1))).error
    assert (None if error is None else error.error) is code


async def test_the_first_cause_counts() -> None:
    one = flow()

    def act() -> None:
        one.abort(EndCause.REPLICA_LOST)
        one.abort(EndCause.CLIENT_GONE)
        one.expire(time.monotonic() + 1_000)

    caught = await aborted(one, act)
    assert caught.cause is EndCause.REPLICA_LOST
    assert caught.error is not None


async def test_a_cancellation_from_elsewhere_passes() -> None:
    one = flow()

    async def wait() -> None:
        with one.guard():
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_errors_pass_through_the_guard_unchanged() -> None:
    error = ApiError(ErrorCode.OVERLOADED, "full", headers={"retry-after": "3"})
    with pytest.raises(ApiError) as caught, flow().guard():
        raise error
    assert caught.value is error


async def test_an_abort_outside_the_guard_does_nothing() -> None:
    one = flow()
    one.abort(EndCause.TOTAL)
    with one.guard():
        await asyncio.sleep(0)
    one.abort(EndCause.TOTAL)
    await asyncio.sleep(0)
    assert one.cause is None


async def test_flows_are_swept_and_drained() -> None:
    flows = Flows()

    async def hold(one: RequestFlow) -> EndCause:
        async with flows.hold(one):
            try:
                with one.guard():
                    await asyncio.Event().wait()
            except Aborted as ended:
                return ended.cause
            raise AssertionError

    tasks = [asyncio.create_task(hold(flow())) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(flows) == 3
    assert not await flows.drained(0.01)
    flows.sweep(time.monotonic())
    assert len(flows) == 3
    flows.sweep(time.monotonic() + 1_000)
    assert await asyncio.gather(*tasks) == [EndCause.TOTAL] * 3
    assert await flows.drained(0.01)
