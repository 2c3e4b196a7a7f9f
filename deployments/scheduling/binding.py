"""How late requests are bound: from an engine's limits to the budgets of its replica."""

from dataclasses import dataclass

from deployments.scheduling.replica import Capacity


@dataclass(frozen=True, slots=True)
class Binding:
    """How much is bound to a replica before its turn: see `Scheduling.bind_ahead` and `.prefill_steps` of the spec."""

    ahead: float = 0.0
    prefill_steps: float = 1.0

    def capacity(self, max_num_seqs: int, kv_tokens: int, step_tokens: int) -> Capacity:
        """The budgets of a replica whose engine has these limits."""
        return Capacity(max_num_seqs, round(max_num_seqs * self.ahead), kv_tokens, step_tokens, self.prefill_steps)
