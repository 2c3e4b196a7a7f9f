"""What a head that starts again hands to Serve."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.deploy import restore as restore_module
from cli.deploy.restore import restore
from cli.deploy.serve_api import DeployError, ServeApi

CONFIG = {"applications": [{"name": "gateway"}]}


class Head(ServeApi):
    """Ray's head: it does not answer at first, and workers join one by one."""

    def __init__(self, has: set[str] | None = None, silent: int = 0) -> None:
        self.has, self.silent = has or set(), silent
        self.asked, self.got = 0, list[Mapping[str, Any]]()

    def names(self) -> set[str]:
        self.silent -= 1
        if self.silent >= 0:
            raise DeployError("the head does not answer")
        return self.has

    def workers(self) -> set[str]:
        self.asked += 1
        return {str(number) for number in range(self.asked)}

    def put(self, config: Mapping[str, Any]) -> None:
        self.got.append(config)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(restore_module, "POLL_S", 0.0)
    file = tmp_path / "applications.json"
    file.write_text(json.dumps(CONFIG))
    return file


def test_a_head_without_applications_gets_them_when_the_workers_are_there(kept: Path) -> None:
    head = Head(silent=3)
    assert restore(head, kept, 2) == "Serve got its applications again; workers: 2 of 2"
    assert head.got == [CONFIG]
    assert head.asked == 2


def test_a_head_that_has_its_state_is_left_alone(kept: Path) -> None:
    head = Head(has={"gateway"}, silent=1)
    assert "nothing to do" in restore(head, kept, 2)
    assert (head.got, head.asked) == ([], 0)


def test_a_deployment_that_is_under_way_goes_first(kept: Path) -> None:
    head = Head()
    kept.unlink()
    assert "a deployment is under way" in restore(head, kept, 1)
    assert head.got == []


def test_workers_that_do_not_come_are_not_waited_for_for_ever(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_module, "WORKERS_S", 0.0)
    head = Head()
    assert restore(head, kept, 5) == "Serve got its applications again; workers: 1 of 5"
    assert head.got == [CONFIG]


def test_a_head_that_never_answers_is_an_error(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_module, "HEAD_S", 0.0)
    with pytest.raises(DeployError, match="does not answer"):
        restore(Head(silent=9), kept, 1)
