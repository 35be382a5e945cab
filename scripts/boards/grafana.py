"""Grafana's dashboard model, as far as the dashboards use it: panels that place themselves, variables, links."""

import re
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
WIDE = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
Steps = Sequence[tuple[float | None, str]]  # from this value on; None: from the least
CLUSTER = 'cluster=~"$cluster"'
SELECTOR = re.compile(r"\b((?:sentinel[_:]|DCGM_FI_|node_infiniband_|node_network_)[\w:]+)(?:\{(.*?)\})?")
NOTHING = "none"  # what a panel says that should not be empty
PLAIN: Steps = ((None, BLUE),)
NAMES = {
    "fleet": "Fleet",
    "job": "Job",
    "node": "Node",
    "cost": "Incidents and cost",
    "itself": "Sentinel itself",
}


def uid(name: str) -> str:
    return f"sentinel-{name}"


def scoped(expr: str) -> str:
    """Of the chosen clusters: no query can forget it. Series without that label are of all."""
    return SELECTOR.sub(
        lambda one: f"{one[1]}{{{one[2]},{CLUSTER}}}" if one[2] else f"{one[1]}{{{CLUSTER}}}", expr
    )


def query(expr: str, legend: str = "", *, now: bool = False, table: bool = False) -> Json:
    """What a panel shows as it is `now` is asked for one instant: asked over time it would show the last value that
    there was, hours after the end of what told it."""
    kind: Json = {"instant": now or table, "range": not (now or table)}
    kind |= {"format": "table"} if table else {}
    return {"expr": scoped(expr), "legendFormat": legend, "editorMode": "code", "datasource": SOURCE, **kind}


def _field(unit: str, steps: Steps, links: Sequence[Json] = (), **more: Any) -> Json:
    thresholds = {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}
    defaults: Json = {"unit": unit, "thresholds": thresholds, **more}
    defaults.setdefault("color", {"mode": "thresholds"})
    if links:
        defaults["links"] = list(links)
    return {"defaults": defaults, "overrides": []}


def _panel(
    kind: str,
    title: str,
    why: str,
    size: tuple[int, int],
    targets: Sequence[Json],
    field: Json,
    empty: str,
    **more: Any,
) -> Json:
    """`size`: width and height in units of the grid; the dashboard places it. `empty`: why it may be empty on a
    cluster on which nothing is wrong; "": it is not."""
    wide, high = size
    field["defaults"]["noValue"] = empty or NOTHING
    return {
        "type": kind,
        "title": title,
        "description": why,
        "gridPos": {"h": high, "w": wide, "x": 0, "y": 0},
        "datasource": SOURCE,
        "targets": list(targets),
        "fieldConfig": field,
        **more,
    }


def stat(
    title: str,
    expr: str,
    why: str,
    *,
    unit: str = "short",
    steps: Steps = PLAIN,
    wide: int = 4,
    empty: str = "",
) -> Json:
    return _panel(
        "stat",
        title,
        why,
        (wide, 4),
        [query(expr, now=True)],
        _field(unit, steps),
        empty,
        options={
            "colorMode": "background",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    )


def series(
    title: str,
    queries: Sequence[tuple[str, str]],
    why: str,
    *,
    unit: str = "short",
    steps: Steps | None = None,
    stack: bool = False,
    wide: int = 12,
    links: Sequence[Json] = (),
    empty: str = "",
) -> Json:
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if stack else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if steps else "off"},
    }
    field = _field(unit, steps or PLAIN, links, color={"mode": "palette-classic"}, min=0, custom=custom)
    return _panel(
        "timeseries",
        title,
        why,
        (wide, 8),
        [query(expr, legend) for expr, legend in queries],
        field,
        empty,
        options={
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def table(
    title: str,
    expr: str,
    why: str,
    *,
    value: str,
    unit: str = "short",
    steps: Steps = PLAIN,
    wide: int = 12,
    links: Sequence[Json] = (),
    empty: str = "",
) -> Json:
    """One row a series, worst first; `value` names the column of the number."""
    return _panel(
        "table",
        title,
        why,
        (wide, 8),
        [query(expr, table=True)],
        _field(unit, steps, links),
        empty,
        options={"showHeader": True, "sortBy": [{"displayName": value, "desc": True}]},
        transformations=[
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "indexByName": {},
                    "renameByName": {"Value": value},
                },
            }
        ],
    )


def variable(name: str, label: str, of: str, *, many: bool = False) -> Json:
    """Its values: those of the label `name` of the metric `of`."""
    return _variable(name, label, f"label_values({scoped(of)}, {name})", many)


def _variable(name: str, label: str, values: str, many: bool) -> Json:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": values,
        "refresh": 2,  # whenever the time range changes: what is new is there
        "sort": 1,
        "multi": many,
        "includeAll": many,
        **(
            {"allValue": ".*", "current": {"selected": True, "text": "All", "value": "$__all"}}
            if many
            else {}
        ),
    }


def row_link(to: str, variable_name: str, column: str) -> Json:
    chosen = f"var-{variable_name}=${{__data.fields.{column}}}"
    kept = "&".join(f"${{{one}:queryparam}}" for one in ("datasource", "cluster"))
    url = f"/d/{uid(to)}?{chosen}&{kept}&${{__url_time_range}}"
    return {"title": NAMES[to], "url": url, "targetBlank": False}


def annotation(name: str, expr: str, color: str, title: str) -> Json:
    return {
        "name": name,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "datasource": SOURCE,
        "expr": scoped(expr),
        "titleFormat": title,
    }


def dashboard(
    name: str,
    why: str,
    panels: Sequence[Json],
    variables: Sequence[Json] = (),
    annotations: Sequence[Json] = (),
) -> Json:
    """Panels from left to right, in rows as high as their first."""
    placed, x, y, high = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        at = panel["gridPos"]
        if x + at["w"] > WIDE:
            x, y, high = 0, y + high, 0
        high = max(high, at["h"])
        targets = [{"refId": chr(ord("A") + n), **one} for n, one in enumerate(panel["targets"])]
        placed.append({**panel, "id": number, "gridPos": {**at, "x": x, "y": y}, "targets": targets})
        x += at["w"]
    source = {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "refresh": 1,
    }
    # Every process tells its build. Where no scrape gives a label `cluster`, "All" is all there is, and matches.
    cluster = _variable("cluster", "Cluster", "label_values(sentinel_build_info, cluster)", many=True)
    links = [
        {
            "type": "link",
            "title": title,
            "url": f"/d/{uid(other)}",
            "icon": "dashboard",
            "tooltip": "",
            "tags": [],
            "asDropdown": False,
            "targetBlank": False,
            "includeVars": True,  # what the other one has no variable for, it leaves out
            "keepTime": True,
        }
        for other, title in NAMES.items()
        if other != name
    ]
    return {
        "uid": uid(name),
        "title": f"Sentinel / {NAMES[name]}",
        "description": why,
        "tags": ["sentinel"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": links,
        "templating": {"list": [source, cluster, *variables]},
        "annotations": {"list": list(annotations)},
        "panels": placed,
    }
