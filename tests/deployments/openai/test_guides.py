"""What guides an answer is bounded: by bytes, values, depth, and by what it takes to compile and follow it."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cluster.spec import RequestLimits
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError
from deployments.openai.guides import check_guide, weight_of
from deployments.openai.inquiry import read_inquiry

LIMITS = RequestLimits()
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
FORMS = {
    "date": r"\d{4}-\d{2}-\d{2}",
    "email": r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}",
    "uuid": r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
    "name": r"[A-Z][a-z]{1,80}( [A-Z][a-z]{1,80})?",
    "list": r"(?:[a-z]+, )*[a-z]+",
    "lines": r"(.+\n)+",
    "time": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})",
    "telephone": r"^(\+\d{1,2}\s?)?\(?\d{3}\)?[\s.-]?\d{3}[\s.-]?\d{4}$",
    "address": r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?\b){4}",
}
GRAMMARS = {
    "SQL of vLLM's examples": """
        root ::= select_statement
        select_statement ::= "SELECT " column " from " table " where " condition
        column ::= "col_1 " | "col_2 "
        table ::= "table_1 " | "table_2 "
        condition ::= column "= " number
        number ::= "1 " | "2 "
    """,
    "the same in Lark": """
        start: select_statement
        select_statement: "SELECT" column "from" table ("where" condition)?
        column: "col_1" | "col_2"
        table: "table_1" | "table_2"
        condition: column "=" number
        number: "1" | "2"
    """,
    "sums": """
        root ::= expr
        expr ::= term (("+" | "-") term)*
        term ::= factor (("*" | "/") factor)*
        factor ::= number | "(" expr ")"
        number ::= [0-9]+ ("." [0-9]+)?
    """,
    "recursive SQL": """
        root ::= query
        query ::= "SELECT " cols " FROM " table (join)* (where)? (order)? (" LIMIT " [0-9]+)? ";"
        cols ::= "*" | col (", " col)*
        col ::= (func "(" ident ")" | ident ("." ident)?) (" AS " ident)?
        func ::= "COUNT" | "SUM" | "AVG"
        table ::= ident (" " ident)? | "(" query ")"
        join ::= (" LEFT" | " INNER" | "") " JOIN " table " ON " cond
        where ::= " WHERE " cond ((" AND " | " OR ") cond)*
        cond ::= expr " " op " " expr | "(" cond ")" | "NOT " cond
        op ::= "=" | "<" | ">" | "LIKE"
        expr ::= col | number | str | expr " + " expr
        order ::= " ORDER BY " col (" ASC" | " DESC")?
        ident ::= [a-zA-Z_] [a-zA-Z0-9_]*
        number ::= "-"? [0-9]+ ("." [0-9]+)?
        str ::= "'" [^']* "'"
    """,
    "JSON": r"""
        root ::= object
        value ::= object | array | string | number | "true" | "false" | "null"
        object ::= "{" ws (string ws ":" ws value (ws "," ws string ws ":" ws value)*)? ws "}"
        array ::= "[" ws (value (ws "," ws value)*)? ws "]"
        string ::= "\"" ([^"\\] | "\\" ["\\bfnrt])* "\""
        number ::= "-"? [0-9]+ ("." [0-9]+)?
        ws ::= [ \n\t]*
    """,
}


def rules(count: int, rule: str, last: str) -> str:
    chain = [f"r{number} ::= {rule.replace('X', f'r{number + 1}')}" for number in range(count)]
    return "\n".join(["root ::= r0", *chain, f"r{count} ::= {last}"])


STUCK = {
    "rules that double each other and may be empty": rules(40, "X X", '"a" | ""'),
    "the same with optional parts of Lark": rules(40, "[X] [X]", '"a"').replace(" ::=", ":").replace("root", "start"),
    "nested stars": "root ::= " + "(" * 1_000 + '"a"' + ")*" * 1_000,
    "stars of rules of stars": rules(5, "X*", "[^x]"),
    "counted three times": rules(3, "X{1,100}", '"a"'),
    "empty recursion": 'root ::= a\na ::= b a | ""\nb ::= a b | [^x]',
    "recursion without a literal": "root ::= root root | [^x]",
    "two optional texts on the way": rules(400, '"a" X | X', '"a"'),
    "two thousand classes": "root ::= " + " ".join(["[^a-z]*"] * 2_000),
    "a regular expression of Lark": "start: A\nA: /((.+)+)+/",
}
"""Each keeps xgrammar busy for seconds: when it is compiled, or for a token."""


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": properties}}}


def read(field: str, value: Any, kind: BodyKind = BodyKind.CHAT) -> None:
    more = {"input": "Hi"} if kind is BodyKind.RESPONSE else {"max_tokens": 9} if kind is BodyKind.MESSAGES else {}
    read_inquiry(kind, json.dumps({**CHAT, **more, field: value}).encode())


@pytest.mark.parametrize("pattern", FORMS.values(), ids=FORMS)
def test_usual_patterns_pass(pattern: str) -> None:
    read("structured_outputs", {"regex": pattern})
    read("response_format", schema(a={"type": "string", "pattern": pattern, "maxLength": 200}))


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_usual_grammars_pass(grammar: str) -> None:
    read("structured_outputs", {"grammar": grammar})


@pytest.mark.parametrize("grammar", STUCK.values(), ids=STUCK)
def test_grammars_that_an_engine_does_not_end_are_refused(grammar: str) -> None:
    for guide in (
        {"grammar": grammar},
        {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "grammar", "grammar": grammar}})},
    ):
        with pytest.raises(ApiError, match=r"most by grammar; allowed: at most gateway\.limits\.max_guide_weight"):
            read("structured_outputs", guide)


@pytest.mark.whole
@pytest.mark.parametrize("text", ["[", r"[\\", '"\\', "/\\", "(", "{", "{1,", "a ::= ", "|", "a{1}{1}", "()", "[^a]?"])
def test_broken_texts_are_read_in_one_go(text: str) -> None:
    for one in (text * (16_000 // len(text)), text * (16_000 // len(text)) + "\\"):
        read_or_refuse({"regex": one})
        read_or_refuse({"grammar": one})
        read_or_refuse({"grammar": "root ::= " + one})


def test_intersections_of_intersections_are_read_in_one_go() -> None:
    nested: dict[str, Any] = {"pattern": "a"}
    for _ in range(25):
        nested = {"allOf": [nested, {}]}
    read_or_refuse({"json": nested})


def test_odd_schemas_are_no_fault() -> None:
    for odd in (
        {"type": ["a"], "content": {}},
        {"minLength": True, "maxLength": -3.5},
        {"required": 3, "properties": {}},
    ):
        read("response_format", schema(a=odd))
        read("structured_outputs", {"json": json.dumps(odd)})
    read("structured_outputs", {"json": "{", "structural_tag": "3"})


def read_or_refuse(guide: dict[str, Any]) -> None:
    with suppress(ApiError):
        read("structured_outputs", guide)


def test_a_large_nested_object_passes() -> None:
    field = {"type": "string", "maxLength": 200}
    kinds = {"enum": [f"kind {number}" for number in range(10)]}
    part = {"type": "object", "properties": {f"part_{n}": field | {"description": f"{n}"} for n in range(19)}}
    rows = {"type": "array", "items": part | {"required": ["part_1"]}, "maxItems": 100}
    read("response_format", schema(rows=rows, one=part, kind=kinds, when={"type": "string", "format": "date-time"}))
    read("response_format", {"type": "json_object"})


def test_usual_schemas_tools_and_lists_pass() -> None:
    read("response_format", schema(**{f"field_{n}": {"type": "string", "description": "text"} for n in range(100)}))
    tool = {"type": "function", "function": {"name": "f", "parameters": schema(a={"enum": ["x", "y"]})}}
    read("tools", [tool] * 60)
    read("stop", ["\n", "###"])
    read("logit_bias", {str(n): 1.0 for n in range(300)})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("structured_outputs", {"regex": "(a|b){1,1000}" * 40_000}, "max_guide_bytes = 32768"),
        ("structured_outputs", {"regex": "(a|b){1,1000}" * 3}, "max_guide_weight = 4000"),
        ("structured_outputs", {"regex": "((.{1,99}){1,99}){1,99}"}, "a weight of 1000000000"),
        ("structured_outputs", {"regex": "(((a*)*)*)*"}, "max_guide_weight"),
        ("structured_outputs", {"choice": [str(n) for n in range(2_000)]}, "max_guide_values = 1024"),
        ("structured_outputs", {"grammar": 'root ::= (("a"{1,99}){1,99}){1,99}'}, "max_guide_weight"),
        ("response_format", schema(a={"enum": [f"v{n}" for n in range(43_000)]}), "max_guide_bytes"),
        ("response_format", schema(a={"enum": list(range(5_000))}), "max_guide_values"),
        (
            "response_format",
            schema(a={"type": "string", "maxLength": 100_000, "pattern": "(.+){99}"}),
            "most by pattern",
        ),
        ("response_format", schema(a={"type": "string", "pattern": "(a{1,99}){1,99}"}), "most by pattern"),
        ("response_format", schema(a={"patternProperties": {"(x{1,99}){1,99}": {}}}), "most by patternProperties"),
        (
            "response_format",
            schema(a={"properties": {str(n): {} for n in range(200)}, "minProperties": 50}),
            "most by maxProperties",
        ),
        ("tools", [{"function": {"name": "f", "parameters": {"pattern": "(a{1,99}){1,99}"}}}], "most by pattern"),
        ("stop", [str(n) for n in range(5_000)], "stop: "),
        ("logit_bias", {str(n): 1 for n in range(3_000)}, "logit_bias: "),
        ("bad_words", ["x" * 40_000], "bad_words: 40004 bytes"),
    ],
)
def test_what_would_stall_an_engine_is_refused_by_its_name(field: str, value: Any, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(field, value)
    assert refused.value.param == field
    assert says in refused.value.message
    assert "allowed: at most" in refused.value.message


def test_every_dialect_is_bounded() -> None:
    deep = {"pattern": "(a{1,99}){1,99}"}
    for kind, field, value in (
        (BodyKind.RESPONSE, "text", {"format": {"type": "json_schema", "schema": deep}}),
        (BodyKind.MESSAGES, "tools", [{"name": "f", "input_schema": deep}]),
        (BodyKind.MESSAGES, "output_config", {"format": {"schema": deep}}),
    ):
        with pytest.raises(ApiError, match="most by pattern"):
            read(field, value, kind)


def test_too_many_levels_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(70):
        nested = {"items": nested}
    with pytest.raises(ApiError, match="levels; allowed: at most 64"):
        read("response_format", nested)


def test_an_operator_may_allow_more() -> None:
    value = Raw(json.dumps({"regex": "(a{1,99}){1,99}"}).encode())
    check_guide("structured_outputs", value, RequestLimits(max_guide_weight=20_000))
    with pytest.raises(ApiError):
        check_guide("structured_outputs", value, LIMITS)


@given(st.text(max_size=60))
def test_any_text_has_a_weight_that_grows_with_repetition(pattern: str) -> None:
    weight = weight_of(pattern)
    assert weight >= 0
    assert weight_of(f"(?:{pattern})" + "{7}") >= weight
