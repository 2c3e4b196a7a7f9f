"""What the tests of scaling's turns share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.autoscaling.serve.played import Played


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Played]]:
    all_played: list[Played] = []

    def make(ready: int = 1, folder: Path = tmp_path, **given: Any) -> Played:
        all_played.append(Played(folder, ready, **given))
        return all_played[-1]

    yield make
    for one in all_played:
        one.scaling.close()
