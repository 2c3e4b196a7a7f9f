"""From settings to a diff of the spec: in the right section, with nothing else changed, and checked."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.policies.registry import POLICIES
from benchmarks.policies.rivals import hpa
from cluster.spec import parse_spec
from planning.tune.case import own_and_defaults
from planning.tune.space import rounded
from planning.tune.suggestion import Suggestion, suggest
from planning.tune.trial import Candidate
from tests.planning.tune.cases import TEXT, spec

PLACE = Path("small.yaml")
SECOND = TEXT.replace(
    "classes:\n", "  - {name: other, source: demo, settings: {max_model_len: 8192}, replicas: {max: 3}}\nclasses:\n"
)


def suggested(text: str, minimum: int, model: int = 0, **settings: float | bool) -> Suggestion:
    found = spec(text)
    own, defaults = own_and_defaults(found, found.models[model])
    return suggest(
        text, PLACE, found, found.models[model], Candidate({**(own or defaults).settings, **settings}, minimum)
    )


def changed(suggestion: Suggestion) -> list[str]:
    return [line for line in suggestion.diff.splitlines()[2:] if line[0] in "+-"]


GROUPED = TEXT.replace(
    "    replicas:",
    """    groups:
      - {name: small, settings: {max_model_len: 2048}, replicas: {count: 2, min: 1, max: 4}}
      - name: large
    lanes: {short: [small, large]}
    replicas:""",
)


@pytest.mark.parametrize("group", [0, 1])
def test_a_group_gets_a_section_of_its_own_and_the_other_one_stays(group: int) -> None:
    found = spec(GROUPED)
    view = found.models[0].views[group]
    own, _ = own_and_defaults(found, view)
    assert own is not None
    candidate = Candidate({**own.settings, "utilisation": 0.9}, 3)
    suggestion = suggest(GROUPED, PLACE, found, view, candidate)
    after = parse_spec(suggestion.text, "small.yaml")
    changed_view, other = after.models[0].views[group], after.models[0].views[1 - group]
    assert after.autoscaling_of(changed_view).backlog.utilisation == 0.9
    assert after.autoscaling_of(changed_view).backlog.down_after_s == 900
    assert changed_view.replicas == view.replicas.model_copy(update={"min": 3, "count": 3})
    assert (after.autoscaling, other) == (found.autoscaling, found.models[0].views[1 - group])
    again = suggest(suggestion.text, PLACE, after, changed_view, Candidate({**own.settings, "utilisation": 0.8}, 3))
    assert len(changed(again)) == 2, "one line out, one in"


def test_only_what_differs_is_in_the_diff() -> None:
    found = suggested(TEXT, 2, utilisation=0.9, zero_after_s=60.0)
    assert changed(found) == [
        "-    utilisation: 0.7   # a third free",
        "+    utilisation: 0.9   # a third free",
        "+    zero_after_s: 60",
    ]
    assert found.diff.startswith("--- small.yaml\n+++ small.yaml\n")
    assert suggested(TEXT, 2).diff == ""


def test_the_least_number_changes_and_the_count_with_it() -> None:
    assert changed(suggested(TEXT, 3)) == [
        "-    replicas: {count: 2, min: 2, max: 8}   # never one alone",
        "+    replicas: {count: 3, min: 3, max: 8}   # never one alone",
    ]
    assert "+    replicas: {count: 2, min: 1, max: 8}   # never one alone" in changed(suggested(TEXT, 1))


def test_a_model_that_shares_the_section_gets_its_own() -> None:
    found = suggested(SECOND, 2, utilisation=0.9)
    before, after = spec(SECOND), parse_spec(found.text, "small.yaml")
    assert after.autoscaling == before.autoscaling
    assert after.models[0].autoscaling is not None
    assert after.models[0].autoscaling.backlog == before.autoscaling.backlog.model_copy(update={"utilisation": 0.9})
    assert after.models[1] == before.models[1]


def test_the_section_that_it_gets_names_files_as_the_spec_does(tmp_path: Path) -> None:
    text = SECOND + "  costs: costs.json\n"
    place = tmp_path / "small.yaml"
    found = parse_spec(text, str(place), tmp_path)
    assert found.autoscaling.costs == str(tmp_path / "costs.json")
    own, _ = own_and_defaults(found, found.models[0])
    assert own is not None
    changed = suggest(text, place, found, found.models[0], Candidate({**own.settings, "utilisation": 0.9}, 2))
    assert changed.text.count("costs: costs.json") == 2
    assert str(tmp_path) not in changed.text
    after = parse_spec(changed.text, str(place), tmp_path)
    assert after.autoscaling_of(after.models[0]).costs == found.autoscaling.costs


def test_a_model_with_a_section_of_its_own_keeps_it() -> None:
    text = TEXT.replace(
        "    source: demo\n", "    source: demo\n    autoscaling: {policy: backlog, backlog: {short_cost: 5}}\n"
    )
    assert changed(suggested(text, 2, short_cost=7.0)) == [
        "-    autoscaling: {policy: backlog, backlog: {short_cost: 5}}",
        "+    autoscaling: {policy: backlog, backlog: {short_cost: 7}}",
    ]


def test_another_policys_settings_go_to_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "hpa", hpa.ENTRY)  # type: ignore[arg-type]
    text = TEXT.split("  policy: backlog")[0] + "  policy: hpa\n  settings: {target_waiting: 5.0}\n"
    assert changed(suggested(text, 2, target_waiting=8.0, tolerance=0.2)) == [
        "-  settings: {target_waiting: 5.0}",
        "+  settings: {target_waiting: 8, tolerance: 0.2}",
    ]


FIXED = TEXT.split("autoscaling:")[0] + "autoscaling: {policy: fixed}\n"
SETTINGS = st.fixed_dictionaries(
    {
        name: st.floats(span.low, span.high).map(lambda value, span=span: rounded(value, span))
        for name, span in POLICIES["backlog"].search.items()
    }  # type: ignore[misc]
)


@given(
    SETTINGS,
    st.integers(0, 8),
    st.sampled_from([TEXT, SECOND, FIXED, TEXT.split("autoscaling:")[0], TEXT.replace("\n", "\r\n")]),
)
@pytest.mark.whole
def test_any_settings_come_out_as_they_went_in(settings: dict[str, float], minimum: int, text: str) -> None:
    found = suggested(text, minimum, **settings)
    after = parse_spec(found.text, "small.yaml")
    scaling = after.autoscaling_of(after.models[0])
    assert scaling.policy == "backlog"
    assert {name: getattr(scaling.backlog, name) for name in settings} == settings
    assert after.models[0].replicas.min == minimum
    assert found.text.count("\r\n") in (0, found.text.count("\n"))
