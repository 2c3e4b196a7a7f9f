"""OpenAI's own client: `python openai_client.py URL KEY` prints what it got as JSON."""

import json
import sys

import openai

url, key = sys.argv[1:]
COUNT = [{"role": "user", "content": "Count from 3 to 8."}]
PICK = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
    },
}


def failed(key: str = key, **changed: object) -> list[object]:
    with openai.OpenAI(base_url=url + "/v1", api_key=key) as client:
        try:
            client.chat.completions.create(**{"model": "demo", "messages": COUNT, **changed})
        except openai.APIStatusError as error:
            return [type(error).__name__, error.status_code, error.code]
    return []


with openai.OpenAI(base_url=url + "/v1", api_key=key) as client:
    chat = client.chat.completions.create(model="demo", messages=COUNT, temperature=0)
    stream = client.chat.completions.create(model="demo", messages=COUNT, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    choice = {"type": "function", "function": {"name": "pick"}}
    called = client.chat.completions.create(
        model="demo", messages=COUNT, tools=[PICK], tool_choice=choice, max_tokens=64, temperature=0
    )
    response = client.responses.create(model="demo", input="Count from 3 to 8.", temperature=0, max_output_tokens=40)
(call,) = called.choices[0].message.tool_calls
print(
    json.dumps(
        {
            "chat": chat.choices[0].message.content,
            "pieces": pieces,
            "tool": [call.function.name, json.loads(call.function.arguments)],
            "errors": [
                failed(key="wrong"),
                failed(model="other"),
                failed(messages=[{"role": "user", "content": "1, 2, " * 9_000}]),
            ],
            "more": {"response": response.output_text},
        }
    )
)
