"""Thirty shapes of structured output: ordinary ones, and those that keep an engine busy for seconds or for ever. Some
are refused by the gateway's limits, the others pass."""

import json
from typing import Any

_TEXT = {"type": "string"}


def shapes(model: str, number: int) -> dict[str, tuple[str, bytes]]:
    """The path and the body of each shape, by its name. An engine has compiled none of those of another `number`."""
    return {
        name: (path, json.dumps({"model": model, **body}).encode())
        for name, (path, body) in {**_completions(number), **_chats(number), **_others()}.items()
    }


def _completions(number: int) -> dict[str, tuple[str, dict[str, Any]]]:
    guides: dict[str, dict[str, Any]] = {
        "choices": {"choice": ["yes", "no"]},
        "choices: 43,000": {"choice": [f"value {number}" for number in range(43_000)]},
        "regex: a date": {"regex": r"\d{4}-\d{2}-\d{2}"},
        "regex: counted groups": {"regex": "(a|b){1,1000}" * 3},
        "regex: words": {"regex": r"(\w+ ?){1,1000}"},
        "regex: nested stars": {"regex": "(((.+)+)+)+"},
        "regex: missing letters": {"regex": "a?" * 1_000},
        "regex of 512 KiB": {"regex": "(a|b){1,1000}" * 40_000},
        "grammar: SQL": {"grammar": 'root ::= "SELECT " col " FROM " col\ncol ::= [a-z]+'},
        "grammar: doubled and empty": {"grammar": _rules(40, "X X", '"a" | ""')},
        "grammar: counted six times": {"grammar": _rules(6, "X{1,100}", '"a"')},
        "grammar: empty recursion": {"grammar": 'root ::= a\na ::= b a | ""\nb ::= a b | [^x]'},
        "tag: a regex": {"structural_tag": _tag({"type": "regex", "pattern": "((((a*)*)*)*)*"})},
        "tag: a grammar": {"structural_tag": _tag({"type": "grammar", "grammar": _rules(40, "X X", '"a" | ""')})},
    }
    for guide in guides.values():
        guide |= {"regex": f"{guide['regex']}{number}"} if "regex" in guide else {}
        guide |= {"grammar": f"# {number}\n{guide['grammar']}"} if "grammar" in guide else {}
    return {
        name: ("/v1/completions", {"prompt": "Hi", "max_tokens": 16, "structured_outputs": guide})
        for name, guide in guides.items()
    }


def _chats(number: int) -> dict[str, tuple[str, dict[str, Any]]]:
    texts = {f"a{number}": {**_TEXT, "maxLength": 200} for number in range(40)}
    schemas: dict[str, dict[str, Any]] = {
        "schema: 40 properties": {"type": "object", "properties": texts, "required": [*texts]},
        "schema: 43,000 values": {"enum": [f"value {number}" for number in range(43_000)]},
        "schema of 512 KiB": _object(20_000, _TEXT),
        "schema: 400 optional properties": _object(400, {}),
        "schema: 150 counted properties": _object(150, _TEXT, minProperties=50, maxProperties=100),
        "schema: a pattern": {**_TEXT, "pattern": "(a|b){1,1000}" * 4},
        "schema: two patterns at once": {"allOf": [{**_TEXT, "pattern": "(.*a){20}"}] * 2},
        "schema: patterns beside properties": _object(300, _TEXT, patternProperties={"a": {}}),
        "schema: a long text": {**_TEXT, "maxLength": 100_000},
        "schema: 60 levels": _nested(28),
    }
    formats: dict[str, dict[str, Any]] = {
        name: {"type": "json_schema", "json_schema": {"name": "x", "schema": {"title": f"{number}", **schema}}}
        for name, schema in schemas.items()
    }
    formats["JSON mode"] = {"type": "json_object"}
    return {name: ("/v1/chat/completions", {**_chat(), "response_format": one}) for name, one in formats.items()}


def _others() -> dict[str, tuple[str, dict[str, Any]]]:
    function = {"name": "f", "parameters": _object(400, {})}
    tool = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return {
        "tool: 400 optional properties": ("/v1/chat/completions", {**_chat(), **tool}),
        "biases of 4,096 tokens": (
            "/v1/chat/completions",
            {**_chat(), "logit_bias": {str(n): 1 for n in range(4_096)}},
        ),
        "stops of 4 MiB": ("/v1/chat/completions", {**_chat(), "stop": ["x" * (1 << 22)]}),
        "allowed tokens: 60,000": (
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 16, "allowed_token_ids": [*range(4_000)] * 15},
        ),
        "response: a pattern": (
            "/v1/responses",
            {
                "input": "Hi",
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {**_TEXT, "pattern": "(.+)" * 99}}},
            },
        ),
    }


def _chat() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}


def _object(count: int, of: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": of for number in range(count)}, **more}


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = _TEXT
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "integer"}}}
    return schema


def _rules(count: int, rule: str, last: str) -> str:
    """A chain of rules, in which X is the next."""
    chain = [f"r{number} ::= {rule.replace('X', f'r{number + 1}')}" for number in range(count)]
    return "\n".join(["root ::= r0", *chain, f"r{count} ::= {last}"])


def _tag(content: dict[str, Any]) -> str:
    return json.dumps({"type": "structural_tag", "format": content})
