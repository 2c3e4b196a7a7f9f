"""How Ray Serve asks for a model's number of replicas: every model is scaled by our own policy, which is named here by its import path alone.

Serve's own bounds, factors and delays are neutral: what bounds and slows is in the spec, applied by the policy, logged and explained with it. A model
whose count is fixed goes the same way, so that operators' holds and pins, and a live change of the count, mean the same everywhere.
"""

from pathlib import Path

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from cluster.spec import ClusterSpec, Gateway, Model, Region

POLICY = "autoscaling.serve.policy:ScalingPolicy"
_MOST = 10_000
"""Serve's own bound, which is never to decide anything."""


def scaling_config(spec: ClusterSpec, model: Model, region: Region, run_dir: Path) -> AutoscalingConfig:
    """Serve's autoscaling of `model` in the cell of `region`. `run_dir` is on the node of Serve's controller."""
    told = spec.model_copy(update={"models": _scaled(spec, model, region), "tenants": (), "gateway": Gateway()})
    arguments = {"spec": told.model_dump_json(), "model": model.name, "region": region.name, "run_dir": str(run_dir)}
    return AutoscalingConfig(
        min_replicas=0,
        initial_replicas=model.replicas.count,
        max_replicas=_MOST,
        upscaling_factor=1.0,
        downscaling_factor=1.0,
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        downscale_to_zero_delay_s=0.0,
        policy=AutoscalingPolicy(policy_function=POLICY, policy_kwargs=arguments),
    )


def _scaled(spec: ClusterSpec, model: Model, region: Region) -> tuple[Model, ...]:
    """The model, and those that share its region's nodes: what they take is not there for it."""
    return (model, *(one for one in spec.models if one is not model and region in spec.regions_of(one)))
