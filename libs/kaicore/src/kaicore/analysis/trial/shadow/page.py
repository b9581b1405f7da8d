"""A shadow's report as one HTML file: no script, no other file."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from kaicore.analysis.trial.history import page as history
from kaicore.analysis.trial.history.comparison import HistoryComparison
from kaicore.analysis.trial.shadow.report import ShadowReport

#: Rejected pods that the page names.
_MOST_PODS = 50


def page(report: ShadowReport, trajectory: HistoryComparison) -> str:
    """Return the report, with all that a what-if over history shows of the simulated window."""
    lead = _template().render(report=report, rejected=report.rejected[:_MOST_PODS])
    return history.page(trajectory, title=f"Shadow of {report.scheduler}", lead=lead)


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string((files(__package__) / "report.html.j2").read_text())
