"""The sides of the comparison, all with the same model folder, engine settings and engine environment.

- `raylane`: `raylane up` with one replica.
- `bare`: vLLM's own server, with nothing in front. It writes no access log (ours does): it is to have every advantage.
- `serve-llm`: `ray.serve.llm` as its documentation starts it (Serve's Python proxy, an ingress, a handle to the
  engine).
- `serve-llm-direct`: the same with direct streaming (HAProxy in front of vLLM's app inside the replica).
- `smg`, `vllm-router`: those routers (`infra/tools.sh routers` installs them) in front of vLLM's own server.
- `checkout`: `raylane up` of another checkout, installed in its own `.venv`: whether a change made anything slower.

All are started from the shipped local spec with one replica and a free port.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import yaml

from benchmarks.harness import ROOT
from benchmarks.server_process import ServerProcess
from cli.private_cell import free_port
from cluster.files import shipped
from cluster.spec import ClusterSpec, parse_spec
from deployments.engine.args import arguments
from deployments.engine.environment import replica_environment


def one_replica_spec(port: int, source: str | None = None, settings: dict[str, Any] | None = None) -> str:
    """The YAML of the local spec with one replica, the gateway on `port`, and optionally another model or other engine
    settings."""
    spec = yaml.safe_load(shipped("specs/local.yaml").read_text(encoding="utf-8"))
    spec["name"] = f"bench-{port}"
    spec["gateway"]["port"] = port
    model = spec["models"][0]
    model["replicas"] = {"count": 1}
    model["source"] = source or model["source"]
    model["settings"] |= settings or {}
    return str(yaml.safe_dump(spec, sort_keys=False))


def write_spec(folder: Path, text: str) -> ClusterSpec:
    """Writes `spec.yaml` into the folder and returns what it says."""
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    return parse_spec(text)


SideName = Literal["raylane", "bare", "serve-llm", "serve-llm-direct", "smg", "vllm-router", "checkout"]
ROUTERS = ("smg", "vllm-router")
SIDES: tuple[SideName, ...] = ("raylane", "bare", "serve-llm", "serve-llm-direct", "smg", "vllm-router")
"""Those that need nothing but this checkout."""
_READY = {
    "raylane": "/ready?model=*",
    "bare": "/health",
    "serve-llm": "/v1/models",
    "serve-llm-direct": "/v1/models",
    "smg": "/health",
    "vllm-router": "/health",
    "checkout": "/ready?model=*",
}
_FOREIGN = ("VLLM_CPU_KVCACHE_SPACE", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "PYTHONPATH")
_ONE_PROCESS = {"RAYLLM_VLLM_ENGINE_CLS": "benchmarks.serving.one_process_engine.OneProcessEngine"}
_DIRECT_STREAMING = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1"}
_PROBE_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Side:
    """A server under test: where it answers, its process, and the folder of its spec and logs."""

    name: SideName
    url: str
    server: ServerProcess
    folder: Path


def make_side(
    name: SideName, spec: ClusterSpec, folder: Path, checkout: Path | None = None, flags: Sequence[str] = ()
) -> Side:
    """The side of that name, not yet started. `folder` holds `spec.yaml`, and gets the logs; `checkout` is the other
    checkout's folder, `flags` are more of vLLM's own (`bare`)."""
    if name == "checkout":
        spec, folder = _moved(spec, folder / "checkout")
    port = spec.gateway.port if name in ("raylane", "checkout") else free_port()
    url = f"http://127.0.0.1:{port}"
    is_ready = functools.partial(_answers, url, _READY[name], spec.models[0].name)
    command, environment = [*_command(name, spec, folder, port, checkout), *flags], _environment(name, spec, folder)
    return Side(name, url, ServerProcess(command, environment, is_ready, folder / f"{name}.log"), folder)


async def _answers(url: str, path: str, model: str) -> bool:
    """Whether `path` answers 200 and then a completion does: `ray.serve.llm` lists its models before its engine is
    up."""
    body = {"model": model, "prompt": "a", "max_tokens": 1}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PROBE_PATIENCE_S)) as session:
            async with session.get(url + path) as response:
                if response.status != 200:
                    return False
            async with session.post(url + "/v1/completions", json=body) as response:
                return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def _moved(spec: ClusterSpec, folder: Path) -> tuple[ClusterSpec, Path]:
    """The same spec for a second cluster of ours: another name and port, written into a folder of its own."""
    port = free_port()
    moved = spec.model_copy(
        update={"name": f"{spec.name}-checkout", "gateway": spec.gateway.model_copy(update={"port": port})}
    )
    text = yaml.safe_load((folder.parent / "spec.yaml").read_text(encoding="utf-8"))
    text["name"], text["gateway"]["port"] = moved.name, port
    folder.mkdir()
    (folder / "spec.yaml").write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    return moved, folder


def _command(name: SideName, spec: ClusterSpec, folder: Path, port: int, checkout: Path | None) -> list[str]:
    match name:
        case "checkout":
            if checkout is None:
                raise ValueError("the side `checkout` needs the folder of another checkout")
            home = str(checkout.resolve())  # Ray's workers look into the folder that a driver is started in first
            return ["env", f"--chdir={home}", f"{home}/.venv/bin/raylane", "up", str(folder / "spec.yaml")]
        case "raylane":
            return [sys.executable, "-m", "cli.main", "up", str(folder / "spec.yaml")]
        case "bare":
            return vllm_command(spec, port)
        case "serve-llm" | "serve-llm-direct" | "smg" | "vllm-router":
            module = [sys.executable, "-m", "benchmarks.serving.rivals"]
            return [*module, name.removesuffix("-direct"), str(folder / "spec.yaml"), str(port)]


def vllm_command(spec: ClusterSpec, port: int) -> list[str]:
    """vLLM's own server."""
    own = ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    flags = [*own, *vllm_flags(arguments(spec.models[0]))]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]


