"""What operators send with their orders: closed JSON objects, whose errors name the key, the value and what is allowed."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from cluster.spec import problem_lines
from cluster.spec.base import Section
from deployments.cell.control import LONGEST_S, MOST_REPLICAS, SHORTEST_S
from deployments.openai.errors import ApiError, ErrorCode
from deployments.protocol import DrainReason

Form = TypeVar("Form", bound="OrderForm")
Text = Annotated[str, Field(max_length=1_000)]
Named = Annotated[str, Field(min_length=1, max_length=200)]


class OrderForm(Section):
    """`by`: who orders it, as known on the machine of the command; `why` is for the audit."""

    by: Named
    why: Text = ""


class ControlForm(OrderForm):
    """A hold (no fewer than so many `replicas`) or a pin (exactly so many) of a model, for so many seconds."""

    model: Named
    kind: Literal["hold", "pin"]
    replicas: Annotated[int, Field(ge=0, le=MOST_REPLICAS)]
    for_s: Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]

    @model_validator(mode="after")
    def _holds_something(self) -> "ControlForm":
        if self.kind == "hold" and not self.replicas:
            raise ValueError("replicas = 0: allowed: at least 1 for a hold; to have none is a pin")
        return self


class ReleaseForm(OrderForm):
    """Ends what holds or pins a model."""

    model: Named


class CordonForm(OrderForm):
    """Keeps new work off a replica (the whole of its id, or its beginning or end), or with `undo` no more."""

    replica: Named
    undo: bool = False


class DrainForm(OrderForm):
    """Drains a replica, or all of a node, by the whole, the beginning or the end of its id."""

    replica: Named | None = None
    node: Named | None = None
    reason: Literal[DrainReason.OPERATOR, DrainReason.SPOT_NOTICE] = DrainReason.OPERATOR

    @model_validator(mode="after")
    def _names_one(self) -> "DrainForm":
        if (self.replica is None) == (self.node is None):
            raise ValueError(f"replica = {self.replica!r}, node = {self.node!r}: allowed: one of the two")
        return self


class ShadowForm(OrderForm):
    """Makes the shadow law of a model the active one, or takes that back; with `force` also where a changed spec did it, not an order."""

    model: Named
    kind: Literal["promote", "rollback"]
    force: bool = False


def read_form(kind: type[Form], body: bytes) -> Form:
    """The form in a body. Raises ApiError."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ApiError(ErrorCode.INVALID_VALUE, "; ".join(problem_lines(error, kind)), param=".".join(map(str, problem["loc"])) or None) from None
