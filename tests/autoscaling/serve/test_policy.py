"""The policy class as Serve's controller makes and asks it, with Ray's own context class, in a process that is in no
Ray cluster."""

import gc
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from autoscaling.scaler.decision import ScalingDecision
from autoscaling.serve.policy import ServePolicy
from deployments.app import scaling_config
from deployments.decisions import Input
from deployments.wire import decoder
from tests.autoscaling.setups import entries_of, replayed, spec_of


def made(run_dir: Path, **given: Any) -> tuple[ServePolicy, AutoscalingConfig]:
    """As Serve makes it: from the pickled class and its JSON arguments."""
    spec = spec_of(period_s=0.2, **given)
    config = scaling_config(spec, spec.models[0], spec.regions[0], run_dir)
    arguments = json.loads(json.dumps(config.policy.policy_kwargs))
    return config.policy.get_policy()(**arguments), config


def context(target: int, running: int, config: AutoscalingConfig) -> AutoscalingContext:
    return AutoscalingContext(
        deployment_id=None,
        deployment_name="engine-m",
        app_name="model-m",
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=[],
        total_num_requests=0,
        total_queued_requests=0,
        aggregated_metrics=None,
        raw_metrics=None,
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=10_000,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=time.time(),
        config=config,
    )


def until(holds: Callable[[], object], do: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        do()
        time.sleep(0.01)


def test_blind_it_keeps_the_number_and_says_so_in_the_log(tmp_path: Path) -> None:
    policy, config = made(tmp_path, count=3)
    serve = _apply_autoscaling_config(policy)
    logs = tmp_path / "logs"
    until(lambda: len(entries_of(logs)) > 3, lambda: serve(context(3, 3, config)))
    assert serve(context(3, 3, config))[0] == 3
    log = entries_of(logs)
    found = replayed(log)
    assert (found.counted, found.difference) == (0, None)
    assert decoder(ScalingDecision)(next(one for one in log if isinstance(one, Input)).decision).reason == "stale"


def test_it_is_neutral_in_serves_own_wrapper(tmp_path: Path) -> None:
    policy, config = made(tmp_path)
    serve = _apply_autoscaling_config(policy)
    for target in (0, 1, 5, 1_000):
        assert serve(context(target, target // 2, config))[0] == target
    assert (config.min_replicas, config.initial_replicas, config.upscale_delay_s) == (0, 1, 0.0)


def test_its_thread_has_a_name_and_ends_with_it(tmp_path: Path) -> None:
    policy, config = made(tmp_path)
    serve = _apply_autoscaling_config(policy)
    serve(context(1, 1, config))
    thread = policy.thread
    assert thread.name == "raylane-scaling-m"
    assert thread in threading.enumerate()
    del policy, serve
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_spec_that_cannot_be_followed_stops_nothing(tmp_path: Path) -> None:
    policy = ServePolicy("{}", "m", "here", str(tmp_path))
    _, config = made(tmp_path)
    assert [policy(context(number, 0, config)) for number in (2, 0)] == [(2, {}), (0, {})]


def test_arguments_hold_no_keys_of_tenants(tmp_path: Path) -> None:
    spec = spec_of()
    spec = type(spec).model_validate({**spec.model_dump(), "tenants": [{"name": "t", "keys": ["sha256:" + "0" * 64]}]})
    arguments = scaling_config(spec, spec.models[0], spec.regions[0], tmp_path).policy.policy_kwargs
    assert "0" * 64 not in json.dumps(arguments)
