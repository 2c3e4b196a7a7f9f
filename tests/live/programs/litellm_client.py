"""litellm, by its provider for vLLM: `python litellm_client.py URL KEY` prints what it got as JSON."""

import json
import sys

import litellm

url, key = sys.argv[1:]
COUNT = [{"role": "user", "content": "Count from 3 to 8."}]
PICK = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
    },
}


def ask(**changed: object) -> object:
    given = {"model": "hosted_vllm/demo", "api_base": url + "/v1", "api_key": key, "messages": COUNT, "temperature": 0}
    return litellm.completion(**{**given, **changed})


def failed(**changed: object) -> list[object]:
    try:
        ask(**changed)
    except Exception as error:  # its classes have no common base
        return [type(error).__name__, error.status_code]
    return []


chat = ask()
pieces = [chunk.choices[0].delta.content or "" for chunk in ask(stream=True)]
called = ask(tools=[PICK], tool_choice={"type": "function", "function": {"name": "pick"}}, max_tokens=64)
(call,) = called.choices[0].message.tool_calls
print(
    json.dumps(
        {
            "chat": chat.choices[0].message.content,
            "pieces": pieces,
            "tool": [call.function.name, json.loads(call.function.arguments)],
            "errors": [
                failed(api_key="wrong"),
                failed(model="hosted_vllm/other"),
                failed(messages=[{"role": "user", "content": "1, 2, " * 9_000}]),
            ],
            "more": {},
        }
    )
)
