"""`raylane status` and `raylane top` on a terminal of 80 columns: nothing is cut off, and replicas are told apart."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from cli.departed import short_names
from cli.regions import status_view, top_view
from cli.status import cell_view
from cli.top import lanes_view
from deployments.cell.control import Control, ControlKind, Cordon
from deployments.cell.departure import Departure, DepartureCause, Lost, MemberKind
from deployments.cell.scaling_state import ScalingState
from deployments.gateway.operators.report import (
    CellReport,
    GatewayReport,
    GroupReport,
    ModelReport,
    PeerReport,
    RegionAnswer,
    RegionsReport,
    ReplicaReport,
    Ttfts,
)
from deployments.lane_stats import LaneStats
from deployments.protocol import DrainReason
from deployments.scheduling.reasons import WaitReason
from deployments.wire import to_plain
from tests.http_server import listening, saying

MODEL = "mistralai/Mistral-Small-3.2-24B-Instruct-2506-FP8-dynamic"
WIDTH = 80


def replica(number: int, state: str = "ready", group: str = "default") -> ReplicaReport:
    cordon = Cordon("", MODEL, "alice", "kernel update on node 7, pending request OPS-1234", 0.0)
    return ReplicaReport(
        replica_id=f"engine-{MODEL.replace('/', '-')}#{uuid.UUID(int=number * 7**44)}",
        group=group,
        state=state,
        leases=12_000,
        booked_kv_tokens=65_000,
        max_sequences=40,
        cordon=cordon if state == "cordoned" else None,
        drains_for=DrainReason.SPOT_NOTICE if state == "draining" else None,
        kv_tokens=65_536,
        engine_running=None if state == "suspect" else 1_024,
        engine_waiting=100,
        kv_usage=0.61,
    )


def lane(name: str, figure: int = 100, seconds: float = 130.9) -> LaneStats:
    eta_s, waits_for = (seconds, seconds), WaitReason.PREFILL_BUDGET
    return LaneStats(name, figure % 100_000, 1.0, seconds, seconds, waits_for, eta_s, figure, figure, 0)


def departure(kind: MemberKind, who: str, cause: DepartureCause, by: str | None = None) -> Departure:
    now, lost = time.time(), Lost(500, 2_700, 41_000_000)
    return Departure(kind, who, now, cause, MODEL, 0, "", lost, "", by, now + 1_000.0 if by else None)


STATES = ("ready", "cordoned", "draining", "suspect")


def report(figure: int = 123_456, seconds: float = 54.321, states: Sequence[str] = STATES) -> CellReport:
    there = tuple(replica(number, state) for number, state in enumerate(states, 1))
    gateway = GatewayReport("ab12cd34", 1, "http://127.0.0.1:8000", "http://127.0.0.1:1", 259_277.0, 140, 0, False)
    now = time.time()
    model = ModelReport(
        name=MODEL,
        engine="simulated",
        desired_replicas=4,
        owner="ab12cd34",
        epoch=17,
        lanes=tuple(lane(name, figure, seconds) for name in ("short", "medium-with-a-long-name", "long")),
        leases=52,
        placed=9,
        endings={"finished": figure, "cancelled": figure // 10, "failed": figure // 100, "refused": 3},
        rejections={"short": {"overloaded": figure}, "long": {"tenant_concurrency": figure, "queue_full": 12}},
        tokens_per_s=12_345.0,
        replicas=there,
        scaling=ScalingState(MODEL, 5, 4, 1, 1, "slo_burn", now, 42.0, ("stale", "unschedulable")),
        controls=(Control(ControlKind.HOLD, 4, now + 4_000, "alice", "launch day, keep it warm"),),
        ttft_ms=Ttfts(seconds, 10 * seconds, 20 * seconds, 3),
        lost_requests=3,
    )
    replica_kind = MemberKind.REPLICA
    ended = (
        departure(replica_kind, replica(9).replica_id, DepartureCause.ENGINE_STALLED, there[0].replica_id),
        departure(MemberKind.GATEWAY, "00ffee11", DepartureCause.PROCESS_DIED, "ab12cd34"),
        departure(MemberKind.CONTROLLER, "controller-77123", DepartureCause.PROCESS_DIED),
        departure(replica_kind, replica(8).replica_id, DepartureCause.STOPPED),
    )
    gateways = (gateway, replace(gateway, id="ef56ab78"))
    return CellReport("production-eu-west-1-cell-a", gateway, gateways, "/run", (model,), ended)


def shown(view: RenderableType) -> list[str]:
    """The lines on such a terminal."""
    terminal = Console(width=WIDTH, file=io.StringIO(), force_terminal=True, color_system=None, highlight=False)
    terminal.print(view)
    return terminal.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def fits(lines: list[str]) -> None:
    assert max(map(len, lines)) <= WIDTH
    assert "…" not in "".join(lines), "something is cut off"


@pytest.mark.parametrize("states", [["ready"], ["suspect", "cordoned", "draining", "ready", "ready"]], ids=len)
@pytest.mark.parametrize(("figure", "seconds"), [(0, 0.0), (10, 100.0), (10**8, 9_999.9)])
def test_nothing_is_cut_off(figure: int, seconds: float, states: list[str]) -> None:
    reported = report(figure, seconds, states)
    fits(shown(cell_view(reported)))
    fits(shown(lanes_view(reported, {MODEL: (3, time.monotonic() - 0.5)})))


def test_a_rate_is_of_the_time_since_the_last_look() -> None:
    before = {MODEL: (1, time.monotonic() - 4.0)}  # the gateway took long to answer
    assert any(", 2 placed/s" in line for line in shown(lanes_view(report(), before)))
    assert before[MODEL][0] == 9


def grouped() -> CellReport:
    """Two groups, of which one has a long name."""
    reported = report(10**6, 9_999.9)
    (model,) = reported.models
    names = ("on-demand-h100-of-eu-west-1", "own")
    state: dict[str, Any] = {"scaling": model.scaling, "controls": model.controls, "ready": 1, "leases": 10}
    state |= {"desired_replicas": 4, "tokens_per_s": 12_345.0, "finished": 1_234_567}
    groups = tuple(GroupReport(name=name, model=f"{MODEL}@{name}", **state) for name in names)
    there = tuple(replace(one, group=names[number % 2]) for number, one in enumerate(model.replicas))
    peers = (PeerReport("ap-northeast-1", 0.42, 0.0801, 0.86, "no_digest"),)
    return replace(reported, models=(replace(model, groups=groups, replicas=there, peers=peers),))


def test_names_that_are_too_long_go_on_in_the_next_line() -> None:
    lines = shown(cell_view(grouped()))
    fits(lines)
    text = "\n".join(lines)
    words = ("replica ", "leases", "KV used", "booked", "cordoned", "draining", "on-demand-h", "100-of-eu", "12000")
    for word in words:
        assert word in text
    regions = ("eu-central-1", "ap-northeast-1")
    cells = RegionsReport(
        regions[0], tuple(RegionAnswer(name, "https://x", True, 0.1, "", grouped()) for name in regions)
    )
    for view, last in ((status_view, "199998 ms"), (top_view, "1000012")):
        lines = shown(view(cells))
        fits(lines)
        assert sum(MODEL in line for line in lines) == 1
        assert sum(line.endswith(last) for line in lines) == 2


@pytest.mark.whole
@pytest.mark.parametrize("command", ["status", "top"])
def test_in_a_file_each_row_is_one_line_and_whole(command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with listening(saying(json.dumps(to_plain(grouped())).encode())) as url:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", command, "--url", url],
            capture_output=True,
            text=True,
            env=environment | {"RAYLANE_SECRET": "x"},
            check=True,
        )
    assert "…" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    if command == "status":
        assert ["on-demand-h100-of-eu-west-1", "ready", "12000", "1024", "100", "61%", "99%"] in [r[1:] for r in rows]
    else:
        assert [row[0] for row in rows if row[1:2] == ["0"]] == ["short", "medium-with-a-long-name", "long"]


def test_status_tells_replicas_apart_and_shows_each_column_whole() -> None:
    reported = report()
    lines = shown(cell_view(reported))
    text, rows = "\n".join(lines), [line.split() for line in lines]
    replicas = reported.models[0].replicas
    names = short_names([one.replica_id for one in (*replicas, replica(8), replica(9))])
    for one in replicas:
        assert [names[one.replica_id], one.state] in [row[:2] for row in rows]
    for words in (
        *("replicas", "waiting", "oldest wait", "head waits for", "running", "1/4", "prefill_budget"),
        *("finished", "cancelled", "failed", "rejected", "TTFT p50"),
        *("leases", "in engine", "queued there", "KV used", "booked"),
        "cordoned by alice: kernel update on node 7, pending request OPS-1234",
        "drains (spot_notice)",
    ):
        assert words in text


def test_status_shows_the_cap_that_keeps_itl_ms() -> None:
    reported = report(states=["ready", "ready"])
    (model,) = reported.models
    capped = replace(model.replicas[0], itl_class="chat")
    model = replace(model, replicas=(capped, model.replicas[1]))
    text = "\n".join(shown(cell_view(replace(reported, models=(model,)))))
    assert text.count("itl_ms of") == 1
    assert "at most 40 sequences (itl_ms of chat)" in text


@pytest.mark.whole
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("command", "last"), [("status", "drains (spot_notice)"), ("top", "tenant_concurrency")])
def test_what_is_drawn_live_is_whole_too(command: str, last: str) -> None:
    """On a real terminal of 80 columns, until Ctrl-C."""
    with listening(saying(json.dumps(to_plain(report())).encode())) as url:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", command, "--url", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment | {"TERM": "xterm-256color", "RAYLANE_SECRET": "x"},
        )
        os.close(theirs)
        try:
            text = ""
            while last not in text:
                text += os.read(ours, 1 << 16).decode(errors="replace")
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the terminal's other end is closed
                while os.read(ours, 1 << 16):
                    pass
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "").split("\n")
    fits(lines)
    assert "unschedulable" in "".join(lines) or command == "top"
