"""What is rendered is read alike by parsers of YAML 1.1 (PyYAML) and of YAML 1.2 (ruamel.yaml), and has quotes where
Go's parsers would see a number."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cli.deploy.rendering import rendering_of
from cluster.launch.kuberay import MANIFESTS, VALUES
from cluster.launch.ray_yaml import RAY_YAML
from cluster.launch.yaml_text import yaml_text
from tests.cluster.launch.specs import AWS, KUBERNETES, PUBLIC, changed, spec_of

AS_NUMBERS = """
    098765432109 12e4 08 1_000 0x1F 0o7 0b1 017 .5 5. 1e3 +1 -0 1E-5 -.5e+3 .inf -.INF +.inf .NaN NaN inf -Infinity
    0x1p-2 1:30 190:20:30 2026-11-23 1.2.3 2026-11-23T07:00:00Z 10_000.5 685_230.15 0. 1,000 00 +12e03 0x_1 1__0
"""
AS_WORDS = "y Y n N yes No ON off true FALSE null Null ~"
"""What parsers of YAML take for a number, for a truth value or for nothing."""
NUMBERS = AS_NUMBERS.split()
WORDS = [*AS_WORDS.split(), "", " ", "=", "<<", "-", "?", "---"]
TEXTS = st.sampled_from([*NUMBERS, *WORDS]) | st.text(st.characters(exclude_categories=["Cs"]))
CONTENT = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXTS, part, max_size=4),
    max_leaves=12,
)


def read(text: str) -> list[Any]:
    """The documents, by YAML 1.2."""
    return list(YAML(typ="safe", pure=True).load_all(text))


@pytest.mark.whole
@given(st.lists(CONTENT, min_size=1, max_size=3))
def test_whatever_is_rendered_is_read_as_it_was(documents: list[Any]) -> None:
    text = yaml_text(*documents)
    assert read(text) == documents
    assert list(yaml.safe_load_all(text)) == documents


@pytest.mark.parametrize("text", [*NUMBERS, *AS_WORDS.split()])
def test_what_go_takes_for_something_else_has_quotes(text: str) -> None:
    assert yaml_text([text]) == f"- '{text}'\n"
    assert yaml_text({text: 1}) == f"'{text}': 1\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_go_reads_every_text_as_it_was(tmp_path: Path) -> None:
    texts = {f"k{number}": text for number, text in enumerate(NUMBERS + WORDS)}
    one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": texts}
    (tmp_path / "one.yaml").write_text(yaml_text(one))
    (tmp_path / "kustomization.yaml").write_text("resources: [one.yaml]\n")
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True)
    assert yaml.load(done.stdout, yaml.BaseLoader)["data"] == texts


def test_plain_words_have_none() -> None:
    for text in ("m5.large", "us-east-1", "ray start", "x1", "e5", "off-peak", "nan1", "i-0123456789", "v1", "none"):
        assert yaml_text([text]) == f"- {text}\n"
    assert yaml_text({"a": "one\ntwo\n"}) == "a: |\n  one\n  two\n"


def texts_at(content: Any, key: str) -> list[Any]:
    parts = list(content.values()) if isinstance(content, dict) else content if isinstance(content, list) else []
    own = [content[key]] if isinstance(content, dict) and key in content else []
    return own + [one for part in parts for one in texts_at(part, key)]


def rendered(region: dict[str, Any], file: str) -> list[Any]:
    spec = spec_of(region, **PUBLIC)
    return read(rendering_of(spec, spec, spec.regions[0]).files[file])


@pytest.mark.whole
def test_a_specs_texts_are_texts_in_every_rendered_file() -> None:
    hard = {f"k{number}": text for number, text in enumerate(NUMBERS)}
    pool = {**KUBERNETES["deploy"]["pools"][0], "node_selector": hard}
    cell = changed(KUBERNETES, environment={"HARD": "098765432109"}, gateway_annotations=hard, pools=[pool])
    for file in (MANIFESTS, VALUES):
        documents = rendered(cell, file)
        assert hard in texts_at(documents, "annotations")
        assert hard in texts_at(documents, "nodeSelector")
        assert "098765432109" in texts_at(documents, "value")
    (service,) = (one for one in rendered(cell, MANIFESTS) if one["kind"] == "RayService")
    (applications,) = read(service["spec"]["serveConfigV2"])
    assert applications == yaml.safe_load(service["spec"]["serveConfigV2"])
    (launched,) = rendered(changed(AWS, ssh_key="~/.ssh/other", key_name="12e4", setup=["08", "true"]), RAY_YAML)
    assert set(texts_at(launched, "KeyName")) == {"12e4"}
    assert launched["setup_commands"] == ["08", "true"]
