"""Small JSON files with a pydantic schema: read with errors that name file, key and value, and written in one move."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

ContentT = TypeVar("ContentT", bound=BaseModel)


def read_json(path: Path, kind: type[ContentT], error_kind: type[ValueError]) -> ContentT:
    """The file's content. Raises `error_kind`."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_kind(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise error_kind(f"{path}: {key} = {problem['input']!r:.80}: {problem['msg']}") from None


def write_json(path: Path, content: BaseModel) -> None:
    """Writes it, in one move: nobody reads half a file."""
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_text(json.dumps(content.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
