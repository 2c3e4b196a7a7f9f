"""How a request asks for a shorter answer: its own bound on the output, lowered.

An answer that is to have a structure, or may be a tool call, is of no use when it is cut; nor has an answer a bound
where its client asks for a minimum. A reasoning model gets half of the number for its thoughts, so that an answer
follows; where its API has no field for that it is left alone.
"""

from collections.abc import Callable, Iterable

import msgspec

from cluster.spec import Model
from deployments.openai.endpoints import BodyKind
from deployments.openai.fields import is_nothing, read_members
from deployments.openai.inquiry import Inquiry

_WHOLE = frozenset(
    ["tools", "functions", "structured_outputs", "response_format", "text", "output_config", "min_tokens"]
)
"""Fields of which one keeps an answer whole."""
_KINDS = frozenset({BodyKind.CHAT, BodyKind.COMPLETION, BodyKind.RESPONSE, BodyKind.MESSAGES})
_THINKING = "thinking_token_budget"
_THINK = frozenset({BodyKind.CHAT, BodyKind.COMPLETION})
"""The kinds that have that field."""
Clamp = Callable[[Model, int], dict[str, int]]
"""The members that lower a model's answer to so many tokens."""


def clamp_of(inquiry: Inquiry, body: bytes, models: Iterable[Model]) -> Clamp | None:
    """How a body that was read, and may go to these models, is clamped; None: not at all."""
    thinks = any(model.settings.reasoning_parser for model in models)
    if inquiry.kind not in _KINDS or (thinks and inquiry.kind not in _THINK):
        return None
    fields = read_members(body)
    if any(not is_nothing(value) for name, value in fields.items() if name in _WHOLE):
        return None
    given = fields.get(_THINKING)
    most = None if given is None or is_nothing(given) else msgspec.json.decode(given)
    budget = most if isinstance(most, int) and most >= 0 else None

    def clamp(model: Model, tokens: int) -> dict[str, int]:
        if not model.settings.reasoning_parser:
            return {inquiry.max_tokens_field: tokens}
        thoughts = tokens // 2
        return {_THINKING: thoughts if budget is None else min(thoughts, budget), inquiry.max_tokens_field: tokens}

    return clamp
