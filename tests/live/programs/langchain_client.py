"""langchain-openai: `python langchain_client.py URL KEY` prints what it got as JSON."""

import json
import sys
from typing import Literal

import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

url, key = sys.argv[1:]
COUNT = "Count from 3 to 8."


@tool
def pick(n: Literal[1, 2]) -> int:
    """Picks a number."""
    return n


def model(**changed: object) -> ChatOpenAI:
    return ChatOpenAI(
        **{"model": "demo", "base_url": url + "/v1", "api_key": key, "temperature": 0, "max_tokens": 64, **changed}
    )


def failed(asked: str = COUNT, **changed: object) -> list[object]:
    try:
        model(**changed).invoke(asked)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]
    return []


(call,) = model().bind_tools([pick], tool_choice="pick").invoke(COUNT).tool_calls
print(
    json.dumps(
        {
            "chat": model().invoke(COUNT).content,
            "pieces": [chunk.content for chunk in model().stream(COUNT)],
            "tool": [call["name"], call["args"]],
            "errors": [failed(api_key="wrong"), failed(model="other"), failed("1, 2, " * 9_000)],
            "more": {},
        }
    )
)
