"""The text that a simulated engine says: one token is one word. Pure."""

import json
from collections.abc import Sequence

_SENTENCE = (
    "simulated answer with no meaning at all it only takes the time that a real one would have taken and every word of it stands for one token "
    "so that a count of words is a count of tokens nothing was computed here and nothing should be read into it"
)
_WORDS = _SENTENCE.split()
_REPEATS = 64
_TEXT = " " + " ".join(_WORDS * _REPEATS)
_STARTS = [at for at, char in enumerate(_TEXT) if char == " "]
"""Where each word begins, with the blank before it."""
_PIECE_CHARS = 3
"""Of a text that is cut into tokens."""


def words(start: int, end: int) -> str:
    """The words from number `start` to before number `end` of an answer, as one text that needs no escaping in JSON."""
    if start >= end:
        return ""
    count = len(_STARTS)
    first, wanted = start % len(_WORDS), end - start
    pieces = [_TEXT] * ((first + wanted) // count)
    rest = (first + wanted) % count
    text = "".join(pieces) + (_TEXT[: _STARTS[rest]] if rest else "")
    text = text[_STARTS[first] :]
    return text[1:] if start == 0 else text


def token_ids(text: str, count: int) -> list[int]:
    """Ids for a text of `count` tokens: any will do, so it is their number that counts, and that equal texts have equal ones."""
    return [1 + sum(text[at * _PIECE_CHARS : (at + 1) * _PIECE_CHARS].encode()) for at in range(count)]


def spoken(ids: Sequence[int]) -> str:
    """A text for token ids."""
    return " ".join(_WORDS[number % len(_WORDS)] for number in ids)


assert json.dumps(_TEXT)[1:-1] == _TEXT
