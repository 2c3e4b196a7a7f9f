"""What is patched in vLLM's CPU build, against the very classes of the installed version."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deployments.engine.vllm_patches import patch_lora_logits

pytestmark = pytest.mark.whole  # importing vLLM takes seconds

HIDDEN, VOCABULARY, RANK = 8, 16, 4


@pytest.fixture
def wrapper() -> Iterator[Any]:
    """A batch of two sequences, both with the first adapter."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    whole = PunicaWrapperCPU.add_lora_logits
    found = PunicaWrapperCPU(64, 8, torch.device("cpu"))
    found._sampler_indices[:2] = 0
    found.indices_len[1] = 2
    assert len(found.sampler_indices) == 2
    yield found
    PunicaWrapperCPU.add_lora_logits = whole


def logits(wrapper: Any, rows: int, lora_b: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(rows, VOCABULARY)
    wrapper.add_lora_logits(y, torch.ones(rows, HIDDEN), torch.ones(1, 1, RANK, HIDDEN), lora_b, 1.0)
    return y


def test_without_the_patch_the_logits_of_a_prompt_raise(wrapper: Any) -> None:
    with pytest.raises(RuntimeError, match="does not broadcast"):
        logits(wrapper, 5, torch.zeros(1, 1, VOCABULARY, RANK))


def test_a_prompt_s_logits_are_left_alone_by_adapters_that_do_not_touch_the_output_layer(wrapper: Any) -> None:
    patch_lora_logits()
    assert not logits(wrapper, 5, torch.zeros(1, 1, VOCABULARY, RANK)).any()


def test_one_row_a_sequence_is_adapted_as_before(wrapper: Any) -> None:
    untouched = logits(wrapper, 2, torch.ones(1, 1, VOCABULARY, RANK))
    patch_lora_logits()
    assert torch.equal(logits(wrapper, 2, torch.ones(1, 1, VOCABULARY, RANK)), untouched)
    assert untouched.any()


def test_an_adapter_of_the_output_layer_is_not_dropped_silently(wrapper: Any) -> None:
    patch_lora_logits()
    with pytest.raises(RuntimeError, match="does not broadcast"):
        logits(wrapper, 5, torch.ones(1, 1, VOCABULARY, RANK))
