"""Generated conversations with tools, as chats; and the same in the forms of the other two APIs."""

import json
import random
from typing import Any

from hypothesis import strategies as st

WORDS = ("what", "is", "the", "weather", "in", "Zürich", "水は", "def f(x):", "    ", "0.1379", "a-b_c/d")


def chat(rng: random.Random) -> list[dict[str, Any]]:
    """The messages of a chat. Each text is numbered, so that no two messages are equal. Clients give new calls the ids
    of old ones, call several tools at once, and say something before a result is there."""
    messages: list[dict[str, Any]] = []

    def say(role: str, **more: Any) -> None:
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 15)))
        messages.append({"role": role, "content": f"{len(messages)} {text}", **more})

    for _ in range(rng.randint(0, 2)):
        say(rng.choice(("system", "developer", "assistant")))
    pending: list[str] = []
    for turn in range(rng.randint(1, 12)):
        for _ in range(rng.choice((1, 1, 1, 2))):
            say("user")
        for call_id in pending:
            say("tool", tool_call_id=call_id)
        pending = []
        for step in range(rng.randint(0, 2)):
            unique = rng.randint(0, 1)
            ids = [f"call_{turn}_{step}_{n}" if unique else f"call_{n}" for n in range(rng.randint(1, 3))]
            function = {"name": "look", "arguments": json.dumps({"step": len(messages)})}
            say("assistant", tool_calls=[{"id": one, "type": "function", "function": function} for one in ids])
            if not rng.randint(0, 9):
                pending = ids
                break
            for call_id in ids:
                say("tool", tool_call_id=call_id)
        if rng.randint(0, 2):
            say("assistant")
        if not rng.randint(0, 9):
            say("system")
    return messages


CHATS = st.randoms(use_true_random=False).map(chat)


def as_items(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the input of a response."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **output})
            continue
        items.append({"type": "message", "role": message["role"], "content": message["content"]})
        calls = message.get("tool_calls", ())
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    return items


def as_blocks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As Anthropic's messages: results of tools come in the user's."""
    found = []
    for message in messages:
        text = {"type": "text", "text": message["content"]}
        if message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": [text]}
            found.append({"role": "user", "content": [result]})
        else:
            calls = [
                {"type": "tool_use", "id": one["id"], "name": "look", "input": {}}
                for one in message.get("tool_calls", ())
            ]
            found.append({"role": message["role"], "content": [text, *calls]})
    return found
