"""The example dashboard names metrics that exist."""

import json
import re
from pathlib import Path

from xllm.core.observability.metrics import ServerMetrics, exposition

FOLDER = Path(__file__).parents[3] / "examples" / "observability"


def exported() -> set[str]:
    page = exposition(ServerMetrics(), "m")().decode()
    return {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}


def test_every_metric_that_the_dashboard_names_is_exported() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    expressions += [v["query"] for v in dashboard["templating"]["list"]]
    named = {name for e in expressions for name in re.findall(r"xllm:\w+", e)}
    assert len(named) > 15
    assert named <= exported()
