"""Servers under test, up until SIGINT or SIGTERM comes; those with a Ray have one of their own.

- `python -m benchmarks.serving.rivals serve-llm SPEC PORT`: `ray.serve.llm` with the model of a spec. Environment
  variables that Ray reads when it is imported decide its mode (`sides.py` sets them).
- `python -m benchmarks.serving.rivals smg|vllm-router SPEC PORT`: vLLM's own server behind that router.
- `python -m benchmarks.serving.rivals relay SPEC PORT`: the gateways of a cell without replicas, and as its only one
  the source of events on that port (`source.py`).
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from benchmarks.serving.sides import ROUTERS, router_command, vllm_command
from benchmarks.serving.source import facts_of
from cli.boot import Boot
from cli.private_cell import free_port
from cli.private_ray import private_ray
from cli.run_dir import RunDir
from cluster.spec import load_spec
from cluster.urls import http_url
from deployments.engine.args import arguments
from deployments.engine.environment import replica_environment

_BOOKABLE_CPUS = 16
"""The cores that Ray may reserve, not the existing ones: `ray.serve.llm` reserves three for its ingress and its engine,
and would wait for ever on two."""


def serve_llm(spec_path: str, port: int) -> None:
    """Deploys the application. `ray.serve.llm` is imported only now: its builder would start a Ray of its own."""
    from ray import serve
    from ray.serve.llm import LLMConfig, build_openai_app

    spec = load_spec(Path(spec_path))
    model = spec.models[0]
    engine = arguments(model)
    folder = engine.pop("model")
    del engine["served_model_name"]
    config = LLMConfig(
        model_loading_config={"model_id": model.name, "model_source": folder},
        engine_kwargs=engine,
        accelerator_config={"kind": "cpu"},
        deployment_config={"num_replicas": 1, "autoscaling_config": None},
        runtime_env={"env_vars": replica_environment(model, spec.pool_of(model, spec.regions[0]))},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_openai_app({"llm_configs": [config]}), name="llm", route_prefix="/")
    print(f"ready on port {port}", flush=True)


def serve_routed(router: str, spec_path: Path, port: int) -> None:
    """Runs both until one has ended."""
    spec, engine_port = load_spec(spec_path), free_port()
    routed = router_command(router, f"http://127.0.0.1:{engine_port}", port)
    children = [subprocess.Popen(command) for command in (vllm_command(spec, engine_port), routed)]
    try:
        os.wait()
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def serve_relay(spec_path: Path, source_port: int) -> None:
    """Deploys the cell, and registers the source as replicas register themselves."""
    import ray

    from deployments.cell.directory import REGISTER_EVERY_S, find_directory

    spec = load_spec(spec_path)
    run_dir, url = RunDir(spec.name), http_url(spec.gateway.host, spec.gateway.port)
    run_dir.create()
    Boot(spec, spec.regions[0], run_dir, url, threading.Event()).run(run_dir.new_secret("secret"))
    while True:
        ray.get(find_directory().register.remote(facts_of(source_port)))
        time.sleep(REGISTER_EVERY_S)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A signal ends the block quietly, wherever the program is at that moment."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        yield


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """Starts Ray."""
    with tempfile.TemporaryDirectory(prefix="bench-ray-") as folder:
        token_file = Path(folder) / "ray_token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32), encoding="utf-8")
        with private_ray(_BOOKABLE_CPUS, token_file):
            yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with interruptible():
        if sys.argv[1] in ROUTERS:
            serve_routed(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
            sys.exit("the engine or its router has ended")
        with own_ray():
            if sys.argv[1] == "relay":
                serve_relay(Path(sys.argv[2]), int(sys.argv[3]))
            else:
                serve_llm(sys.argv[2], int(sys.argv[3]))
            signal.pause()
