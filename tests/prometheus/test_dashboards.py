"""The dashboards as files: what the code makes, what Grafana's own types know, and links that lead somewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from sentinel.metrics import measures
from sentinel.metrics.declared import DECLARATIONS
from tests.prometheus.test_rules import promtool, rules, script
from tests.prometheus.watched import filled

REPO = Path(__file__).parents[2]
JOB = REPO / "dashboards" / "sentinel-job.json"
FILES = sorted((REPO / "dashboards").glob("*.json"))
register_default_plugins()


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))  # type: ignore[no-any-return]


def expressions(document: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return asked + [one["expr"] for one in document["annotations"]["list"]]


def test_the_files_are_what_the_code_makes() -> None:
    """Made by: make generated"""
    made = script("dashboards").texts()
    assert {path.name for path in FILES} == made.keys()
    for path in FILES:
        assert path.read_text("utf-8") == made[path.name], path.name


def missing(ours: Any, known: Any, where: str = "") -> list[str]:
    """What we wrote and Grafana's types dropped or changed."""
    if isinstance(ours, dict):
        if not isinstance(known, dict):
            return [where]
        return [one for key in ours for one in missing(ours[key], known.get(key), f"{where}.{key}")]
    if isinstance(ours, list):
        if not isinstance(known, list) or len(known) != len(ours):
            return [where]
        return [one for n in range(len(ours)) for one in missing(ours[n], known[n], f"{where}[{n}]")]
    return [] if ours == known else [f"{where}: {ours!r} became {known!r}"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_own_types_read_every_field(path: Path) -> None:
    ours = read(path)
    known = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(ours)))
    # The title of an annotation is the data source's own field, which the dashboard's types leave to it.
    assert [one for one in missing(ours, known) if ".titleFormat" not in one] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_have_units_thresholds_and_words_and_lie_beside_each_other(path: Path) -> None:
    document = read(path)
    names = {value for name, value in vars(units).items() if name[:1].isupper() and isinstance(value, str)}
    cells = set()
    for panel in document["panels"]:
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in names, panel["title"]
        assert defaults["noValue"], panel["title"]
        first, *others = defaults["thresholds"]["steps"]
        assert first["value"] is None, panel["title"]
        # A colour that says well or bad says it of one value and not of another, or of what is there at all.
        says = first["color"] in ("green", "red")
        there_at_all = first["color"] == "red" and defaults["noValue"] != "none"
        assert says == bool(others) or there_at_all, panel["title"]
        rates = all("rate(" in one["expr"] and " / " not in one["expr"] for one in panel["targets"])
        assert not rates or defaults["unit"] in ("cps", "reqps", "Bps", "s"), panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= taken
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


