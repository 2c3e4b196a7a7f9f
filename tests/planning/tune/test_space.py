"""Where settings are looked for: what is drawn becomes what a person would write, in range, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.policies.registry import POLICIES
from autoscaling.policies.settings import Range
from planning.tune.case import CaseError, own_and_defaults, space_of
from planning.tune.space import MIN, Space, rounded
from planning.tune.trial import Candidate
from tests.planning.tune import cases

RANGES = st.one_of(
    st.tuples(st.floats(0.01, 100), st.floats(1.5, 1_000)).map(
        lambda pair: Range(pair[0], pair[0] * pair[1], log=True)
    ),
    st.tuples(st.floats(-10, 10), st.floats(0.5, 100)).map(lambda pair: Range(pair[0], pair[0] + pair[1])),
    st.tuples(st.integers(1, 10), st.integers(1, 90)).map(lambda pair: Range(pair[0], pair[0] + pair[1], integer=True)),
)


@given(RANGES, st.floats(0, 1))
def test_rounding_stays_in_range_and_near(span: Range, share: float) -> None:
    value = span.low + share * (span.high - span.low)
    near = rounded(value, span)
    assert span.low <= near <= span.high
    assert rounded(near, span) == pytest.approx(near)
    assert abs(near - value) <= max(0.06 * abs(value), 0.02 * (span.high - span.low), 0.5 if span.integer else 0.0)


def test_what_is_drawn_becomes_settings_and_back() -> None:
    space = Space({"a": Range(1, 100, log=True), "b": Range(0.0, 1.0)}, (1, 3), {"a": 5.0, "b": 0.5, "kept": True})
    candidate = space.candidate({"a": 12.345, "b": 0.12345, MIN: 2})
    assert candidate == Candidate({"a": 12.0, "b": 0.12, "kept": True}, 2)
    assert space.drawn(candidate) == {"a": 12.0, "b": 0.12, MIN: 2}
    assert space.drawn(Candidate({"a": 1e9, "b": -1.0}, 9)) == {"a": 100, "b": 0.0, MIN: 3}
    assert set(space.distributions()) == {"a", "b", MIN}


def test_a_place_is_what_would_be_drawn_there() -> None:
    space = Space({"a": Range(1, 100, log=True), "b": Range(2, 6, integer=True)}, (1, 3), {"a": 1.0, "b": 2})
    assert space.place(Candidate({"a": 10.0, "b": 4}, 2)) == pytest.approx([0.5, 0.5, 0.5])
    assert space.at([0.5, 0.6, 1.0]) == {"a": pytest.approx(10.0), "b": 4, MIN: 3}
    assert space.at(space.place(Candidate({"a": 1e9, "b": -1}, 9))) == {"a": 100.0, "b": 2, MIN: 3}
    fixed_min = Space(space.ranges, (1, 1), space.base)
    assert len(fixed_min.place(Candidate({"a": 10.0, "b": 4}, 1))) == 2
    assert MIN not in fixed_min.at([0.5, 0.5])


def test_the_space_of_a_spec_is_that_of_its_policy() -> None:
    case, spec = cases.case(), cases.spec()
    own, defaults = own_and_defaults(spec, spec.models[0])
    assert own is not None
    assert own.settings["utilisation"] == 0.7
    assert own.minimum == 2
    space = space_of(case, own, defaults)
    assert space.ranges == POLICIES["backlog"].search
    assert space.minimum[0] == 1
    assert space.base["zero_after_s"] == 300.0
    assert "period_s" not in space.base


def test_zero_replicas_are_offered_only_where_the_spec_allows_them() -> None:
    text = cases.TEXT.replace("count: 2, min: 2", "count: 2, min: 0")
    spec = cases.spec(text)
    assert space_of(cases.case(text), *own_and_defaults(spec, spec.models[0])).minimum[0] == 0


def test_a_fixed_spec_needs_to_say_how_many_there_may_be() -> None:
    fixed = cases.TEXT.split("autoscaling:")[0] + "autoscaling: {policy: fixed}\n"
    case = cases.case(fixed)
    assert (case.setup.policy.name, case.fixed) == ("backlog", 2)
    assert own_and_defaults(cases.spec(fixed), cases.spec(fixed).models[0])[0] is None
    with pytest.raises(CaseError, match=r"models.demo.replicas.max: missing; needed"):
        cases.case(fixed.replace(", max: 8", ""))
