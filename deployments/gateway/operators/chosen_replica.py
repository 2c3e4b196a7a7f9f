"""Which replicas an operator means: an id is long, so a part of it that is no other's will do. Pure."""

from collections.abc import Iterable

from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown


def chosen(what: str, name: str, known: Iterable[str]) -> str:
    """The one of the `known` ids that is `name`, or else begins or ends with it. Raises ApiError, which lists what there is."""
    ids = sorted(set(known))
    if name in ids:
        return name
    found = [one for one in ids if name and (one.startswith(name) or one.endswith(name))]
    if len(found) == 1:
        return found[0]
    if found:
        message = f"{what} = {shown(name)}: several begin or end so; allowed: a part that is one's alone, of {', '.join(found)}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param=what)
    raise ApiError(ErrorCode.NOT_FOUND, f"{what} = {shown(name)}: unknown; there are: {', '.join(ids) or 'none'}", param=what)
