"""`extra` of the spec, read by vLLM's own parser."""

from typing import Any

import pytest

from cluster.spec import EngineSettings, Model
from deployments.engine.args import ArgumentsError, namespace

# vLLM's import warns of what its dependencies have deprecated.
pytestmark = [pytest.mark.live, pytest.mark.contract, pytest.mark.filterwarnings("ignore")]


def model(**extra: Any) -> Model:
    return Model(name="m", source="org/m", settings=EngineSettings(max_model_len=4096, extra=extra))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_logprobs", 7),
        ("logprobs_mode", "raw_logits"),
        ("disable_cascade_attn", True),
        ("override_generation_config", {"temperature": 0.5}),
        ("allowed_media_domains", ["a.example", "b.example"]),
    ],
)
def test_a_value_arrives_as_it_was_written(key: str, value: object) -> None:
    assert getattr(namespace(model(**{key: value})), key) == value


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("max_logporbs", 7, "unknown to this version of vLLM"),
        ("max_logprobs", "many", "invalid"),
        ("logprobs_mode", "bogus", "invalid choice"),
        ("scheduling_policy", "fcfs", "set by raylane"),
    ],
)
def test_a_refusal_names_the_key_and_the_value(key: str, value: object, why: str) -> None:
    with pytest.raises(ArgumentsError) as refusal:
        namespace(model(**{key: value}))
    assert f"models.m.settings.extra.{key} = {value!r}: " in str(refusal.value)
    assert why in str(refusal.value)


def test_the_arguments_are_vllms_defaults_and_the_specs_settings() -> None:
    args = namespace(model())
    assert (args.model, args.served_model_name, args.max_model_len) == ("org/m", ["m"], 4096)
    assert args.lora_modules is None
