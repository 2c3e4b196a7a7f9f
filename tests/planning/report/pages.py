"""What every page of a report is held to."""

import json
import re

from planning.report.figures import swaps


def loads_nothing(page: str) -> None:
    """It is whole: it asks for nothing outside."""
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href|action|data)\s*=\s*["']?\s*(https?:)?//""", ours)
    assert not re.search(r"@import|url\(|<link", ours)
    assert "default-src 'none'" in ours
    assert page.count("</script>") == page.count("<script")


def whole_figure(name: str, text: str) -> None:
    """It has data, and every colour has its dark one."""
    assert json.loads(text)["data"], name
    assert set(re.findall(r'"(#[0-9a-fA-F]{6})"', text)) <= set(swaps()), name
