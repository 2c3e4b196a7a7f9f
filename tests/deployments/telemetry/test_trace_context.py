"""The trace of a request, by its headers. Judged by OpenTelemetry's own reader of them, and its own sampler."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cluster.spec import Tracing
from deployments.telemetry.trace_context import TraceContext, context_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"
ENDPOINT = "http://127.0.0.1:4318/v1/traces"


def found(*traceparents: str, state: str | None = None, of_peer: bool = False, **tracing: object) -> TraceContext:
    headers = [(b"traceparent", one.encode("latin-1")) for one in traceparents]
    headers += [] if state is None else [(b"tracestate", state.encode())]
    return context_of(headers, Tracing.model_validate({"endpoint": ENDPOINT, **tracing}), of_peer)


def read_by_opentelemetry(traceparent: str) -> tuple[int, int, bool] | None:
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    span = get_current_span(context).get_span_context()
    return (span.trace_id, span.span_id, span.trace_flags.sampled) if span.is_valid else None


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00",
        GIVEN.upper(),
        GIVEN[:-1],
        GIVEN + "0",
        GIVEN + "-what-the-future-will-bring",
        GIVEN + "-" + "f" * 60_000,
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        f"00_{TRACE}_{PARENT}_01",
        f"cc-{TRACE}-{PARENT}-01.with",
        "00-\xe9" + GIVEN[4:],
    ],
)
def test_what_is_not_valid_begins_a_new_trace(given: str) -> None:
    one = found(given, trust_clients=True, ratio=0, state="a=1")
    assert (one.parent_id, one.sampled, one.state) == (0, False, "")
    assert one.trace_id not in (0, int(TRACE, 16))
    assert read_by_opentelemetry(given) is None


def test_two_contexts_are_none() -> None:
    assert found(GIVEN, GIVEN).parent_id == found().parent_id == 0


def test_a_valid_one_is_continued_and_a_later_version_too() -> None:
    for one in map(found, (GIVEN, f"cc-{TRACE}-{PARENT}-01-more")):
        assert (one.trace_id, one.parent_id) == (int(TRACE, 16), int(PARENT, 16))
        assert one.span_id not in (0, one.parent_id)


@pytest.mark.whole
@given(
    st.text(st.sampled_from("0123456789abcdefg-"), max_size=60)
    | st.from_regex(r"0[01]-[0-9a]{32}-[0-9a]{16}-0[0-3](-a)?", fullmatch=True)
)
@example(GIVEN)
def test_it_is_read_as_opentelemetry_reads_it(given: str) -> None:
    one, judged = found(given, trust_clients=True, ratio=0), read_by_opentelemetry(given)
    assert ((one.trace_id, one.parent_id, one.sampled) if one.parent_id else None) == judged
    assert read_by_opentelemetry(one.traceparent) == (one.trace_id, one.span_id, one.sampled)


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1), st.sampled_from(["00", "01"]))
@example((1 << 128) - 1, 1.0, "00")
def test_it_is_sampled_as_opentelemetry_samples(trace_id: int, ratio: float, flags: str) -> None:
    judged = TraceIdRatioBased(ratio).should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
    assert found(f"00-{trace_id:032x}-{PARENT}-{flags}", ratio=ratio).sampled is judged, (
        "the client's flag says nothing"
    )


def test_new_traces_are_sampled_at_the_ratio() -> None:
    sampled = sum(found(ratio=0.25).sampled for _ in range(4_000))
    assert 850 < sampled < 1_150  # five standard deviations


@pytest.mark.parametrize("flags", ["00", "01", "03", "fe"])
def test_a_flag_counts_where_it_is_trusted(flags: str) -> None:
    given, flag = f"00-{TRACE}-{PARENT}-{flags}", int(flags, 16) % 2 == 1
    assert found(given, ratio=0).sampled is False
    assert found(given, ratio=1).sampled is True
    for ratio in (0, 1):
        assert found(given, ratio=ratio, trust_clients=True).sampled is flag
        assert found(given, ratio=ratio, of_peer=True).sampled is flag


def test_state_is_passed_on_where_it_is_trusted() -> None:
    assert found(GIVEN, state="a=1,b=2", trust_clients=True).headers["tracestate"] == "a=1,b=2"
    for state in ("a=\x01", "a=" + "b" * 600, ""):
        assert "tracestate" not in found(GIVEN, state=state, trust_clients=True).headers
    assert "tracestate" not in found(GIVEN, state="a=1").headers
