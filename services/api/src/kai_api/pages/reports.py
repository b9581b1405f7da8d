"""The page of reports: GPU-hours of a month, summed from the hours that are kept; it counts nothing itself."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response
from kaicore.analysis.hours.account import by_month, month_of
from kaicore.analysis.hours.kept import kept_hours_of
from kaicore.analysis.hours.report import DIMENSIONS, Accounted, ReportQuestion, UsageReport, month_range, report_of
from kaicore.ledger.log.port import EventLog

from kai_api.pages.frame import Places, page


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A month's report; None where no hour is kept.

    Attributes:
        months: that there are hours of, the last one first.
    """

    report: UsageReport | None
    by: str
    month: str
    months: tuple[str, ...]
    dimensions: tuple[str, ...] = DIMENSIONS


def add_reports(router: APIRouter, log: EventLog, places: Places) -> None:
    """Add the page's route."""

    @router.get("/clusters/{cluster}/reports")
    async def reports(request: Request, cluster: str, by: str = "queue", month: str = "", at: str = "") -> Response:
        ReportQuestion(by=by, month=month).check()
        frame, _ = await (await places.find(request, cluster, at)).look()
        return page(request, "reports.html", frame=frame, model=await report_page(log, cluster, by, month))


async def report_page(log: EventLog, cluster: str, by: str, month: str) -> ReportPage:
    """Return the report of a month, by default of the last one.

    Raises:
        InvalidObject: it is no month.
    """
    kept = kept_hours_of(log)
    span = None if kept is None else await kept.span(cluster)
    if kept is None or span is None:
        return ReportPage(None, by, month, ())
    months = [month_of(span[1] - 1)]
    while months[-1] != month_of(span[0]):
        months.append(month_of(month_range(months[-1])[0] - 1))
    chosen = month or months[0]
    begin, end = month_range(chosen)
    # An hour that ends the range lacks the waits until then, which the page does not show.
    hours = await kept.read(cluster, begin, end + 1)
    if not hours:
        return ReportPage(None, by, chosen, tuple(months))
    accounted = Accounted(cluster, hours[0].begin, hours[-1].end, hours[-1].position, by_month(hours))
    return ReportPage(report_of(accounted, by=by), by, chosen, tuple(months))
