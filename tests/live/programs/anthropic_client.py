"""Anthropic's own client: `python anthropic_client.py URL KEY` prints what it got as JSON."""

import json
import sys

import anthropic

url, key = sys.argv[1:]
COUNT = [{"role": "user", "content": "Count from 3 to 8."}]
ASKED = {"model": "demo", "messages": COUNT, "max_tokens": 64, "extra_body": {"temperature": 0}}
PICK = {"name": "pick", "input_schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}


def failed(key: str = key, **changed: object) -> list[object]:
    with anthropic.Anthropic(base_url=url, api_key=key) as client:
        try:
            client.messages.create(**{**ASKED, **changed})
        except anthropic.APIStatusError as error:
            return [type(error).__name__, error.status_code, error.body["error"]["type"], bool(error.request_id)]
    return []


with anthropic.Anthropic(base_url=url, api_key=key) as client:
    chat = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    called = client.messages.create(**ASKED, tools=[PICK], tool_choice={"type": "tool", "name": "pick"})
    history = [*COUNT, {"role": "assistant", "content": called.content}]
    history += [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "1"}]}
    ]
    after = client.messages.create(
        **{**ASKED, "messages": history, "tools": [PICK], "system": [{"type": "text", "text": "Count."}]}
    )
    counted = client.messages.count_tokens(model="demo", messages=COUNT)
(call,) = [block for block in called.content if block.type == "tool_use"]
print(
    json.dumps(
        {
            "chat": chat.content[0].text,
            "pieces": pieces,
            "tool": [call.name, call.input],
            "errors": [
                failed(key="wrong"),
                failed(model="other"),
                failed(messages=[{"role": "user", "content": "1, 2, " * 9_000}]),
            ],
            "more": {
                "counted": counted.input_tokens == chat.usage.input_tokens,
                "stopped": [chat.stop_reason, final.stop_reason, called.stop_reason],
                "after a tool": after.type,
            },
        }
    )
)
