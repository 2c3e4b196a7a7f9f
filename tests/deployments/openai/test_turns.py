"""Which turns go: properties over generated conversations with tools, in the forms of all three APIs."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.endpoints import BodyKind
from deployments.openai.inquiry import read_inquiry
from deployments.openai.turns import KEPT, MAX_COUNTS, Conversation, Cut, as_chat, read_turns, shortening
from tests.deployments.openai.conversations import CHATS, as_blocks, as_items

Form = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
FORMS: list[tuple[BodyKind, str, Form]] = [
    (BodyKind.CHAT, "messages", list),
    (BodyKind.RESPONSE, "input", as_items),
    (BodyKind.MESSAGES, "messages", as_blocks),
]
OTHERS = {"model": "m", "max_tokens": 5, "tools": [{"type": "function", "function": {"name": "look"}}], "seed": 1.50}
GUESSES = st.floats(1.0, 9.0)


def searched(conversation: Conversation, chars: int, limit: int, guess: float, tokens: Callable[[bytes], int]) -> Any:
    """What goes, and how often was counted."""
    search, counts = shortening(conversation, chars, limit, guess), 0
    try:
        cut = next(search)
        while True:
            counts += 1
            cut = search.send(tokens(conversation.without(cut)))
    except StopIteration as end:
        return end.value, counts


def by_words(body: bytes) -> int:
    """A tokenizer to which some texts are denser than others."""
    text = json.dumps(json.loads(body), ensure_ascii=False)
    return len(text.split()) * 2 + text.count("水")


def pairs(items: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Where calls and their results are, by positions: ids may come again."""
    open_at: dict[str, int] = {}
    found = []
    for at, item in enumerate(items):
        blocks = item["content"] if isinstance(item.get("content"), list) else []
        made = [
            call["id"] for call in (*item.get("tool_calls", ()), *blocks) if call.get("type") != "text" and "id" in call
        ]
        answered = [block["tool_use_id"] for block in blocks if "tool_use_id" in block]
        answered += [item["tool_call_id"]] if "tool_call_id" in item else []
        if "call_id" in item:
            (made if item["type"] == "function_call" else answered).append(item["call_id"])
        open_at |= dict.fromkeys(made, at)
        found += [(open_at[one], at) for one in answered]
    return found


def is_users(item: dict[str, Any]) -> bool:
    content = item.get("content")
    return item.get("role") == "user" and not (isinstance(content, list) and "tool_use_id" in content[0])


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "field", "form"), FORMS, ids=[form[0] for form in FORMS])
@given(messages=CHATS, share=st.floats(0.05, 1.2), guess=GUESSES)
def test_what_goes(
    kind: BodyKind, field: str, form: Form, messages: list[dict[str, Any]], share: float, guess: float
) -> None:
    items = form(messages)
    body = json.dumps({**OTHERS, field: items, "stream": True}, ensure_ascii=False).encode()
    conversation, chars = read_turns(kind, body), read_inquiry(kind, body).prompt_chars
    if conversation is None:
        return
    limit = max(1, round(by_words(body) * share))
    cut, counts = searched(conversation, chars, limit, guess, by_words)
    assert counts <= MAX_COUNTS
    if cut is None:
        assert by_words(conversation.without(conversation.cuts[-1])) > limit
        return
    shorter = conversation.without(cut)
    left = json.loads(shorter)
    assert by_words(shorter) <= limit
    assert {**left, field: items} == json.loads(body), "nothing else changes"
    kept = [at for at, item in enumerate(items) if item in left[field]]
    assert [items[at] for at in kept] == left[field], "no order changes"
    gone = sorted(set(range(len(items))) - set(kept))
    users = [at for at, item in enumerate(items) if is_users(item)]
    assert all(items[at].get("role") not in ("system", "developer") for at in gone)
    assert {users[0], users[-1], len(items) - 1} <= set(kept)
    assert all((call in kept) == (result in kept) for call, result in pairs(items))
    if gone:
        assert is_users(items[gone[0]])
        assert is_users(
            items[next(at for at in kept if at > gone[-1] and items[at].get("role") not in ("system", "developer"))]
        )
        between = set(range(gone[0], gone[-1])) & set(kept)
        assert all(items[at].get("role") in ("system", "developer") for at in between), "the oldest, without a gap"


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(3))
def test_a_growing_conversation_keeps_its_beginning(seed: int) -> None:
    """Whatever the model's ratio is meanwhile: turns go about once in each quarter of the limit by which it grows."""
    rng, limit, total = random.Random(seed), 2_000, 0
    messages: list[dict[str, Any]] = []
    gone: list[int] = []
    for turn in range(150):
        messages.append({"role": "user", "content": f"{turn} " + "question " * rng.randint(5, 30)})
        body = json.dumps({"messages": messages}).encode()
        conversation, total = read_turns(BodyKind.CHAT, body), by_words(body)
        if conversation is not None:
            chars = read_inquiry(BodyKind.CHAT, body).prompt_chars
            cut, counts = searched(conversation, chars, limit, rng.uniform(2.5, 5.0), by_words)
            assert bool(cut.turns) == (total > limit)
            assert counts <= 3
            gone.append(cut.turns)
        messages.append({"role": "assistant", "content": f"{turn} " + "answer " * rng.randint(5, 30)})
    changes = sum(before != after for before, after in pairwise(gone))
    quarters = (total - limit) / (limit * (1 - KEPT))
    assert quarters > 20
    assert 0.8 * quarters < changes < 2 * quarters, "each turn would be 130"


def test_what_has_no_turn_to_lose() -> None:
    ask = {"role": "user", "content": "x"}
    said = {"role": "assistant", "content": "y"}
    for kind, body in (
        (BodyKind.CHAT, {"messages": [ask, said, ask]}),
        (BodyKind.CHAT, {"messages": [{"role": "system", "content": "x"}, said]}),
        (BodyKind.CHAT, {"messages": [ask, ask, said, said, ask]}),
        (BodyKind.RESPONSE, {"input": "x"}),
    ):
        assert read_turns(kind, json.dumps(body).encode()) is None
    conversation = read_turns(BodyKind.CHAT, json.dumps({"messages": [ask, said, ask, said, ask]}).encode())
    assert conversation is not None
    assert conversation.cuts == [Cut(0, 0), Cut(1, len("userxassistanty"))]


@pytest.mark.whole
@given(CHATS)
def test_a_response_is_counted_as_the_chat_that_it_is(messages: list[dict[str, Any]]) -> None:
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "input": as_items(messages),
        "tools": [{"type": "function", "name": "look"}],
    }
    chat = json.loads(as_chat(json.dumps(body).encode()))
    assert chat["tools"] == [{"type": "function", "function": {"type": "function", "name": "look"}}]
    assert [message for message in chat["messages"][1:] if "tool_calls" not in message] == [
        {key: value for key, value in message.items() if key != "tool_calls"} for message in messages
    ]
    calls = [call for message in chat["messages"] for call in message.get("tool_calls", ())]
    assert calls == [call for message in messages for call in message.get("tool_calls", ())]
