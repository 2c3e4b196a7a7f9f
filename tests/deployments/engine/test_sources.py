"""Where a replica's files come from."""

from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError
from cluster.spec import EngineSettings, LoraAdapter, Model, Speculative
from deployments.engine.sources import all_local, resolve_adapter


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """A model's folder and an adapter's."""
    for name, marker in (("model", "config.json"), ("adapter", "adapter_config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / marker).write_text("{}")
    return str(tmp_path / "model"), str(tmp_path / "adapter")


def test_an_adapter_is_a_folder_with_its_config_or_a_hub_name(folders: tuple[str, str]) -> None:
    assert resolve_adapter(folders[1]) == folders[1]
    assert resolve_adapter("org/adapter") == "org/adapter"
    with pytest.raises(ArtifactError, match=r"adapter_config\.json; allowed"):
        resolve_adapter(folders[0])


@pytest.mark.parametrize(("draft", "adapter", "local"), [("local", "local", True), ("org/draft", "local", False), ("local", "org/adapter", False)])
def test_one_file_from_a_hub_makes_the_whole_not_local(folders: tuple[str, str], draft: str, adapter: str, local: bool) -> None:
    speculative = Speculative(method="draft_model", model=folders[0] if draft == "local" else draft)
    adapters = (LoraAdapter(name="a", source=folders[1] if adapter == "local" else adapter),)
    model = Model(name="m", source=folders[0], settings=EngineSettings(max_model_len=64, speculative=speculative), adapters=adapters)
    assert all_local(model) is local
