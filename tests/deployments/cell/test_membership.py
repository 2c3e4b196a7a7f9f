"""What a gateway tells the directory, and that neither a slow nor a failing directory holds it up."""

import asyncio
import logging
import os
from typing import Any

import pytest

from deployments.cell import membership
from deployments.cell.departure_tracker import own_presence
from deployments.cell.membership import Epochs, Member, Membership


class Directory:
    """An actor's handle: `.method.remote(...)`. Calls wait until `answers` is set; `fails` makes them raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.called = asyncio.Condition()
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False

    def __getattr__(self, method: str) -> Any:
        directory = self

        class Remote:
            @staticmethod
            async def remote(*arguments: object) -> None:
                directory.calls.append((method, *arguments))
                async with directory.called:
                    directory.called.notify_all()
                await directory.answers.wait()
                if directory.fails:
                    raise RuntimeError("the actor died")

        return Remote

    async def until(self, calls: int) -> None:
        """Waits for so many."""
        async with asyncio.timeout(10), self.called:
            await self.called.wait_for(lambda: len(self.calls) >= calls)


def nothing() -> Epochs:
    """A gateway that owns nothing and has seen nothing."""
    return Epochs({}, {})


MEMBER = Member("g1", "http://g1", ("m1", "m2"))


async def test_it_registers_again_and_again_with_what_it_owns_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "JOIN_EVERY_S", 0.001)
    directory, now = Directory(), [Epochs({"m1": 3}, {"m1": 3, "m2": 2})]
    running = asyncio.create_task(Membership(directory, MEMBER, lambda: now[0]).run())
    await directory.until(2)
    later = {"m1": 3, "m2": 4}
    now[0] = Epochs(later, later)
    seen = len(directory.calls)
    await directory.until(seen + 2)
    running.cancel()
    here = own_presence()
    assert here.pid == os.getpid()
    assert directory.calls[0] == ("join", "g1", "http://g1", ("m1", "m2"), {"m1": 3}, {"m1": 3, "m2": 2}, here)
    assert directory.calls[-1] == ("join", "g1", "http://g1", ("m1", "m2"), later, later, here)


async def test_a_directory_that_fails_or_is_slow_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "JOIN_EVERY_S", 0.001)
    monkeypatch.setattr(membership, "_ANSWER_S", 0.01)
    directory = Directory()
    directory.fails = True
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(Membership(directory, MEMBER, nothing).run())
        await directory.until(3)
        directory.fails = False
        directory.answers.clear()
        seen = len(directory.calls)
        await directory.until(seen + 3)
    running.cancel()
    assert {record.name for record in caplog.records} == {"raylane.ownership"}


async def test_one_call_at_a_time_about_one_thing() -> None:
    directory = Directory()
    directory.answers.clear()
    member = Membership(directory, MEMBER, nothing)
    for _ in range(3):
        member.doubt("g2")
        member.doubt("g3")
        member.overtaken("m1", 9)
        member.overtaken("m2", 8)
    await directory.until(4)
    assert sorted(directory.calls, key=str) == [
        ("give_up", "g2"),
        ("give_up", "g3"),
        ("overtaken", "m1", 9),
        ("overtaken", "m2", 8),
    ]
    directory.answers.set()
    await asyncio.gather(*member._reported.values())
    member.doubt("g2")
    await directory.until(5)
    assert directory.calls[4:] == [("give_up", "g2")]


async def test_it_says_goodbye() -> None:
    directory = Directory()
    await Membership(directory, MEMBER, nothing).leave()
    assert directory.calls == [("leave", "g1")]
