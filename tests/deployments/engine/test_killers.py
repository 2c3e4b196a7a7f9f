"""The table of known killers: whom it refuses on which engine, and what a client reads."""

import dataclasses

import pytest

from deployments.engine.killers import KILLERS, EngineBuild, RequestTraits, killer_of

CPU = EngineBuild("0.32.0", "cpu", 2_048)


@pytest.mark.parametrize(
    ("asked", "engine", "kills"),
    [
        (RequestTraits(2_049, 7), CPU, True),
        (RequestTraits(2_049, 0), CPU, True),
        (RequestTraits(2_049, 7), dataclasses.replace(CPU, version="0.32.1"), True),
        (RequestTraits(2_048, 7), CPU, False),
        (RequestTraits(600, 7), dataclasses.replace(CPU, step_tokens=512), True),
        (RequestTraits(9_000, None), CPU, False),
        (RequestTraits(2_049, 7), dataclasses.replace(CPU, device="cuda"), False),
        (RequestTraits(2_049, 7), dataclasses.replace(CPU, version="0.33.0"), False),
        (RequestTraits(2_049, 7), dataclasses.replace(CPU, version="0.320.0"), False),
    ],
)
def test_a_seed_with_a_prompt_of_several_steps_kills_vllm_0_32_on_a_cpu(
    asked: RequestTraits, engine: EngineBuild, kills: bool
) -> None:
    assert (killer_of(asked, engine) is not None) == kills


def test_a_client_reads_what_is_at_fault_and_what_is_allowed() -> None:
    killer = killer_of(RequestTraits(3_000, 7), CPU)
    assert killer is not None
    assert killer.reported(RequestTraits(3_000, 7), CPU) == (
        "seed with a prompt of 3000 tokens: vLLM 0.32.0 on cpu ends when a prompt with a seed is prefilled in several "
        "steps; "
        "allowed: at most 2048 tokens (max_num_batched_tokens), temperature 0, or no seed"
    )


def test_each_entry_names_its_engine_and_its_reason() -> None:
    assert all(entry.version and entry.device and entry.field and entry.reason and entry.allowed for entry in KILLERS)
