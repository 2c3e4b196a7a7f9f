"""The user's own cells: what their commands are told, and that no fault outlives its drill."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cli.bench.client import EndpointError
from cli.drill import command
from cli.drill.live import FaultError, LiveClients, UsersCells
from planning.drill.drill import drill_on
from planning.simulator.faults import FaultKind

CUT = drill_on(FaultKind.PARTITION, "eu", ("us", "ap"), 20.0, 10.0, 60.0)
ENDPOINTS = {"eu": "http://a", "us": "http://b", "ap": "http://c"}


def users(folder: Path, begin: str = "") -> UsersCells:
    says = "echo %s $RAYLANE_DRILL_KIND $RAYLANE_DRILL_CELL $RAYLANE_DRILL_OTHERS >> " + str(folder / "said")
    return UsersCells(ENDPOINTS, says % "begin" + begin, says % "end")


def said(folder: Path) -> list[str]:
    file = folder / "said"
    return file.read_text().splitlines() if file.exists() else []


async def test_the_commands_are_told_what_befalls_whom(tmp_path: Path) -> None:
    cells = users(tmp_path)
    await cells.begin(CUT)
    await cells.end(CUT)
    await cells.restore(CUT)
    assert said(tmp_path) == ["begin partition eu us ap", "end partition eu us ap"]


async def test_a_command_that_fails_is_named_with_what_it_said() -> None:
    cells = UsersCells(ENDPOINTS, "echo no such rule; exit 3", None)
    with pytest.raises(FaultError, match="--begin-command 'echo no such rule; exit 3': ended with 3: no such rule"):
        await cells.begin(CUT)


def failing(error: BaseException) -> Callable[..., Awaitable[None]]:
    async def live_drill(case: object, drill: Any, traffic: object, cells: UsersCells, *more: object) -> None:
        await cells.begin(drill)
        raise error

    return live_drill


@pytest.mark.parametrize("error", [EndpointError("gone"), asyncio.CancelledError()], ids=["failed", "interrupted"])
async def test_a_fault_ends_with_its_drill_however_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    cells = users(tmp_path)
    monkeypatch.setattr(command, "live_drill", failing(error))
    monkeypatch.setattr(command, "UsersCells", lambda *given: cells)
    own = command._OwnCells(ENDPOINTS, "", None, None)
    with pytest.raises(type(error)):
        await command._lived(None, CUT, None, own, LiveClients(), tmp_path)  # type: ignore[arg-type]
    assert [line.split()[0] for line in said(tmp_path)] == ["begin", "end"]


async def test_a_fault_that_was_made_by_half_is_ended(tmp_path: Path) -> None:
    cells = users(tmp_path, "; exit 1")
    with pytest.raises(FaultError):
        await cells.begin(CUT)
    await cells.restore(CUT)
    assert [line.split()[0] for line in said(tmp_path)] == ["begin", "end"]


async def test_what_has_not_begun_is_not_ended(tmp_path: Path) -> None:
    await users(tmp_path).restore(CUT)
    assert said(tmp_path) == []
