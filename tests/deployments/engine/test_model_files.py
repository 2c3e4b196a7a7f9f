"""A replica's model, on its node before the engine starts."""

from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError, Held, ModelCache
from cluster.artifacts.manifest import Manifest
from cluster.spec import Artifacts, EngineSettings, LoraAdapter, Model, ReplicasSpec, Speculative
from deployments.engine import model_files
from deployments.engine.args import arguments
from deployments.engine.model_files import fetch_files
from deployments.engine.start_clock import StartClock
from deployments.starts.phases import Phase


def folder(path: Path, mark: str) -> str:
    path.mkdir()
    (path / mark).write_text("{}")
    (path / "weights").write_bytes(b"x" * 1_000)
    return str(path)


def test_model_adapters_and_draft_become_folders_that_are_held(tmp_path: Path) -> None:
    draft = Speculative(method="draft_model", model=folder(tmp_path / "draft", "config.json"))
    model = Model(
        name="m",
        source=folder(tmp_path / "model", "config.json"),
        settings=EngineSettings(max_model_len=64, speculative=draft),
        adapters=(LoraAdapter(name="a", source=folder(tmp_path / "adapter", "adapter_config.json")),),
    )
    local = fetch_files(model, Artifacts(cache=str(tmp_path / "cache"), copy_folders=True))
    assert len(local.leases) == 3
    assert all((Path(source) / "weights").is_file() for source in local.model.sources)
    assert all(str(tmp_path / "cache") in source for source in local.model.sources)
    values = arguments(local.model)
    assert values["model"] == local.model.source
    assert values["speculative_config"]["model"] == local.model.sources[2]
    for lease in local.leases:
        lease.release()


def test_a_stream_is_left_to_vllms_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(max_model_len=64)
    model = Model(name="m", source="s3://bucket/model", load="stream", settings=settings)
    with pytest.raises(ArtifactError, match=r"models\.m\.load = 'stream': needs the package runai-model-streamer"):
        fetch_files(model, Artifacts(cache=str(tmp_path)))
    monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: object())
    local = fetch_files(model, Artifacts(cache=str(tmp_path)))
    assert (local.model, local.leases, local.version) == (model, (), "")
    values = arguments(local.model)
    assert (values["model"], values["load_format"]) == ("s3://bucket/model", "runai_streamer")


@pytest.mark.parametrize("copied", [False, True])
def test_the_version_is_another_where_weights_or_settings_are(tmp_path: Path, copied: bool) -> None:
    artifacts = Artifacts(cache=str(tmp_path / "cache"), copy_folders=copied)
    settings = EngineSettings(max_model_len=64)
    model = Model(
        name="m",
        source=folder(tmp_path / "model", "config.json"),
        settings=settings,
        adapters=(LoraAdapter(name="a", source=folder(tmp_path / "adapter", "adapter_config.json")),),
    )

    def version(model: Model) -> str:
        local = fetch_files(model, artifacts)
        for lease in local.leases:
            lease.release()
        return local.version

    if not copied:  # a copy refuses it
        (tmp_path / "model" / "old").symlink_to("/nowhere")
    first = version(model)
    assert first
    more = model.model_copy(update={"replicas": ReplicasSpec(count=2), "owner": "x"})
    assert version(more) == first, "not of the answers"
    cooler = model.model_copy(update={"settings": settings.model_copy(update={"quantization": "fp8"})})
    seen = {first, version(cooler)}
    for changed in ("model", "adapter"):
        (tmp_path / changed / "weights").write_bytes(b"y" * 1_000)
        seen.add(version(model))
    assert len(seen) == 4


def test_only_what_a_loader_can_read_may_be_streamed() -> None:
    with pytest.raises(ValueError, match=r"load = 'stream' with source = 'org/model': allowed: an s3:// prefix or a"):
        Model(name="m", source="org/model", load="stream", settings=EngineSettings(max_model_len=64))


def test_the_cached_loader_is_vllms_own() -> None:
    model = Model(name="m", source="demo", settings=EngineSettings(max_model_len=64))
    assert "load_format" not in arguments(model)


def test_a_fetch_that_runs_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "model", "config.json")
    model = Model(name="m", source=source, settings=EngineSettings(max_model_len=64))
    clock, told = StartClock(), []
    publish = ModelCache.publish

    def published(cache: ModelCache, name: str, manifest: Manifest) -> Held:
        told.append(clock.report("r", "m", "n"))
        return publish(cache, name, manifest)

    monkeypatch.setattr(ModelCache, "publish", published)
    fetch_files(model, Artifacts(cache=str(tmp_path / "cache"), copy_folders=True), clock=clock)
    (report,) = told
    assert report.phase is Phase.FETCH
    assert report.fetching is not None
    assert (report.fetching.there_bytes, report.fetching.total_bytes) == (1_002, 1_002)
    assert clock.report("r", "m", "n").fetching is None
