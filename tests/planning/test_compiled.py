"""The compiled core: which build is used, and (long) that it gives the same outcomes bit for bit."""

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from planning import compiled

_RUN = "import planning, tests.planning.compiled_run as run; run.main()"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the sources that are compiled."""
    for name in compiled.sources():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path


def test_the_core_the_engine_model_and_the_simulators_loop_are_compiled() -> None:
    sources = compiled.sources()
    assert {"deployments/scheduling/scheduler.py", "deployments/engine_model/engine.py"} < set(sources)
    assert all((compiled.ROOT / name).is_file() for name in sources)
    assert not any(name.endswith(("__init__.py", "recorder.py")) for name in sources)


def test_a_build_is_current_until_a_source_changes(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "built"
    assert compiled.is_current(folder, root) is None
    folder.mkdir()
    (folder / compiled.MANIFEST).write_text(json.dumps(compiled.fingerprint(root)))
    assert compiled.is_current(folder, root)
    (root / "deployments/scheduling/scheduler.py").write_text("changed = 1\n")
    assert compiled.is_current(folder, root) is False


@pytest.mark.parametrize("asked", [None, "0"])
def test_compiled_modules_are_used_only_where_that_is_asked(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    monkeypatch.delenv(compiled.ASKED, raising=False)
    if asked is not None:
        monkeypatch.setenv(compiled.ASKED, asked)
    assert not compiled.use_compiled()
    assert not any(isinstance(finder, compiled.CompiledFinder) for finder in sys.meta_path)


@pytest.mark.long
def test_interpreted_modules_and_compiled_ones_are_not_mixed() -> None:
    """Else the process would crash."""
    subprocess.run([sys.executable, "infra/compile.py"], cwd=compiled.ROOT, check=True, timeout=600)
    code = "import deployments.scheduling, planning, planning.simulator.cell as cell; print(cell.__file__)"
    environment = {**os.environ, compiled.ASKED: "1", "PYTHONPATH": str(compiled.ROOT)}
    file = subprocess.check_output([sys.executable, "-c", code], cwd=compiled.ROOT, env=environment, text=True)
    assert file.strip().endswith(".py")


@pytest.mark.long
def test_compiled_and_interpreted_runs_agree_bit_for_bit() -> None:
    """Lanes, promotion, rejections, preemptions, prefixes, failures of replicas and scaling, in 12 random runs, and
    three cells that hand over and fail, in three; and the compiled build is what ran."""
    subprocess.run([sys.executable, "infra/compile.py"], cwd=compiled.ROOT, check=True, timeout=600)
    interpreted, fast = (_outcomes(asked) for asked in ("0", "1"))
    assert interpreted["file"].endswith(".py")
    assert fast["file"].endswith(EXTENSION_SUFFIXES[0])
    assert interpreted["features"] == fast["features"]
    assert all(count > 0 for count in fast["features"].values()), "what is to be compared must happen"
    assert interpreted["outcomes"] == fast["outcomes"]


@pytest.mark.long
def test_the_commands_run_compiled(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "infra/compile.py"], cwd=compiled.ROOT, check=True, timeout=600)
    trace = tmp_path / "trace.csv"
    rows = (f"2023-11-16 18:15:{second:02d}.0,100,10\n" for second in range(60))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    spec = "infra/specs/simulated-h100.yaml"
    environment = {**os.environ, compiled.ASKED: "1"}
    for command in (["simulate", spec, "--trace", str(trace)], ["plan", "infra/plans/one-region.yaml"]):
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *command],
            cwd=compiled.ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr


def _outcomes(asked: str) -> dict[str, dict[str, int] | list[str] | str]:
    environment = {**os.environ, compiled.ASKED: asked, "PYTHONPATH": str(compiled.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=compiled.ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]
