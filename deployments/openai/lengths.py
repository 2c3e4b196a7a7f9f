"""How many tokens a prompt has, before any tokenizer saw it: characters over a ratio that the engine's own counts teach, per model."""

_FIRST_GUESS = 3.0
_WEIGHT = 0.05


class TokenRatio:
    """Characters per token of one model, an exponentially weighted mean that starts at a cautious guess (more tokens than English has)."""

    def __init__(self) -> None:
        self.chars_per_token = _FIRST_GUESS

    def tokens(self, chars: int, ids: int) -> int:
        """The estimate for a prompt of `chars` characters, or of exactly `ids` token ids; at least 1."""
        return max(1, ids or round(chars / self.chars_per_token))

    def chars_of(self, tokens: int) -> int:
        """About how many characters so many tokens are."""
        return max(1, round(tokens * self.chars_per_token))

    def observe(self, chars: int, tokens: int) -> None:
        """The engine counted `tokens` in a prompt of `chars` characters."""
        if chars >= 16 and tokens > 0:
            self.chars_per_token += _WEIGHT * (chars / tokens - self.chars_per_token)
