"""Edits of YAML texts: the values change, nothing else does, and what can not be edited safely is refused."""

import difflib
from itertools import takewhile
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planning.tune.spec_edit import EditError, Path, edited

SPEC = """\
# the cell
version: 1
name: "one"    # its name

models:
  - name: demo
    settings: {max_model_len: 8192, max_num_seqs: 64}
    replicas:
      count: 2

  - name: other   # the second
    replicas: {count: 1, min: 1}
    autoscaling:
      policy: backlog
      backlog:
        utilisation: 0.9   # why not
      # a comment at the end

gateway:
  host: 127.0.0.1
"""


def changed_lines(before: str, after: str) -> list[str]:
    return [
        line
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        if line[0] in "+-" and line[1:3] not in ("--", "++")
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:\n  b: [1, 2]   # two\nc: 3\n", "a:\n  b:\n  - 5\n  - x: 6   # two\nc: 3\n"),
        ("a:\n  b:\n    - 1\n    - {x: 2}\n\n# below\nc: 3\n", "a:\n  b:\n  - 5\n  - x: 6\n\n# below\nc: 3\n"),
        ("a:\n  b:\nc: 3\n", "a:\n  b:\n  - 5\n  - x: 6\nc: 3\n"),
        ("a: {b: {y: 1}, d: 2}\nc: 3\n", "a: {b: [5, {x: 6}], d: 2}\nc: 3\n"),
        ("a:\n  b:\n    y: 1", "a:\n  b:\n  - 5\n  - x: 6"),
        ("- b: 1\n  c: 3\n", "- b:\n  - 5\n  - x: 6\n  c: 3\n"),
    ],
)
def test_a_list_takes_the_place_of_another_value(before: str, after: str) -> None:
    path: Path = (0, "b") if before.startswith("-") else ("a", "b")
    assert edited(before, [(path, [5, {"x": 6}])]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: {}\n", "a: {k: 1}\n"),
        ("a: {b: 2,}\n", "a: {b: 2, k: 1,}\n"),
        ("a: {b: 2,  # two\n    c: 3   # three\n   }\n", "a: {b: 2,  # two\n    c: 3, k: 1   # three\n   }\n"),
    ],
)
def test_flow_mappings_of_any_layout_take_a_key(before: str, after: str) -> None:
    assert edited(before, [(("a", "k"), 1)]) == after


def test_missing_sections_are_made_at_any_depth() -> None:
    after = edited(
        SPEC,
        [
            (("autoscaling", "backlog", "trend"), False),
            (("models", 0, "autoscaling"), {"policy": "backlog", "backlog": {"burn": 3.5}}),
        ],
    )
    assert changed_lines(SPEC, after) == [
        "+    autoscaling:",
        "+      policy: backlog",
        "+      backlog:",
        "+        burn: 3.5",
        "+autoscaling:",
        "+  backlog:",
        "+    trend: false",
    ]


@pytest.mark.parametrize("nothing", ["", " null", " ~", "   # nothing yet"])
def test_a_key_without_a_value_gets_one(nothing: str) -> None:
    text = f"a: 1\nautoscaling:{nothing}\nb: 2\n"
    after = edited(text, [(("autoscaling", "backlog", "burn"), 2)])
    assert yaml.safe_load(after) == {"a": 1, "autoscaling": {"backlog": {"burn": 2}}, "b": 2}
    assert ("nothing yet" in after) == ("nothing yet" in nothing)
    assert yaml.safe_load(edited(text, [(("autoscaling",), "x")]))["autoscaling"] == "x"


def test_windows_line_ends_and_a_missing_last_one_stay() -> None:
    assert edited("a:\r\n  b: 1\r\n", [(("a", "c"), 2)]) == "a:\r\n  b: 1\r\n  c: 2\r\n"
    assert edited("a:\n  b: 1", [(("a", "c"), 2)]) == "a:\n  b: 1\n  c: 2\n"


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("x: &one {a: 1}\ny: *one\n", ("y", "a"), "y: is an alias"),
        ("x: &one {b: {a: 1, c: 2}}\ny:\n  <<: *one\n", ("y", "b", "a"), "y.b.a: cannot be edited safely"),
        ("a: 1\n", ("a", "b"), "a: is not a mapping"),
        ("a: [1]\n", ("a", 1), "a.1: there is no such item; allowed: 0 to 0"),
        ("a: {b: 1}\n", ("a",), "a: is not a single value"),
        ("a: [\n", ("a",), "is not YAML"),
        ("# nothing\n", ("a",), "a: the text is empty"),
    ],
)
def test_what_can_not_be_edited_is_refused(text: str, path: Path, said: str) -> None:
    with pytest.raises(EditError, match=said.replace(".", r"\.")):
        edited(text, [(path, 5)])


KEYS = st.sampled_from(["a", "b", "c", "d", "long-key", "x y"])
SCALARS = st.one_of(
    st.integers(-5, 5),
    st.floats(-10, 10, allow_nan=False),
    st.booleans(),
    st.none(),
    st.sampled_from(["word", "two words", "", "1", "#x", "a: b", "multi\nline", "yes"]),
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda below: st.one_of(st.dictionaries(KEYS, below, max_size=4), st.lists(below, max_size=3)),
        max_leaves=12,
    ),
    min_size=1,
    max_size=5,
)


def places(data: Any, path: Path = ()) -> list[Path]:
    """All places in it whose value is a mapping (a new key may go there), or a scalar."""
    found: list[Path] = []
    if isinstance(data, dict):
        for key, value in data.items():
            found += [(*path, key)] if not isinstance(value, dict | list) else []
            found += places(value, (*path, key))
        found.append((*path, "new"))
    if isinstance(data, list):
        for number, value in enumerate(data):
            found += places(value, (*path, number))
    return found


def commented(text: str, where: list[int]) -> str:
    """The text with comments between its lines, where no quoted or block text would swallow them."""
    lines = text.splitlines()
    for number in sorted({number % (len(lines) + 1) for number in where}, reverse=True):
        lines.insert(number, f"# comment {number}")
    return "\n".join(lines) + "\n"


def alike(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def without_common(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Both, without the lines that they begin with and end with alike."""
    first = alike(before, after)
    last = alike(before[first:][::-1], after[first:][::-1])
    return before[first : len(before) - last], after[first : len(after) - last]


@pytest.mark.whole
@given(TREES, st.sampled_from([None, False]), st.integers(2, 4), st.data())
def test_only_what_was_asked_changes(tree: dict[str, Any], flow: bool | None, indent: int, data: st.DataObject) -> None:
    plain = str(yaml.safe_dump(tree, default_flow_style=flow, indent=indent, sort_keys=False))
    text = commented(plain, data.draw(st.lists(st.integers(0, 50), max_size=3)))
    if yaml.safe_load(text) != tree:
        text = plain
    path = data.draw(st.sampled_from(places(tree)))
    value = data.draw(
        st.one_of(
            st.integers(-9, 9), st.floats(-9, 9, allow_nan=False), st.booleans(), st.sampled_from(["word", "1", "a: b"])
        )
    )
    after = edited(text, [(path, value)])  # which compares what both say
    assert [line for line in after.splitlines() if line.startswith("# comment")] == [
        line for line in text.splitlines() if line.startswith("# comment")
    ]
    old, new = without_common(text.splitlines(), after.splitlines())
    assert len(old) <= 3  # a quoted text of two lines stands in three
    assert len(new) <= 1
