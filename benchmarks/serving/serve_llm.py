"""A server under test: `ray.serve.llm` with the model of a spec, on a Ray of its own: `python -m benchmarks.serving.serve_llm SPEC PORT`.

Which mode it runs in is decided by environment variables that Ray reads when it is imported (`sides.py` sets them). It ends on SIGINT or SIGTERM.
"""

import signal
import sys
from pathlib import Path

from benchmarks.serving.own_ray import own_ray
from cluster.spec import load_spec
from deployments.engine.args import arguments
from deployments.engine.environment import replica_environment


def main(spec_path: str, port: int) -> None:
    """Serves until it is told to end."""
    with own_ray():
        _serve(spec_path, port)
        print(f"ready on port {port}", flush=True)
        signal.pause()


def _serve(spec_path: str, port: int) -> None:
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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
