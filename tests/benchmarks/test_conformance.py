"""How the flags that vLLM's tests give their server become a spec and a command; the tests themselves are run by
`benchmarks.conformance`."""

import os
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
import yaml

from benchmarks.conformance.__main__ import differing, outcomes_in
from benchmarks.conformance.served import command_of, flags_read, spec_of
from benchmarks.harness import ROOT
from cluster.spec import parse_spec
from deployments.gateway.entrance import digest_of

FLAGS = [
    "--dtype", "bfloat16", "--max-model-len", "2048", "--enforce-eager", "--enable-lora", "--lora-modules", "one=/a",
    "two=/b", "--max-lora-rank", "64", "--no-enable-prefix-caching", "--enable-prompt-tokens-details",
    "--tool-call-parser=hermes", "--limit-mm-per-prompt", '{"image": 2}',
]  # fmt: skip


def test_flags_are_read_as_vllm_reads_them() -> None:
    assert flags_read(["--a-b", "1", "--c", "--d=x", "--e", "f", "g"]) == {
        "a_b": 1,
        "c": True,
        "d": "x",
        "e": ["f", "g"],
    }
    assert flags_read([]) == {}


def test_a_spec_has_what_the_flags_say(tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(spec_of("org/Some-Model", tmp_path, FLAGS, None)))
    (model,) = spec.models
    assert (model.name, model.source, spec.tenants) == ("org/Some-Model", str(tmp_path), ())
    settings = model.settings
    assert (settings.max_model_len, settings.enforce_eager, settings.prefix_caching, settings.max_lora_rank) == (
        2_048,
        True,
        False,
        64,
    )
    assert settings.tool_call_parser == "hermes"
    assert [(adapter.name, adapter.source) for adapter in model.adapters] == [("one", "/a"), ("two", "/b")]
    assert settings.extra["enable_prompt_tokens_details"] is True
    assert settings.extra["limit_mm_per_prompt"] == {"image": 2}


@pytest.mark.parametrize("side", ["bare", "raylane"])
def test_both_sides_are_started_from_the_spec(tmp_path: Path, side: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for mark in ("config.json", "adapter_config.json"):
            (tmp_path / name / mark).write_text("{}")
    flags = [
        "--lora-modules",
        f"one={tmp_path / 'a'}",
        "--max-logprobs",
        "30",
        "--served-model-name",
        "m",
        "--root-path",
        "/llm",
    ]
    spec = parse_spec(yaml.safe_dump(spec_of("other", tmp_path / "b", flags, "key")))
    assert spec.tenants[0].keys == (digest_of("key"),)
    assert spec.gateway.root_path == "/llm"
    command = command_of(side, spec, tmp_path / "spec.yaml")
    if side == "raylane":
        assert command[-2:] == ["up", str(tmp_path / "spec.yaml")]
    else:
        given = flags_read(command[3:])
        assert (given["served_model_name"], given["port"], given["max_logprobs"]) == ("m", spec.gateway.port, 30)
        assert given["root_path"] == "/llm"
        assert given["lora_modules"] == f"one={tmp_path / 'a'}"


# Ran with SIGINT ignored: starts a server from the thread that the tests' servers are started from, and stops it.
BACKGROUND = """
import asyncio, signal, sys
from pathlib import Path
from benchmarks.conformance.stand_in import FOLDER, sides
from cli.server_process import ServerProcess

async def work():
    code = "import time; print(flush=True); time.sleep(600)"
    async def is_ready():
        return (FOLDER / "log").stat().st_size > 0
    server = ServerProcess([sys.executable, "-c", code], {}, is_ready, FOLDER / "log")
    await server.start()
    return await server.stop()

assert sides._thread.submit(asyncio.run, work()).result() == 0
assert "KeyboardInterrupt" in (FOLDER / "log").read_text()
"""


@pytest.mark.whole
def test_it_runs_as_a_background_job_whose_interrupts_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/utils.py").write_text("class RemoteOpenAIServer: ...")
    own = {
        f"CONFORMANCE_{name}": value
        for name, value in {"SIDE": "bare", "FOLDER": str(tmp_path), "MODEL": "m", "ADAPTER": "a"}.items()
    }
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = subprocess.run(
        [sys.executable, "-c", ignoring + BACKGROUND],
        env=os.environ | own | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_outcomes_are_read_from_pytests_report(tmp_path: Path) -> None:
    bad = f"<failure message={quoteattr('it <failed>')}>at line 1</failure>"
    cases = (
        '<testcase classname="tests.a.test_b" name="x[y.z]"/><testcase classname="tests.a.test_b.TestC" '
        f'name="y">{bad}</testcase>'
    )
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    outcomes = outcomes_in(tmp_path / "report.xml")
    failed = {"node": "tests/a/test_b.py::TestC::y", "outcome": "failure", "message": "it <failed>\nat line 1"}
    assert outcomes == {
        "tests.a.test_b::x[y.z]": {"node": "tests/a/test_b.py::x[y.z]", "outcome": "passed"},
        "tests.a.test_b.TestC::y": failed,
    }
    assert differing(outcomes, outcomes) == []
    assert differing(outcomes, {**outcomes, "tests.a.test_b.TestC::y": {**failed, "outcome": "passed"}}) == [
        failed["node"]
    ]