def router_command(name: str, worker_url: str, port: int) -> list[str]:
    """One of `ROUTERS` in front of one worker. Installs it where it is missing."""
    done = subprocess.run([ROOT / "infra" / "tools.sh", "routers"], stdout=subprocess.PIPE, text=True, check=True)
    worker = ["--worker-urls", worker_url, "--worker-startup-check-interval", "1", "--policy", "round_robin"]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    log = ["--log-level", "warn" if name == "smg" else "warning"]
    own = ["launch", "--backend", "vllm", "--disable-tokenizer-autoload"] if name == "smg" else []
    return [f"{done.stdout.strip()}/{name}", *own, "--host", "127.0.0.1", "--port", str(port), *worker, *metrics, *log]


async def read_status(session: aiohttp.ClientSession, url: str, folder: Path) -> dict[str, Any]:
    """The gateway's report; `folder` is the one that its side was made with. Raises aiohttp.ClientError, OSError, and
    ValueError before there is a secret."""
    (secret,) = (folder / "home").glob("*/secret")
    headers = {"Authorization": f"Bearer {secret.read_text(encoding='utf-8')}"}
    async with session.get(url + "/raylane/status", headers=headers) as response:
        response.raise_for_status()
        report: dict[str, Any] = await response.json()
    return report


@asynccontextmanager
async def stack_up(spec: ClusterSpec, folder: Path) -> AsyncIterator[ServerProcess]:
    """`raylane up` of a spec, whose files are in `folder`, from when all replicas of its model are ready. Raises
    ServerError."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
    url, count = f"http://{spec.gateway.host}:{spec.gateway.port}", sum(v.replicas.count for v in spec.views_in())

    async def is_whole() -> bool:
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
                replicas = (await read_status(session, url, folder))["models"][0]["replicas"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return [replica["state"] for replica in replicas].count("ready") == count

    command = [sys.executable, "-m", "cli.main", "up", str(folder / "spec.yaml")]
    server = ServerProcess(command, caller_environment(folder), is_whole, folder / "up.log")
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def caller_environment(folder: Path) -> dict[str, str]:
    """The caller's environment, less what would change an engine. `folder` gets what a cell keeps."""
    kept = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    return kept | {"RAYLANE_HOME": str(folder / "home")}


def _environment(name: SideName, spec: ClusterSpec, folder: Path) -> dict[str, str]:
    """The caller's environment, less what would change an engine, plus what the side needs."""
    env = caller_environment(folder)
    if name in ("raylane", "checkout"):
        return env  # `up` gives its replica the engine's environment itself
    model = spec.models[0]
    env |= replica_environment(model, spec.pool_of(model, spec.regions[0]))
    if name in ("bare", *ROUTERS):
        return env
    env |= _ONE_PROCESS | {"PYTHONPATH": str(ROOT)}
    return env | _DIRECT_STREAMING | _haproxy(folder) if name == "serve-llm-direct" else env


def _haproxy(folder: Path) -> dict[str, str]:
    """HAProxy's own pages listen on fixed ports of all interfaces, and its files have fixed names: at least none that
    somebody else has."""
    ports = {
        f"RAY_SERVE_{name}_PORT": str(free_port())
        for name in ("HAPROXY_METRICS", "HAPROXY_STATS", "FALLBACK_PROXY_HTTP")
    }
    files = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_FILE": "server-state",
        "SERVER_STATE_BASE": "",
    }
    return ports | {f"RAY_SERVE_HAPROXY_{name}": str(folder / file) for name, file in files.items()}


def vllm_flags(values: Mapping[str, Any]) -> list[str]:
    """vLLM's arguments by their Python names as flags of its command line."""
    flags: list[str] = []
    for key, value in values.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            flags += [f"--{flag}", *map(str, value)] if value else []
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags
