"""What commands say of an error's page that is not a gateway's."""

import pytest

from cli.gateway import error_message
from tests.commands import ran
from tests.http_server import listening, saying


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"error": {"message": "full"}}, "full"),
        ({"error": "no healthy upstream"}, "no healthy upstream"),
        ({"error": {"code": 5}}, ""),
        ({"error": None}, ""),
        ({}, ""),
        (["down"], ""),
    ],
)
def test_an_errors_words_are_found_where_they_may_be(answer: object, says: str) -> None:
    assert error_message(answer) == says


def test_a_load_balancers_error_is_one_line() -> None:
    with listening(saying(b'{"error": "no healthy upstream"}', 503)) as url:
        result = ran("status", "--once", "--url", url, code=1)
    assert result.stderr.strip() == "error: no healthy upstream"
