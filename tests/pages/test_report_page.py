"""The report of a simulated run in a real browser: no error in its console, every figure drawn, in light and dark, on a
wide and a narrow screen."""

import json
import re
from pathlib import Path

import pytest

from planning.report.simulation import render
from tests.pages.browser import CHROMIUM, assert_drawn, browse, every_screen
from tests.planning.report.test_simulation import FACTS, run_of

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(run_of(2_000, 400.0), FACTS), encoding="utf-8")
    return path


@every_screen
def test_every_figure_is_drawn_and_the_console_is_clean(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert_drawn(tmp_path, page, options, figures=6)


def test_a_screenshot_and_a_print_can_be_made(page: Path, tmp_path: Path) -> None:
    picture, paper = tmp_path / "page.png", tmp_path / "page.pdf"
    browse(tmp_path / "a", page, f"--screenshot={picture}", "--window-size=1280,3000")
    browse(tmp_path / "b", page, f"--print-to-pdf={paper}")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert paper.read_bytes()[:5] == b"%PDF-"


POKE = """
<script>
setTimeout(async () => {
  const plots = [...document.querySelectorAll(".plot")];
  const spans = () => plots.map((plot) => plot.layout.xaxis.range.map((end) => end.toFixed(3)).join(".."));
  const pause = () => new Promise((resolve) => setTimeout(resolve, 1000));
  const seen = { before: spans() };
  document.querySelector("button.goto").click();
  await pause();
  seen.minute = spans();
  await Plotly.relayout(plots[3], { "xaxis2.range": [1, 2] });
  await pause();
  seen.dragged = spans();
  document.getElementById("whole").click();
  await pause();
  seen.whole = spans();
  dispatchEvent(new Event("beforeprint"));
  seen.printed = plots.map((plot) => plot.querySelector(".main-svg").width.baseVal.value);
  dispatchEvent(new Event("afterprint"));
  await pause();
  seen.after = plots.map((plot) => plot.querySelector(".main-svg").width.baseVal.value);
  document.title = JSON.stringify(seen);
}, 4000);
</script>
"""


def test_figures_zoom_together_and_fit_the_paper(page: Path, tmp_path: Path) -> None:
    poked = tmp_path / "poked.html"
    poked.write_text(page.read_text(encoding="utf-8").replace("</body>", POKE + "</body>"), encoding="utf-8")
    dom = browse(tmp_path / "home", poked, "--window-size=1280,2000", "--dump-dom")
    assert "CONSOLE" not in dom.stderr
    found = re.search(r"<title>(\{.*?\})</title>", dom.stdout)
    assert found is not None
    seen = json.loads(found[1])
    for spans in (seen["before"], seen["minute"], seen["dragged"], seen["whole"]):
        assert len(set(spans)) == 1
    assert seen["minute"] != seen["before"] == seen["whole"]
    assert seen["dragged"][0] == "1.000..2.000"
    assert set(seen["printed"]) == {680}
    assert min(seen["after"]) > 1_000
