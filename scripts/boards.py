"""Write the Grafana boards in deploy/grafana: `make reference`.

A board is rows of panels, a panel is a title, its unit and its queries. `tests/unit/deploy/test_monitoring.py` fails
when a board is not what is written here, or names a metric or a label that no service has.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOARDS = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 24, 8
_OBSERVED = "kai_predictions_observed"


@dataclass(frozen=True)
class Panel:
    """A graph, or a figure where `figure` says so.

    Attributes:
        queries: PromQL by legend.
        about: what to make of it.
    """

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""
    figure: bool = False


@dataclass(frozen=True)
class Row:
    """Panels side by side, under a title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A board.

    Attributes:
        uid: which is also its file's name.
    """

    uid: str
    title: str
    rows: tuple[Row, ...]


def _per_second(metric: str, by: str = "") -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))" if by else f"sum(rate({metric}[$__rate_interval]))"


def _quantile(quantile: float, metric: str, by: str = "") -> str:
    rates = _per_second(f"{metric}_bucket", f"le, {by}" if by else "le")
    return f"histogram_quantile({quantile}, {rates})"


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    legend = f"{{{{{by}}}}} " if by else ""
    return {f"{legend}p{int(100 * one)}": _quantile(one, metric, by) for one in (0.5, 0.99)}


def _rate(metric: str, by: str) -> dict[str, str]:
    return {f"{{{{{by}}}}}": _per_second(metric, by)}


SCHEDULING = Board(
    "kai-scheduling",
    "kai-ledger: scheduling",
    (
        Row(
            "Now",
            (
                Panel("Pods waiting", "short", {"": 'sum(kai_pods{stage="waiting"})'}, figure=True),
                Panel("Pods bound", "short", {"": 'sum(kai_pods{stage="bound"})'}, figure=True),
                Panel(
                    "Predictions exact",
                    "percentunit",
                    {"": f'sum({_OBSERVED}{{agreement="exact"}}) / sum({_OBSERVED})'},
                    figure=True,
                ),
                Panel(
                    "Rejected by kubelets, last day",
                    "short",
                    {"": "sum(increase(kai_kubelet_rejections_total[1d])) or vector(0)"},
                    figure=True,
                ),
            ),
        ),
        Row(
            "Work",
            (
                Panel("Pods by stage", "short", {"{{stage}}": "sum by (stage) (kai_pods)"}),
                Panel(
                    "Pods left waiting by the last cycle", "short", {"{{shard}}": "sum by (shard) (kai_pending_pods)"}
                ),
                Panel(
                    "Waiting for",
                    "s",
                    {
                        "half of them": 'max(kai_waiting_seconds{quantile="0.5"})',
                        "the oldest": 'max(kai_waiting_seconds{quantile="1.0"})',
                    },
                ),
                Panel("Placed per second", "ops", _rate("kai_cycle_placed_pods_total", "shard")),
            ),
        ),
        Row(
            "Shared GPUs",
            (
                Panel("GPUs opened for sharing", "short", {"opened": "sum(kai_gpus_opened)"}),
                Panel("Parts of them, in GPUs", "short", {"{{use}}": "sum by (use) (kai_gpu_parts)"}),
            ),
        ),
        Row(
            "Cycles",
            (
                Panel("A cycle's decision takes", "s", _quantiles("kai_cycle_decide_seconds", "shard")),
                Panel("A cycle's append takes", "s", _quantiles("kai_cycle_append_seconds", "shard")),
                Panel(
                    "Stale decisions",
                    "ops",
                    _rate("kai_stale_decisions_total", "about"),
                    "Shards or leaders in each other's way, or kubelets that do otherwise than predicted.",
                ),
            ),
        ),
        Row(
            "Kubelets",
            (
                Panel(
                    "Rejections",
                    "ops",
                    _rate("kai_kubelet_rejections_total", "reason"),
                    "Predictions are wrong, or another scheduler places pods on the nodes.",
                ),
                Panel(
                    "Missed predictions",
                    "ops",
                    {"{{policy}} {{cause}}": _per_second("kai_predictions_missed_total", "policy, cause")},
                    "ReleasedEarlier, HalfRead and OldestFirst are no faults of predictions.",
                ),
                Panel(
                    "Pods not observed",
                    "short",
                    {"bound": "sum(kai_pods_unobserved)", "overdue": "count(kai_pods_unobserved_overdue) or vector(0)"},
                    "An exporter is missing or late.",
                ),
                Panel("Pods on other zones than they ask for", "short", {"missed": "sum(kai_pods_missed)"}),
            ),
        ),
        Row(
            "Binds",
            (
                Panel("From decision to binding", "s", _quantiles("kai_binder_bind_seconds", "cluster")),
                Panel("Binds", "ops", _rate("kai_binder_binds_total", "outcome")),
                Panel("Evictions", "ops", _rate("kai_binder_evictions_total", "outcome")),
                Panel("Requests not answered", "ops", _rate("kai_binder_retries_total", "code")),
            ),
        ),
    ),
)

SERVICES = Board(
    "kai-services",
    "kai-ledger: services",
    (
        Row(
            "The log and the bus",
            (
                Panel(
                    "Events behind the log, on the bus",
                    "short",
                    {"{{cluster}}": "max by (cluster) (kai_relay_lag_events)"},
                ),
                Panel("From recording to the bus", "s", _quantiles("kai_relay_publish_latency_seconds", "cluster")),
                Panel("From recording to a reader", "s", _quantiles("kai_feed_delay_seconds", "cluster")),
                Panel("Readers that go back to the log", "ops", _rate("kai_feed_fallbacks_total", "reason")),
            ),
        ),
        Row(
            "The watcher",
            (
                Panel("Facts", "ops", _rate("kai_watcher_facts_total", "type")),
                Panel("Failed requests and watches", "ops", _rate("kai_watcher_api_failures_total", "kind")),
                Panel(
                    "Objects refused, or read in part",
                    "ops",
                    {
                        "refused {{kind}}": _per_second("kai_watcher_refused_objects_total", "kind"),
                        "in part {{kind}}": _per_second("kai_watcher_lost_parts_total", "kind"),
                    },
                ),
                Panel(
                    "NodeResourceTopologies behind their nodes",
                    "s",
                    {"worst node": 'max(kai_watcher_topology_lag_seconds{quantile="1.0"})'},
                ),
            ),
        ),
        Row(
            "Exporters and ingest",
            (
                Panel("From a binding to its observation", "s", _quantiles("kai_ingest_observation_lag_seconds")),
                Panel("Oldest report of a node", "s", {"oldest": "max(kai_ingest_oldest_report_age_seconds)"}),
                Panel("Reports", "ops", _rate("kai_ingest_reports_total", "result")),
                Panel(
                    "State files that are not usable",
                    "ops",
                    {"problems": _per_second("kai_exporter_state_file_problems_total")},
                ),
            ),
        ),
        Row(
            "The API",
            (
                Panel("An answer takes, p99", "s", {"{{route}}": _quantile(0.99, "kai_api_request_seconds", "route")}),
                Panel("Answers", "ops", _rate("kai_api_request_seconds_count", "route")),
                Panel(
                    "Replays, last day",
                    "short",
                    {
                        "cycles": "sum(increase(kai_api_replayed_cycles_total[1d])) or vector(0)",
                        "differences": "sum(increase(kai_api_replay_differences_total[1d])) or vector(0)",
                    },
                    "A difference is a log that was altered, or a defect.",
                ),
                Panel("Refused before they were looked at", "ops", _rate("kai_http_refused_total", "reason")),
            ),
        ),
    ),
)


def document(board: Board) -> dict[str, Any]:
    """Return a board as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in board.rows:
        panels.append(_placed({"type": "row", "title": row.title, "collapsed": False, "panels": []}, 0, top, _WIDTH, 1))
        top += 1
        low = all(panel.figure for panel in row.panels)
        height = 4 if low else _HEIGHT
        width = _WIDTH // len(row.panels)
        for place, panel in enumerate(row.panels):
            panels.append(_placed(_panel(panel), place * width, top, width, height))
        top += height
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["kai-ledger"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
        },
        "panels": panels,
    }


def _placed(panel: dict[str, Any], left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {**panel, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": "stat" if panel.figure else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def main() -> None:
    for board in (SCHEDULING, SERVICES):
        text = json.dumps(document(board), indent=1, ensure_ascii=False) + "\n"
        (BOARDS / f"{board.uid}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
