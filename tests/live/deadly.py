"""A fault for an engine's core: a logits processor of vLLM that ends its process when a prompt holds a marker. Named in
a spec's `extra`."""

import os
import signal
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

MARKER = (3_999, 17, 3_998, 17, 3_997)
"""Token ids that no text has in a row."""


class Deadly(LogitsProcessor):  # type: ignore[misc]
    """Kills the core as the prompt enters its batch, as a fault in a kernel would. Changes no logits."""

    def __init__(self, *_: Any) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        """See vLLM's."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """See vLLM's: `added` has (index, parameters, prompt's tokens, output's tokens) of each new request."""
        for _, _, prompt, _ in batch_update.added if batch_update is not None else ():
            if any(tuple(prompt[at : at + len(MARKER)]) == MARKER for at in range(len(prompt or ()) - len(MARKER) + 1)):
                os.kill(os.getpid(), signal.SIGSEGV)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """See vLLM's."""
        return logits
