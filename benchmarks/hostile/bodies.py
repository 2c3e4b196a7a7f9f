"""Makes request bodies that mean harm: each kind of them aims at one thing that a parser may do too much of. Seeded, so
that a run can be repeated.

`body_of` makes a body of about a given size. Some are valid and only costly, some are broken where a parser sees it
last.
"""

import math
import random
from collections.abc import Callable

_PROMPTS = {
    "/v1/chat/completions": ("messages", b'[{"role":"user","content":"hi"}]'),
    "/v1/chat/completions/batch": ("messages", b'[[{"role":"user","content":"hi"}]]'),
    "/v1/messages": ("messages", b'[{"role":"user","content":"hi"}]'),
    "/v1/messages/count_tokens": ("messages", b'[{"role":"user","content":"hi"}]'),
    "/v1/completions": ("prompt", b'"hi"'),
    "/v1/responses": ("input", b'"hi"'),
    "/v1/embeddings": ("input", b'"hi"'),
    "/invocations": ("prompt", b'"hi"'),
    "/tokenize": ("prompt", b'"hi"'),
    "/detokenize": ("tokens", b"[1,2]"),
}
"""The field of each path's prompt, and one that means no harm."""
PATHS = tuple(_PROMPTS)
_FIELDS = (
    *("prompt", "messages", "input", "system", "stop", "tools", "max_tokens", "n", "model", "logit_bias"),
    *("cache_salt", "metadata"),
)
_Filler = Callable[[random.Random, int], bytes]


def _repeated(*units: bytes) -> _Filler:
    """A list of one of some elements over and over, which now and then ends in something else."""

    def fill(draw: random.Random, size: int) -> bytes:
        unit = draw.choice(units)
        last = draw.choice([unit, b'"a"', b"null", b"[1,[2]]", b"1e999", b"{}"])
        return b"[" + (unit + b",") * (size // (len(unit) + 1)) + last + b"]"

    return fill


def _text(*units: bytes) -> _Filler:
    def fill(draw: random.Random, size: int) -> bytes:
        unit = draw.choice(units)
        return b'"' + unit * (size // len(unit)) + b'"'

    return fill


def _deep(draw: random.Random, size: int) -> bytes:
    depth = min(size // 8, draw.choice([100, 127, 128, 129, 500, 2_000, size]))
    opening, closing = draw.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"[[],", b"]")])
    inside = b'"' + b"x" * max(0, size - depth * len(opening + closing)) + b'"'
    return opening * depth + inside + (closing * depth if draw.random() < 0.8 else b"")


def _number(draw: random.Random, size: int) -> bytes:
    sign, digits = draw.choice([b"", b"-"]), b"9" * size
    return sign + draw.choice(
        [digits, b"0." + digits, b"1e" + digits, b"1" + digits[: size // 2] + b"." + digits[: size // 2]]
    )


def _keys(draw: random.Random, size: int) -> bytes:
    same = draw.random() < 0.5
    member = b'"k":1,' if same else b'"k%07d":1,'
    count = size // (6 if same else 14)
    members = member * count if same else b"".join(member % number for number in range(count))
    return b"{" + members + b'"last":"' + b"\\u0061" * 3 + b'"}'


def _nonsense(draw: random.Random, size: int) -> bytes:
    repeated = [unit * size for unit in (b"\xff", b"'", b"\x00")]
    return draw.choice([b"NaN", b"Infinity", b"tru", draw.randbytes(size), b" " * size + b"1", *repeated])


_MESSAGES = _repeated(
    b'{"role":"user","content":"x"}',
    b"{}",
    b'{"role":"user","content":[{"type":"text","text":"x"}]}',
    b'{"role":"user","content":' + b'"' + b"\\n" * 3_000 + b'"}',
    b'{"role":"tool","content":[[],[],[]],"tool_calls":[{},{}]}',
    b'{"role":"user","content":[{"type":"tool_result","content":[{"content":[{}]},{"text":"x"}]},{"input":{"a":[]},"thinking":"x"}]}',
)
_FILLERS: tuple[_Filler, ...] = (
    _repeated(b"1", b"[1]", b"[]", b"{}", b'""', b'"a"', b"12345", b"[1,2,3]", b"null", b"1.5", b"-0"),
    _repeated(b'{"a":1}', b'{"type":"text","text":"x"}', b"[[[[[]]]]]", b'"\\\\"', b'"\\""', b"1" * 4_300),
    _text(
        *(b"a", b"\\u0041", b"\\u4e2d", b"\\ud83d\\ude00", b"\\n", b"\\\\", b'\\"a\\",1\\n', "中".encode(), b"[{,"),
        "a😀".encode(),
    ),
    _text(b"\\ud800", b"\xc3\x28", b"\n", b"\\x", b"\xed\xa0\x80"),
    _deep,
    _number,
    _keys,
    _nonsense,
    _MESSAGES,
)


def body_of(draw: random.Random, size: int, model: str = "demo") -> tuple[str, bytes]:
    """A path and a body for it, of about `size` bytes and no more than that many and a few hundred."""
    path = draw.choice(PATHS)
    prompt_field, prompt = _PROMPTS[path]
    field = draw.choice(_FIELDS) if draw.random() < 0.6 else prompt_field
    members = [b'"%s":%s' % (field.encode(), draw.choice(_FILLERS)(draw, size))]
    for name, value in (("model", b'"%s"' % model.encode()), (prompt_field, prompt), ("max_tokens", b"2")):
        if name != field and (name == "max_tokens" or draw.random() < 0.95):
            members.append(b'"%s":%s' % (name.encode(), value))
    draw.shuffle(members)
    body = b"{" + b",".join(members) + b"}"
    return path, _broken(draw, body) if draw.random() < 0.2 else body


def size_of(draw: random.Random, maximum: int, minimum: int = 64) -> int:
    """A size between two bounds: as many small ones as large ones, by their logarithm."""
    return round(math.exp(draw.uniform(math.log(minimum), math.log(maximum))))


def _broken(draw: random.Random, body: bytes) -> bytes:
    half, twice = body[: len(body) // 2], body + body[:50]
    return draw.choice([body[:-1], twice, half, b"\xef\xbb\xbf" + body, body[:-1] + b",}", b"[" + body + b"]"])
