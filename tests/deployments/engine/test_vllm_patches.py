"""What is patched in vLLM's CPU build, against the very classes of the installed version."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deployments.engine.vllm_patches import patch_lora_logits, patch_seeded_prompts

if TYPE_CHECKING:
    import torch

# Importing vLLM and torch takes seconds, so each test imports them itself.
pytestmark = [pytest.mark.whole, pytest.mark.contract]

HIDDEN, VOCABULARY, RANK = 8, 16, 4


@pytest.fixture
def wrapper() -> Iterator[Any]:
    """A batch of two sequences, both with the first adapter."""
    import torch
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    whole = PunicaWrapperCPU.add_lora_logits
    found = PunicaWrapperCPU(64, 8, torch.device("cpu"))
    found._sampler_indices[:2] = 0
    found.indices_len[1] = 2
    assert len(found.sampler_indices) == 2
    yield found
    PunicaWrapperCPU.add_lora_logits = whole


def logits(wrapper: Any, rows: int, lora_b: "torch.Tensor") -> "torch.Tensor":
    import torch

    y = torch.zeros(rows, VOCABULARY)
    wrapper.add_lora_logits(y, torch.ones(rows, HIDDEN), torch.ones(1, 1, RANK, HIDDEN), lora_b, 1.0)
    return y


def test_without_the_patch_the_logits_of_a_prompt_raise(wrapper: Any) -> None:
    import torch

    with pytest.raises(RuntimeError, match="does not broadcast"):
        logits(wrapper, 5, torch.zeros(1, 1, VOCABULARY, RANK))


def test_a_prompt_s_logits_are_left_alone_by_adapters_that_do_not_touch_the_output_layer(wrapper: Any) -> None:
    import torch

    patch_lora_logits()
    assert not logits(wrapper, 5, torch.zeros(1, 1, VOCABULARY, RANK)).any()


def test_one_row_a_sequence_is_adapted_as_before(wrapper: Any) -> None:
    import torch

    untouched = logits(wrapper, 2, torch.ones(1, 1, VOCABULARY, RANK))
    patch_lora_logits()
    assert torch.equal(logits(wrapper, 2, torch.ones(1, 1, VOCABULARY, RANK)), untouched)
    assert untouched.any()


def test_an_adapter_of_the_output_layer_is_not_dropped_silently(wrapper: Any) -> None:
    import torch

    patch_lora_logits()
    with pytest.raises(RuntimeError, match="does not broadcast"):
        logits(wrapper, 5, torch.ones(1, 1, VOCABULARY, RANK))


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's, as vLLM is imported
def test_a_sequence_that_is_not_complete_samples_without_its_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three sequences is in the middle of its prompt. `live/test_live_death.py` asks a real engine."""
    import torch
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    generators = {row: torch.Generator().manual_seed(row) for row in range(3)}
    batch = SimpleNamespace(num_reqs=3, generators=dict(generators))
    mask = np.array([False, True, False, True])  # the last one is of a sequence that has ended
    runner = SimpleNamespace(input_batch=batch, discard_request_mask=SimpleNamespace(np=mask))
    sampled_with: list[dict[int, torch.Generator]] = []

    def whole(self: Any, grammar: str) -> str:
        sampled_with.append(dict(self.input_batch.generators))
        if grammar == "broken":
            raise ValueError(grammar)
        return grammar

    monkeypatch.setattr(CPUModelRunner, "sample_tokens", whole)
    patch_seeded_prompts()
    assert CPUModelRunner.sample_tokens(runner, "grammar") == "grammar"
    with pytest.raises(ValueError, match="broken"):
        CPUModelRunner.sample_tokens(runner, "broken")
    assert sampled_with == [{0: generators[0], 2: generators[2]}] * 2
    assert batch.generators == generators


def test_a_generator_of_a_cpu_has_no_offset() -> None:
    """The reason for the patch: with a torch that has one, the patch can go."""
    import torch

    with pytest.raises(RuntimeError, match="offset"):
        torch.Generator().get_offset()
