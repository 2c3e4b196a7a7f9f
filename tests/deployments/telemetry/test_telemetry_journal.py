"""Work that can wait is all done, in order, and little of it in one turn of the loop."""

import asyncio

from deployments.telemetry.journal import Later


async def test_all_is_done_in_order() -> None:
    done: list[int] = []
    finished = asyncio.Event()

    def work(item: int) -> None:
        done.append(item)
        if item == 99:
            finished.set()

    later = Later(work)
    task = asyncio.create_task(later.run())
    for item in range(100):
        later.add(item)
    assert done == []
    async with asyncio.timeout(60):
        await finished.wait()
    assert done == list(range(100))
    task.cancel()


async def test_a_turn_does_a_small_share() -> None:
    turns: list[int] = []

    def work(_: int) -> None:
        count.append(1)

    count: list[int] = []
    later = Later(work)
    for item in range(160):
        later.add(item)
    task = asyncio.create_task(later.run())
    async with asyncio.timeout(60):
        while len(count) < 160:
            before = len(count)
            await asyncio.sleep(0)
            turns.append(len(count) - before)
    assert max(turns) <= 11
    task.cancel()


def test_flush_does_the_rest() -> None:
    done: list[int] = []
    later = Later(done.append)
    later.add(1)
    later.add(2)
    later.flush()
    later.flush()
    assert done == [1, 2]
