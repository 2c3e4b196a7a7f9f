"""The command as a user runs it: a process of its own, its exit code, its JSON, its errors, and Ctrl-C."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ran

pytestmark = pytest.mark.whole  # each starts processes

MAIN = "import typer; from cli.bench import bench; typer.run(bench)"


async def start(*options: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        MAIN,
        *options,
        stdout=pipe,
        stderr=pipe,
        env={"COLUMNS": "300", "PATH": "/usr/bin:/bin"} | (env or {}),
    )


async def run(*options: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    process = await start(*options, env=env)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_json_on_standard_output_and_the_table_beside_it(server: Any) -> None:
    options = "--concurrency 4 --requests 20 --warmup 3 --input-tokens uniform:4:9 --json -"
    code, out, err = await run("--url", server.url, *options.split())
    assert code == 0
    report = json.loads(out)
    assert (report["completed"], report["failed"], report["unfinished"], report["errors"]) == (20, 0, 0, {})
    assert report["model_id"] == "good"
    assert report["p99_ttft_ms"] > 0
    assert "TTFT" in err
    assert len(server.bodies) == 23


async def test_a_rate_a_chat_and_a_file(server: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    options = ("--rate", "200", "--duration", "0.5", "--endpoint", "chat", "--output-tokens", "3", "--json", str(file))
    code, out, _ = await run("--url", server.url, *options)
    assert code == 0
    assert "requests/s" in out
    report = json.loads(file.read_text())
    assert report["completed"] > 50
    assert report["max_late_ms"] >= 0


async def test_a_trace_is_replayed(server: Any, tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:{second:02}.0,{10 * (second + 1)},{second + 1}" for second in range(10)]
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    code, out, _ = await run(
        "--url", server.url, "--trace", str(trace), "--requests", "5", "--rate", "50", "--json", "-"
    )
    assert code == 0
    report = json.loads(out)
    tokens = [report[f"total_{kind}_tokens"] for kind in ("input", "cached", "output")]
    assert tokens == [150, None, 15]


async def test_failed_requests_are_listed_and_decide_the_exit_code(server: Any) -> None:
    options = ("--url", server.url, "--model", "refused", "--concurrency", "2", "--requests", "4")
    code, out, _ = await run(*options)
    assert code == 1
    assert "HTTP 503 queue_full" in out
    assert "the queue is full" in out


async def test_the_key_comes_from_the_environment(server: Any) -> None:
    options = ("--url", server.url, "--concurrency", "1", "--requests", "1", "--api-key-env", "MY_KEY", "--json", "-")
    code, out, _ = await run(*options, env={"MY_KEY": "s3cret"})
    assert code == 0
    assert "s3cret" not in out
    assert server.headers[0]["Authorization"] == "Bearer s3cret"


async def test_ctrl_c_prints_what_there_is(server: Any) -> None:
    process = await start(
        "--url", server.url, "--model", "slow", "--concurrency", "2", "--requests", "1000", "--json", "-"
    )
    while len(server.bodies) < 7:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130
    report = json.loads(out)
    assert report["interrupted"] is True
    assert report["completed"] >= 4
    assert report["unfinished"] == 2
    assert b"interrupted" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("--rate", "--concurrency")),
        (("--rate", "0"), ("--rate", "greater than or equal to 0.001")),
        (("--rate", "nan"), ("--rate", "less than or equal to 1000000")),
        (("--rate", "1", "--concurrency", "2"), ("--rate", "--concurrency 2", "one of them")),
        (("--rate", "1", "--requests", "0"), ("--requests", "greater than or equal to 1")),
        (("--rate", "1", "--requests", "1.5"), ("--requests", "integer")),
        (("--rate", "fast"), ("--rate", "number")),
        (("--rate", "1", "--input-tokens", "abc"), ("--input-tokens", "abc", "uniform:LOW:HIGH")),
        (("--rate", "1", "--output-tokens", "uniform:9:3"), ("--output-tokens", "uniform:9:3", "LOW <= HIGH")),
        (("--rate", "1", "--url", "localhost"), ("--url", "localhost", "http://HOST:PORT")),
        (("--rate", "1", "--endpoint", "images"), ("--endpoint", "images", "completions")),
        (("--trace", "/nowhere.csv"), ("--trace", "/nowhere.csv", "cannot be read")),
        (("--rate", "1", "--json", "/nowhere/report.json"), ("--json", "/nowhere/report.json", "does not exist")),
        (("--rate", "1", "--json", "/tmp"), ("--json", "/tmp", "is a folder")),
        (("--rate", "1", "--api-key-env", "NOT_SET"), ("--api-key-env", "NOT_SET", "allowed")),
        (("--rate", "1e6", "--duration", "1e6"), ("--duration", "1e+06", "at most")),
    ],
)
def test_bad_input_names_the_option_the_value_and_what_is_allowed(
    options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """In this process: all of it is refused before anything begins."""
    result = ran("bench", *options, code=2, columns=300)
    for word in words:
        assert word in result.stderr


async def test_an_endpoint_that_is_not_there_is_one_clear_line() -> None:
    code, _, err = await run("--url", "http://127.0.0.1:9", "--concurrency", "1")
    assert code == 1
    assert "http://127.0.0.1:9: cannot be reached" in err
    assert "Traceback" not in err
