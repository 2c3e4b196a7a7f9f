"""YAML that any parser reads alike: PyYAML, which writes it, knows YAML 1.1; Kubernetes and Helm read what Go makes of
1.1 and 1.2."""

import re
from typing import Any

import yaml

_NO_TEXT = re.compile(
    r"[-+.]*\d.*|[-+]?\.?(inf|infinity|nan)|y|n|yes|no|on|off|true|false|null|~", re.IGNORECASE | re.DOTALL
)
"""What some parser takes for a number, a date, a truth value or nothing: 098765432109, 12e4, 1_000, 0x1F, 1:30, y."""


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, to be read; quotes wherever a text may be taken for something else; no
    references between objects."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _NO_TEXT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any) -> str:
    """One document, or several."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110))
