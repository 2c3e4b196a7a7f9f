"""A request as the scheduler sees it: sizes and times, never text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a model.

    `prompt_tokens` is known or estimated for one sequence, `expected_output_tokens` likewise; `sequences` counts prompts x n. `arrived_s` is when the
    gateway had it whole, `expires_s` when its wait in the lane is given up, both on the shell's monotonic clock.
    """

    request_id: str
    prompt_tokens: int
    expected_output_tokens: int
    arrived_s: float
    expires_s: float
    sequences: int = 1
    traffic_class: str = "interactive"
    tenant: str = ""

    @property
    def prefill_tokens(self) -> int:
        """Tokens that the engine must prefill before the first output token."""
        return self.prompt_tokens * self.sequences

    @property
    def kv_tokens(self) -> int:
        """Tokens that its KV blocks hold at its expected end."""
        return (self.prompt_tokens + self.expected_output_tokens) * self.sequences
