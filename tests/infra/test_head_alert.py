"""The shipped alert on Ray's head, by Prometheus' own tool."""

from pathlib import Path

import pytest
import yaml

from tests.infra.conftest import ROOT
from tests.infra.promtool import needs_promtool, promtool

RULES = ROOT / "infra" / "alerts" / "head.yaml"
AGE = 'raylane_directory_age_seconds{cell="team", gateway="%s"}'


@needs_promtool
@pytest.mark.parametrize(("ages", "fires"), [(("3x10 63+60x20", "1x10 62+60x20"), True), (("63+60x30", "4x30"), False)])
def test_it_fires_when_no_gateway_hears_of_the_head(tmp_path: Path, ages: tuple[str, str], fires: bool) -> None:
    case = {
        "interval": "1m",
        "input_series": [{"series": AGE % name, "values": values} for name, values in zip("ab", ages, strict=True)],
        "alert_rule_test": [{"eval_time": "20m", "alertname": "RaylaneHeadLost", "exp_alerts": []}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    if not fires:
        promtool("test", "rules", file)
        return
    with pytest.raises(AssertionError, match="RaylaneHeadLost"):
        promtool("test", "rules", file)
