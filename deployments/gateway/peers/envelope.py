"""What crosses a hop beside the request's body: the facts of the hop, the path that the client asked for, its request
id, and its trace context. One header, which is signed."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import from_json

from deployments.gateway.exchange import TRACE_HEADERS
from deployments.ownership.hop_messages import facts_of, read_facts
from deployments.peering import HopFacts

_VALUE = re.compile(r"[\x20-\x7e]{1,1024}")
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MAX_HEADER = 32 << 10


@dataclass(frozen=True, slots=True)
class HopEnvelope:
    """`request_id`: the client's own, or the one that home gave it."""

    facts: HopFacts
    path: str
    request_id: str
    trace: Mapping[str, str]

    def header(self) -> str:
        """As the header's value."""
        content = {
            "facts": facts_of(self.facts),
            "path": self.path,
            "request_id": self.request_id,
            "trace": dict(self.trace),
        }
        return base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).decode()


def read_envelope(header: str) -> HopEnvelope:
    """Raises ValueError, which says nothing of the content."""
    if len(header) > _MAX_HEADER:
        raise ValueError(f"a header of {len(header)} characters; allowed: at most {_MAX_HEADER}")
    try:
        content = from_json(base64.urlsafe_b64decode(header.encode("ascii", "strict")))
        path, request_id, trace = content["path"], content["request_id"], content["trace"]
        facts = read_facts(content["facts"])
        is_text = all(isinstance(text, str) for text in (path, request_id, *trace, *trace.values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("not what crosses a hop") from None
    if not is_text or not _ID.fullmatch(request_id) or set(trace) - set(TRACE_HEADERS):
        raise ValueError("not what crosses a hop")
    if not all(_VALUE.fullmatch(value) for value in trace.values()):
        raise ValueError("not what crosses a hop")
    return HopEnvelope(facts, path, request_id, trace)
