"""Servers under test, each a process on a Ray of its own, up until SIGINT or SIGTERM comes.

- `python -m benchmarks.serving.rivals serve-llm SPEC PORT`: `ray.serve.llm` with the model of a spec. Environment
  variables that Ray reads when it is imported decide its mode (`sides.py` sets them).
- `python -m benchmarks.serving.rivals empty FILE`: a Serve replica that does nothing, the yardstick for the gateway's
  memory. FILE gets its process id.
"""

import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from cli.private_ray import private_ray
from cluster.spec import load_spec
from deployments.engine.args import arguments
from deployments.engine.environment import replica_environment

_BOOKABLE_CPUS = 16
"""The cores that Ray may reserve, not the existing ones: `ray.serve.llm` reserves three for its ingress and its engine,
and would wait for ever on two."""


class Empty:
    """A deployment without a line of its own."""

    def pid(self) -> int:
        """The replica's process."""
        return os.getpid()


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


def serve_empty(pid_file: Path) -> None:
    """Deploys a replica that does nothing."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    handle = serve.run(serve.deployment(Empty).bind(), name="empty", route_prefix=None)
    pid_file.write_text(str(handle.pid.remote().result()), encoding="utf-8")


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """Starts Ray. A signal ends the block quietly, wherever the program is at that moment."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="bench-ray-") as folder:
        token_file = Path(folder) / "ray_token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32), encoding="utf-8")
        with private_ray(_BOOKABLE_CPUS, token_file):
            yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with own_ray():
        if sys.argv[1] == "empty":
            serve_empty(Path(sys.argv[2]))
        else:
            serve_llm(sys.argv[2], int(sys.argv[3]))
        signal.pause()
