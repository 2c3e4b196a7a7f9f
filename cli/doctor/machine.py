"""Checks of the machine: cores, memory, shared memory, files, GPUs, disk, and the ports of a spec."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator

import psutil

from autoscaling.from_spec import scaling_problems
from cli.doctor.finding import Finding, Verdict
from cluster.artifacts import missing_sources
from cluster.spec import ClusterSpec, Model
from deployments.engine.simulated.costs import cost_problems

_REPLICA_BYTES = 1 << 30
"""What a CPU replica of a small model takes beyond its KV cache (measured: 0.8 to 1.0 GB)."""
_SIMULATED_BYTES = 110 << 20
"""What a simulated replica takes (measured: `docs/simulator.md`)."""
_BASE_BYTES = 2 << 30
"""What Ray, Serve and the gateway take."""
_OPEN_FILES = 4_096
_SHM_BYTES = 128 << 20


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
    if any(spec.pool_of(model, region).accelerator != "cpu" for model in real_models(spec) for region in spec.regions_of(model)):
        yield _gpus()


def real_models(spec: ClusterSpec) -> list[Model]:
    """The models that an engine runs."""
    return [model for model in spec.models if model.engine != "simulated"]


def _platform() -> Finding:
    found = f"{platform.system()} {platform.machine()}"
    good = found == "Linux x86_64"
    return Finding(
        "platform", Verdict.GOOD if good else Verdict.BAD, found, None if good else "run it on Linux x86_64, or in the container image of infra/"
    )


def _cores(spec: ClusterSpec) -> Finding:
    cores = os.cpu_count() or 1
    wanted = sum(model.replicas.count * model.cpus for model in spec.models)
    verdict = Verdict.GOOD if cores >= min(wanted, 2) else Verdict.WARN
    return Finding(
        "cores", verdict, f"{cores}; the spec's replicas book {wanted:g}", None if verdict is Verdict.GOOD else "lower models[].replicas.count"
    )


def _memory(spec: ClusterSpec) -> Finding:
    real = real_models(spec)
    kv = sum(model.replicas.count * (model.settings.kv_cache_memory_bytes or 4 << 30) for model in real)
    simulated = sum(model.replicas.count for model in spec.models if model not in real)
    wanted = _BASE_BYTES + kv + _REPLICA_BYTES * sum(model.replicas.count for model in real) + _SIMULATED_BYTES * simulated
    free = psutil.virtual_memory().available
    verdict = Verdict.GOOD if free >= wanted else Verdict.WARN
    found = f"{free / 2**30:.1f} GiB free; about {wanted / 2**30:.1f} GiB wanted"
    return Finding("memory", verdict, found, None if verdict is Verdict.GOOD else "lower models[].settings.kv_cache_memory_bytes or replicas.count")


def _shared_memory() -> Finding:
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    good = free >= _SHM_BYTES
    found = f"{free / 2**20:.0f} MiB free in /dev/shm"
    return Finding(
        "shared memory", Verdict.GOOD if good else Verdict.BAD, found, None if good else "mount -o remount,size=1G /dev/shm   (docker: --shm-size=1g)"
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft >= _OPEN_FILES
    return Finding("open files", Verdict.GOOD if good else Verdict.WARN, f"{soft} (hard limit {hard})", None if good else f"ulimit -n {_OPEN_FILES}")


def _disk() -> Finding:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    good = free >= 2 << 30
    return Finding(
        "disk",
        Verdict.GOOD if good else Verdict.WARN,
        f"{free / 2**30:.0f} GiB free in {folder}",
        None if good else f"free 2 GiB in {folder}, or set TMPDIR",
    )


def _port(spec: ClusterSpec) -> Finding:
    host, port = spec.gateway.host, spec.gateway.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding("gateway port", Verdict.WARN, f"{host}:{port}: {error.strerror}", "raylane down   (or: raylane up --port ANOTHER)")
    return Finding("gateway port", Verdict.GOOD, f"{host}:{port} is free")


def _models(spec: ClusterSpec) -> Finding:
    problems = [*missing_sources(spec), *cost_problems(spec), *scaling_problems(spec)]
    if problems:
        return Finding("model files", Verdict.BAD, "; ".join(problems), "copy them here, or correct models[].source")
    return Finding("model files", Verdict.GOOD, ", ".join(source for model in spec.models for source in model.sources) or "none: all is simulated")


def _gpus() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding(
            "GPUs", Verdict.BAD, "nvidia-smi is not found, but the spec has GPU pools", "install the NVIDIA driver, or use infra/specs/local.yaml"
        )
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
    names = done.stdout.strip().splitlines()
    return Finding(
        "GPUs", Verdict.GOOD if names else Verdict.BAD, ", ".join(names) or "none", None if names else "nvidia-smi   (its error says more)"
    )
