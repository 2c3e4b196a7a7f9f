"""The points at which sides are compared: concurrencies, given as numbers or as multiples of the engine's `max_num_seqs`. Pure."""


def parse_points(text: str, max_num_seqs: int) -> tuple[int, ...]:
    """The concurrencies in `8,32,4x`, where `4x` is four times `max_num_seqs`. Raises ValueError."""
    return tuple(_point(part.strip(), max_num_seqs) for part in text.split(","))


def requests_for(concurrency: int, requests_per_s: float, round_s: float) -> int:
    """Requests of one round that lasts about `round_s`: whole waves of `concurrency`, at least two of them, so that the ends weigh little."""
    waves = max(2, round(requests_per_s * round_s / concurrency))
    return waves * concurrency


def _point(part: str, max_num_seqs: int) -> int:
    digits = part.removesuffix("x")
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(f"{part!r} is no point; allowed: a concurrency (32) or a multiple of max_num_seqs (4x), separated by commas")
    return int(digits) * (max_num_seqs if part.endswith("x") else 1)
