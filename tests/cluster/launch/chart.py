"""Renders `infra/helm/raylane` without Helm: the few forms of Go's templates that the chart uses (`.Values`,
`.Release.Namespace`, if and if not, define and include, required, toYaml, toJson, nindent). Any other form is an
error."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "infra" / "helm" / "raylane"
_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)


def rendered_chart(values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """The objects, as `helm template` prints them."""
    context = {"Values": {**yaml.safe_load((CHART / "values.yaml").read_text()), **values}}
    context["Release"] = {"Namespace": namespace}
    texts = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
    helpers = _defined(texts.pop("_helpers.tpl"))
    objects = [yaml.safe_load(_rendered(text, context, helpers)) for text in texts.values()]
    return [one for one in objects if one is not None]


def _defined(text: str) -> dict[str, str]:
    parts = re.findall(r"\{\{- define \"(.*?)\" -\}\}(.*?)\{\{- end -\}\}", text, re.DOTALL)
    return {name: body.strip() for name, body in parts}


def _rendered(text: str, context: dict[str, Any], helpers: dict[str, str]) -> str:
    out, shown, at, trims = [""], [True], 0, False
    for action in _ACTION.finditer(text):
        before = text[at : action.start()]
        before = before.lstrip() if trims else before
        out.append((before.rstrip() if action[1] else before) if all(shown) else "")
        at, trims = action.end(), bool(action[3])
        words = action[2]
        if words.startswith("if "):
            negated = words.startswith("if not ")
            shown.append(bool(_value(words.split()[-1], context, helpers)) is not negated)
        elif words == "end":
            shown.pop()
        elif all(shown):
            out.append(_piped(words, context, helpers))
    assert shown == [True], "an `if` without its `end`"
    return "".join(out) + text[at:]


def _piped(words: str, context: dict[str, Any], helpers: dict[str, str]) -> str:
    first, *filters = (part.strip() for part in words.split("|"))
    text = str(_value(first, context, helpers))
    for one in filters:
        name, spaces = one.split()
        assert name == "nindent", one
        text = "\n" + "\n".join(" " * int(spaces) + line if line else line for line in text.rstrip("\n").split("\n"))
    return text


def _value(words: str, context: dict[str, Any], helpers: dict[str, str]) -> Any:
    if words.startswith("."):
        found: Any = context
        for part in words.strip(".").split("."):
            found = found[part]
        return found
    name, _, rest = words.partition(" ")
    if name == "include":
        return _rendered(helpers[rest.split('"')[1]], context, helpers)
    if name == "required":
        message, place = re.fullmatch(r'"(.*)" (\S+)', rest, re.DOTALL).groups()  # type: ignore[union-attr]
        found = _value(place, context, helpers)
        assert found, message
        return found
    value = _value(rest, context, helpers)
    if name == "toYaml":
        return yaml.safe_dump(value, sort_keys=True, width=10_000)
    assert name == "toJson", f"no form of the chart: {words}"
    return json.dumps(value)
