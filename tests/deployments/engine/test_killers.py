"""The table of known killers: whom it refuses on which engine, and what a client reads."""

import dataclasses

import pytest

from deployments.engine.killers import EngineBuild, RequestTraits, killer_of

CPU = EngineBuild("0.32.0", "cpu", adapted_output=True)


@pytest.mark.parametrize(
    ("asked", "engine", "kills"),
    [
        (RequestTraits(prompt_logprobs=True), CPU, True),
        (RequestTraits(prompt_logprobs=True), dataclasses.replace(CPU, version="0.32.1"), True),
        (RequestTraits(prompt_logprobs=False), CPU, False),
        (RequestTraits(prompt_logprobs=True), dataclasses.replace(CPU, adapted_output=False), False),
        (RequestTraits(prompt_logprobs=True), dataclasses.replace(CPU, device="cuda"), False),
        (RequestTraits(prompt_logprobs=True), dataclasses.replace(CPU, version="0.33.0"), False),
        (RequestTraits(prompt_logprobs=True), dataclasses.replace(CPU, version="0.320.0"), False),
    ],
)
def test_prompt_logprobs_beside_an_adapter_of_the_output_layer_kill_vllm_0_32_on_a_cpu(
    asked: RequestTraits, engine: EngineBuild, kills: bool
) -> None:
    assert (killer_of(asked, engine) is not None) == kills


def test_a_client_reads_what_is_at_fault_and_what_is_allowed() -> None:
    killer = killer_of(RequestTraits(prompt_logprobs=True), CPU)
    assert killer is not None
    told = killer.reported(CPU)
    assert told.startswith("prompt_logprobs: vLLM 0.32.0 on cpu ")
    assert f"{killer.reason}; allowed: {killer.allowed}" in told
