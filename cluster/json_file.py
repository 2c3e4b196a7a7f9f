"""Small JSON files with a pydantic schema: read with errors that name file, key and value, and written in one move."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cluster.whole_file import write_whole

ContentT = TypeVar("ContentT", bound=BaseModel)

_SHOWN = 80
"""Characters of a value: longer ones are whole sections, whose message says what is wrong in them."""


def read_json(path: Path, kind: type[ContentT], error_kind: type[ValueError]) -> ContentT:
    """The file's content. Raises `error_kind`."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_kind(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise error_kind(f"{path}: is no JSON: byte {error.start} is not UTF-8") from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        value = "" if problem["type"] == "missing" or len(repr(problem["input"])) > _SHOWN else f" = {problem['input']!r}"
        raise error_kind(f"{path}: {key}{value}: {problem['msg']}") from None


def write_json(path: Path, content: BaseModel) -> None:
    """Writes it, in one move: nobody reads half a file. Raises OSError."""
    write_whole(path, json.dumps(content.model_dump(mode="json"), indent=2) + "\n")
