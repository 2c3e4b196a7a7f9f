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
from typing import Any

import pytest
from rich.console import Console, RenderableType

from cli import status, top
from cli.departed import short_names
from cli.regions import AllCells, RegionView, status_view, top_view
from tests.http_server import Handler, listening

MODEL = "mistralai/Mistral-Small-3.2-24B-Instruct-2506-FP8-dynamic"
WIDTH = 80


def replica(
    number: int, state: str = "ready", why: str = "kernel update on node 7, pending request OPS-1234"
) -> dict[str, Any]:
    return {
        "replica_id": f"engine-{MODEL.replace('/', '-')}#{uuid.UUID(int=number * 7**44)}",
        "state": state,
        "cordon": {"by": "alice", "why": why} if state == "cordoned" else None,
        "drains_for": "spot_notice" if state == "draining" else None,
        "leases": 12_000,
        "booked_kv_tokens": 65_000,
        "kv_tokens": 65_536,
        "engine_running": None if state == "suspect" else 1_024,
        "engine_waiting": 100,
        "kv_usage": 0.61,
    }


def lane(name: str, figure: int = 100, seconds: float = 130.9) -> dict[str, Any]:
    return {
        "name": name,
        "waiting": figure % 100_000,
        "work_s": seconds,
        "eta_s": [seconds, seconds],
        "eta_covered": figure,
        "eta_estimated": figure,
        "oldest_wait_s": seconds,
        "head_waits_for": "prefill_backlog",
    }


def departure(kind: str, who: str, cause: str, planned: bool = False, by: str | None = None) -> dict[str, Any]:
    now = time.time()
    lost = {"broken": 500, "placed_again": 2_700, "tokens": 41_000_000}
    reported = {
        "kind": kind,
        "who": who,
        "model": MODEL,
        "cause": cause,
        "planned": planned,
        "at_unix_s": now,
        "lost": lost,
        "detail": "",
    }
    return {**reported, "replaced_by": by, "ready_unix_s": now + 1_000.0 if by else None, "back_unix_s": None}


