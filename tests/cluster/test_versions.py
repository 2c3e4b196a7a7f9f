"""The versions of this machine, and how differences are reported."""

import platform

import ray

from cluster.versions import content_version, differences, sources_digest, versions_here


def test_this_machine_has_them_all() -> None:
    found = versions_here()
    assert found["Ray"] == ray.__version__
    assert found["Python"] == platform.python_version()
    assert sources_digest() in found["raylane"]
    assert found["vLLM"][0].isdigit()
    assert "+" not in found["vLLM"]


def test_each_difference_names_both_versions() -> None:
    found = {"raylane": "1", "Ray": "2.59.0"}
    assert differences({"raylane": "1", "Ray": "2.60.0", "vLLM": "0.32.0"}, found) == [
        "Ray 2.59.0 instead of 2.60.0",
        "vLLM none instead of 0.32.0",
    ]
    assert differences({"Ray": "2.59.0"}, found) == []


def test_the_same_content_has_the_same_version() -> None:
    assert content_version("a", "b") == content_version("a", "b")
    assert len({content_version("a", "b"), content_version("ab"), content_version("a", "c")}) == 3
