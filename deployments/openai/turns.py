"""Which turns of a conversation go when its prompt is too long for the model's context. No I/O: `gateway/context.py`
has a replica count the tokens.

A turn is a user's message (several in a row are one turn) and all that follows before the next: answers, calls of
tools and their results. It does not end before the last call in it has its result. The first and the last turn stay,
and so does what precedes the first, and whatever the system or the developer says.

A client sends its whole conversation again with each turn, so what went must go again, and nothing more, or the
engine's prefix cache would have the beginning alone. The oldest turns therefore go in blocks of a quarter of the limit,
counted from the second turn on (decision 58).
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Raw

from deployments.openai.endpoints import CONVERSATIONS, BodyKind
from deployments.openai.fields import ABSENT, begins_with, read_members
from deployments.openai.prompt import chars_of_messages

KEPT = 0.75
"""The share of the limit that is left when turns go."""
MAX_COUNTS = 4
_STAYS = ("system", "developer")
_ALWAYS = -1
_GRID = math.log(1.2)


class _Item(msgspec.Struct, gc=False):
    """A message, or an item of a response's input: whose it is, and which calls of tools it makes or answers."""

    role: Raw = ABSENT
    type: Raw = ABSENT
    content: Raw = ABSENT
    tool_calls: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    call_id: Raw = ABSENT


class _Call(msgspec.Struct, gc=False):
    """A call in a chat's message; or a part of a message in Anthropic's form, which may be a call or a result."""

    id: str = ""
    type: str = ""
    tool_use_id: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The first turn is followed by `turns` that go; they have `chars` characters."""

    turns: int
    chars: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A body with a conversation in its member `field`. `turns`: the number of each item's turn, from 0; -1: it stays
    in any case. `cuts`: from nothing to all turns but the first and the last."""

    members: Mapping[str, Raw]
    field: str
    turns: Sequence[int]
    cuts: Sequence[Cut]

    def without(self, cut: Cut) -> bytes:
        """The body without these turns. What stays is as it was, to the byte."""
        items = zip(msgspec.json.decode(self.members[self.field], type=list[Raw]), self.turns, strict=True)
        kept = b",".join(bytes(item) for item, turn in items if not 0 < turn <= cut.turns)
        return msgspec.json.encode({**self.members, self.field: Raw(b"[%b]" % kept)})

    def cut(self, chars: int, limit: int, chars_per_token: float) -> Cut:
        """What goes of a prompt of `chars` characters to leave `limit` tokens: whole blocks, and all that may go where
        that is not enough. The blocks' length is on a grid of 20 %, so that it is the same for the next turn."""
        block = (1 - KEPT) * limit * math.exp(_GRID * round(math.log(chars_per_token) / _GRID))
        needed = block * math.ceil((chars - limit * chars_per_token) / block)
        return next((cut for cut in self.cuts if cut.chars >= needed), self.cuts[-1])


def read_turns(kind: BodyKind, body: bytes) -> Conversation | None:
    """The conversation in a valid body; None: it has no turn that may go."""
    members, field = read_members(body), CONVERSATIONS[kind]
    if not begins_with(members.get(field, ABSENT), b"["):
        return None
    turns = _turns_of(msgspec.json.decode(members[field], type=list[_Item]))
    sizes = [0] * (max((0, *turns)) + 1)
    for turn, chars in zip(turns, chars_of_messages(members[field]), strict=True):
        sizes[max(turn, 0)] += chars
    cuts = [Cut(turn, chars) for turn, chars in enumerate(accumulate(sizes[1:-1], initial=0))]
    return Conversation(members, field, turns, cuts) if len(cuts) > 1 else None


def shortening(
    conversation: Conversation, chars: int, limit: int, chars_per_token: float
) -> Generator[Cut, int, Cut | None]:
    """Finds what goes of a prompt of `chars` characters, so that at most `limit` tokens stay. Yields what is to be
    counted, and is sent the tokens of the prompt without it. None: too much has to stay.

    The first is a guess by the model's mean `chars_per_token`. Then the conversation's own ratio counts, since the next
    turn changes it little.
    """
    cut, fits = conversation.cut(chars, limit, chars_per_token), None
    for left in range(MAX_COUNTS - 1, -1, -1):
        tokens = yield cut
        fits = cut if tokens <= limit else fits
        following = conversation.cut(chars, limit, max(1, chars - cut.chars) / max(1, tokens))
        if fits is not None and following.turns >= fits.turns:
            return following
        if following == cut:
            break
        cut = following if left > 1 or fits is not None else conversation.cuts[-1]
    return fits


class _Response(msgspec.Struct):
    input: list[dict[str, Any]]
    model: Any = None
    instructions: Any = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: Any = None


def as_chat(body: bytes) -> bytes:
    """A response's body as a chat for the tokenizer, nearly as vLLM makes one of it. Raises msgspec.ValidationError."""
    given = msgspec.json.decode(body, type=_Response)
    messages: list[dict[str, Any]] = [{"role": "system", "content": given.instructions}] if given.instructions else []
    for item in given.input:
        kind, call_id = str(item.get("type", "message")), item.get("call_id")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind.endswith("_output"):
            messages.append({"role": "tool", "tool_call_id": call_id, "content": item.get("output")})
        elif call_id is not None:
            function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
            call = {"id": call_id, "type": "function", "function": function}
            messages.append({"role": "assistant", "tool_calls": [call]})
    tools = [{"type": "function", "function": one} for one in given.tools or () if one.get("type") == "function"]
    chat = {"model": given.model, "messages": messages, "chat_template_kwargs": given.chat_template_kwargs}
    return msgspec.json.encode({**chat, "tools": tools or None})


def _turns_of(items: Sequence[_Item]) -> list[int]:
    calls = [_calls_of(item) for item in items]
    answered_at = [-1] * len(items)
    made_at: dict[str, int] = {}
    for at, (made, answered) in enumerate(calls):
        made_at |= dict.fromkeys((*made, ""), at) if made else {}
        for call in answered:
            answered_at[made_at.get(call, at)] = at
    turns, turn, open_until, is_users = [], _ALWAYS, -1, False
    for at, item in enumerate(items):
        open_until = max(open_until, answered_at[at])
        role = _text(item.role)
        if role in _STAYS:
            turns.append(_ALWAYS)
            continue
        was_users, is_users = is_users, role == "user" and not calls[at][1]
        turn += is_users and not was_users and at > open_until
        turns.append(turn)
    return turns


def _calls_of(item: _Item) -> tuple[list[str], list[str]]:
    """The calls of tools that an item makes, and those whose results it has, by their ids ("": the last one made)."""
    made = [call.id for call in _parts(item.tool_calls)]
    answered = [_text(item.tool_call_id)] if item.tool_call_id or _text(item.role) == "tool" else []
    if item.call_id:
        (answered if _text(item.type).endswith("_output") else made).append(_text(item.call_id))
    for part in _parts(item.content) if b"tool_use" in bytes(item.content) else ():
        if part.tool_use_id:
            answered.append(part.tool_use_id)
        elif part.type.endswith("tool_use"):
            made.append(part.id)
    return made, answered


def _parts(value: Raw) -> list[_Call]:
    """Not of a form that an engine takes: none."""
    try:
        return msgspec.json.decode(value, type=list[_Call]) if begins_with(value, b"[") else []
    except msgspec.ValidationError:
        return []


def _text(value: Raw) -> str:
    return str(msgspec.json.decode(value)) if begins_with(value, b'"') else ""