def report(
    figure: int = 123_456, seconds: float = 54.321, replicas: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    there = replicas or [
        replica(number, state) for number, state in enumerate(("ready", "cordoned", "draining", "suspect"), 1)
    ]
    gateway = {
        "id": "ab12cd34",
        "url": "http://127.0.0.1:8000",
        "uptime_s": 259_277.0,
        "flows": 140,
        "failing_logs": [],
    }
    scaling = {
        "requested": 5,
        "applied": 4,
        "starting": 1,
        "reason": "slo_burn",
        "at_unix_s": time.time(),
        "start_up_eta_s": 42.0,
    }
    model = {
        "name": MODEL,
        "engine": "simulated",
        "desired_replicas": 4,
        "owner": "ab12cd34",
        "epoch": 17,
        "lanes": [
            lane("short", figure, seconds),
            lane("medium-with-a-long-name", figure, seconds),
            lane("long", figure, seconds),
        ],
        "leases": 52,
        "placed": 9,
        "endings": {"finished": figure, "cancelled": figure // 10, "failed": figure // 100, "refused": 3},
        "rejections": {"short/overloaded": figure, "long/tenant_concurrency": figure, "long/queue_full": 12},
        "tokens_per_s": 12_345.0,
        "replicas": there,
        "scaling": {**scaling, "alarms": ["stale", "unschedulable"], "overdue_s": None},
        "controls": [
            {
                "kind": "hold",
                "replicas": 4,
                "until_unix_s": time.time() + 4_000,
                "by": "alice",
                "why": "launch day, keep it warm",
            }
        ],
        "ttft_ms": {"p50": seconds, "p95": 10 * seconds, "p99": 20 * seconds},
        "lost_requests": 3,
    }
    ended = [
        departure("replica", replica(9)["replica_id"], "engine_stalled", by=there[0]["replica_id"]),
        departure("gateway", "00ffee11", "process_died", by="ab12cd34"),
        departure("controller", "controller-77123", "process_died"),
        departure("replica", replica(8)["replica_id"], "stopped", planned=True),
    ]
    head = {
        "cluster": "production-eu-west-1-cell-a",
        "gateway": gateway,
        "gateways": [gateway, {**gateway, "id": "ef56ab78"}],
    }
    return {**head, "models": [model], "departures": ended}


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
    reported = report(figure, seconds, [replica(number, state) for number, state in enumerate(states, 1)])
    fits(shown(status._view(reported)))
    fits(shown(top._view(reported, {MODEL: 3})))


def grouped() -> dict[str, Any]:
    """Two groups, of which one has a long name."""
    reported = report(10**6, 9_999.9)
    (model,) = reported["models"]
    names = ("on-demand-h100-of-eu-west-1", "own")
    for number, one in enumerate(model["replicas"]):
        one["group"] = names[number % 2]
    figures = {"tokens_per_s": 12_345.0, "ready": 1, "desired_replicas": 4, "leases": 10, "finished": 1_234_567}
    own = {name: model[name] for name in ("scaling", "controls")}
    model["groups"] = [{"name": name, **figures, **own} for name in names]
    return reported


def test_names_that_are_too_long_go_on_in_the_next_line() -> None:
    lines = shown(status._view(grouped()))
    fits(lines)
    text = "\n".join(lines)
    for word in (
        "replica ",
        "leases",
        "KV used",
        "booked",
        "cordoned",
        "draining",
        "on-demand-h",
        "100-of-eu",
        "12000",
    ):
        assert word in text
    content = grouped()
    content["models"][0]["peers"] = [
        {"cell": "ap-northeast-1", "age_s": 0.42, "rtt_s": 0.0801, "trust": 0.86, "barred": "no_digest"}
    ]
    seen = [RegionView(name, "https://x", True, 0.1, "", content) for name in ("eu-central-1", "ap-northeast-1")]
    for view, last in ((status_view, "199998 ms"), (top_view, "1000012")):
        lines = shown(view(AllCells("eu-central-1", tuple(seen))))
        fits(lines)
        assert sum(MODEL in line for line in lines) == 1
        assert sum(line.endswith(last) for line in lines) == 2


@pytest.mark.parametrize("command", ["status", "top"])
def test_in_a_file_each_row_is_one_line_and_whole(command: str) -> None:
    class Grouped(Handler):
        def do_GET(self) -> None:
            self.answer(200, json.dumps(grouped()).encode())

    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with listening(Grouped) as url:
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
    lines = shown(status._view(reported))
    text = "\n".join(lines)
    names = short_names(
        [one["replica_id"] for one in reported["models"][0]["replicas"]]
        + [replica(8)["replica_id"], replica(9)["replica_id"]]
    )
    rows = [line.split() for line in lines]
    for one in reported["models"][0]["replicas"]:
        assert [names[one["replica_id"]], one["state"]] in [row[:2] for row in rows]
    for column in (
        "replicas",
        "waiting",
        "oldest wait",
        "head waits for",
        "running",
        "finished",
        "cancelled",
        "failed",
        "rejected",
        "TTFT p50",
    ):
        assert column in text
    for column in ("leases", "in engine", "queued there", "KV used", "booked", "prefill_backlog", "1/4"):
        assert column in text
    assert "cordoned by alice: kernel update on node 7, pending request OPS-1234" in text
    assert "drains (spot_notice)" in text


def test_status_shows_the_cap_that_keeps_itl_ms() -> None:
    capped = replica(1) | {"max_sequences": 40, "itl_class": "chat"}
    text = "\n".join(shown(status._view(report(replicas=[capped, replica(2)]))))
    assert text.count("itl_ms of") == 1
    assert "at most 40 sequences (itl_ms of chat)" in text


def test_a_cell_whose_directory_tells_of_no_departures_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = report()
    del reported["departures"]
    assert "ended" not in "\n".join(shown(status._view(reported)))


class Page(Handler):
    """A gateway that has only this report."""

    def do_GET(self) -> None:
        self.answer(200, json.dumps(report()).encode())


@pytest.mark.whole
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("command", "last"), [("status", "drains (spot_notice)"), ("top", "tenant_concurrency")])
def test_what_is_drawn_live_is_whole_too(command: str, last: str) -> None:
    """On a real terminal of 80 columns, until Ctrl-C."""
    with listening(Page) as url:
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
