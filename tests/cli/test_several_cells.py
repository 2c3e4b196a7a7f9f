"""Cells of one spec on one machine: each has a run directory and a port of its own."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from cli.run_dir import State
from tests.cli.test_cli_run_dir import written
from tests.commands import ran

SPEC = """
name: x
regions:
  - {name: r, pools: [{name: p}]}
  - {name: s, pools: [{name: p}], endpoint: "http://127.0.0.1:PORT"}
models: [{name: m, source: org/hub-name, settings: {max_model_len: 100}}]
"""


def errors_of(*arguments: object) -> tuple[int, str]:
    result = ran(*arguments, code=None)
    return result.exit_code, result.stderr


def test_each_cell_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    spec = tmp_path / "spec.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec.write_text(SPEC.replace("PORT", str(port)))
        code, errors = errors_of("up", spec, "--region", "s")
        assert (code, f"gateway.port = {port} on 127.0.0.1: cannot listen" in errors) == (1, True)
    written(State("x-s", os.getpid(), psutil.Process().create_time(), "http://127.0.0.1:9", "/tmp/none", ready=True))
    code, errors = errors_of("up", spec, "--region", "s")
    assert (code, "cluster 'x-s' is already up" in errors) == (1, True)
    code, errors = errors_of("down", spec)
    assert (code, "has several cells; allowed: raylane down x-r | x-s" in errors) == (2, True)