FIRST_ROW = {
    "sentinel-fleet": (
        "Nodes isolated",
        "Held in by a brake",
        "GPUs out of service",
        "Jobs that recover now",
    ),
    "sentinel-job": ("State", "Since the last one", "Restarts left", "Incidents"),
    "sentinel-node": ("Out of service for", "Agent", "Findings"),
    "sentinel-cost": ("ETTR", "GPU-hours lost", "Fault to new iteration"),
    "sentinel-itself": ("Leaders", "Paused", "Mails that wait"),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_row_answers_what_one_comes_for_as_it_is_now(path: Path) -> None:
    """Asked over time a panel of one number shows the last that there was: a leader, hours after its death."""
    panels = read(path)["panels"]
    first = [one["title"] for one in panels if one["gridPos"]["y"] == 0]
    assert set(FIRST_ROW[path.stem]) <= set(first)
    numbers = [one for one in panels if one["type"] == "stat"]
    assert [one["title"] for one in numbers] == first, "one row of them"
    for panel in numbers:
        (asked,) = panel["targets"]
        assert (asked["instant"], asked["range"]) == (True, False), panel["title"]


def test_the_docs_send_everybody_to_panels_that_are_seen_without_scrolling() -> None:
    """At 1280x720 Grafana shows some 12 units of its grid."""
    text = (REPO / "docs" / "index.md").read_text("utf-8")
    panels = {read(path)["title"]: read(path)["panels"] for path in FILES}
    asked = [cell for line in text.splitlines() for cell in line.split("|") if "dashboard " in cell]
    assert len(asked) >= 6
    for cell in asked:
        name, *_ = re.findall(r"dashboard ([\w ]+),", cell)
        seen = {one["title"] for one in panels[f"Sentinel / {name}"] if one["gridPos"]["y"] < 12}
        wanted = set(re.findall(r"\*([^*]+)\*", cell))
        assert wanted
        assert wanted <= seen, cell


def test_links_lead_to_dashboards_and_variables_that_are_there() -> None:
    documents = {read(path)["uid"]: read(path) for path in FILES}
    for document in documents.values():
        assert all(one["includeVars"] and one["keepTime"] for one in document["links"])
        text = json.dumps(document)
        assert (
            text.count("${cluster:queryparam}")
            == text.count("${datasource:queryparam}")
            == text.count("?var-")
        )
        found = re.findall(r"/d/([\w-]+)(?:\?var-(\w+)=)?", text)
        assert {to for to, _ in found} >= documents.keys() - {document["uid"]}
        for to, name in found:
            known = {one["name"] for one in documents[to]["templating"]["list"]}
            assert not name or name in known, (document["uid"], to, name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_is_of_the_chosen_clusters_which_are_all_where_no_scrape_names_them(path: Path) -> None:
    document = read(path)
    variables = {one["name"]: one for one in document["templating"]["list"]}
    cluster = variables["cluster"]
    assert (cluster["multi"], cluster["includeAll"], cluster["allValue"]) == (True, True, ".*")
    assert cluster["query"] == "label_values(sentinel_build_info, cluster)"
    assert cluster["current"]["value"] == "$__all"
    others = [one["query"] for one in variables.values() if one["type"] == "query" and one is not cluster]
    for expr in [*expressions(document), *others]:
        for rest in re.split(r"(?:sentinel[_:]|DCGM_|node_infiniband_|node_network_)[\w:]+", expr)[1:]:
            assert re.match(r'\{[^}]*cluster=~"\$cluster"\}', rest), expr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_does_not_obey_a_filter_says_so_and_nothing_else_does(path: Path) -> None:
    document = read(path)
    variables = [one["name"] for one in document["templating"]["list"] if one["type"] == "query"]
    for name in variables:
        for panel in document["panels"]:
            obeys = all(re.search(rf"\${name}\b", one["expr"]) for one in panel["targets"])
            says_all = f"all {name}s" in panel["description"]
            assert obeys != says_all, (panel["title"], name)


@pytest.mark.parametrize("scraped", ["5s", "15s", "30s", "60s", "2m"])
def test_each_incident_is_one_annotation_whoever_leads_and_however_seldom_it_is_scraped(
    scraped: str, tmp_path: Path
) -> None:
    """Grafana asks every 60 s for annotations where they name no other step."""
    (expr,) = [one["expr"] for one in read(JOB)["annotations"]["list"] if one["name"] == "Incidents"]
    every_s = int(scraped[:-1]) * (60 if scraped.endswith("m") else 1)
    for_20m, gap = 1200 // every_s, 360 // every_s
    series = 'sentinel_job_incidents_total{job_name="j",instance="%s"}'
    told = [
        {"series": series % "one", "values": f"3x{for_20m - 1} 4x{for_20m - 1} stale"},
        {
            "series": series % "two",
            "values": f"_x{2 * for_20m + gap} 5x{for_20m - 1} 6x{for_20m}",  # 5: while nobody led
        },
    ]
    seen = {"labels": '{job_name="j"}'}
    new = {20: 4, 46: 5, 66: 6}  # minute -> incidents
    checks = [
        {
            "expr": filled(expr, {"cluster": ".*", "job_name": "j"}),
            "eval_time": f"{minute}m",
            "exp_samples": [seen | {"value": new[minute]}] if minute in new else [],
        }
        for minute in range(2, 86)
        if minute % 2 == 0 or every_s <= 60
    ]
    test = {"interval": scraped, "input_series": told, "promql_expr_test": checks}
    file = tmp_path / "annotations.yaml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))


def test_queries_ask_for_what_is_measured_and_make_no_number_up() -> None:
    known = {one.name for one in DECLARATIONS} | {one["record"] for one in rules() if "record" in one}
    known |= measures.rows().keys()
    for path in FILES:
        for expr in expressions(read(path)):
            assert "vector(" not in expr
            assert " or " not in expr
            for name in re.findall(r"(?:sentinel[_:]|DCGM_|node_infiniband_|node_network_)[\w:]+", expr):
                assert {name, re.sub(r"_(bucket|sum|count)$", "", name)} & known, (path.name, name)
