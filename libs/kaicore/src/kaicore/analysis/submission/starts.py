"""Forecasts of starts as answers, and in words."""

from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.analysis.inquiry.start_answers import StartAnswer
from kaicore.rules.forecast.runs import Basis
from kaicore.rules.forecast.start import StartForecast

_RUNS_OF = {
    Basis.OWNER: "of their owners",
    Basis.CLASS: "that request the same in their queue",
    Basis.QUEUE: "of their queue",
    Basis.CLUSTER: "of the whole cluster",
}


def start_answer(forecast: StartForecast, *, now: int) -> StartAnswer:
    """Return a forecast as an answer.

    Args:
        forecast: of a group.
        now: from when it looks ahead, microseconds since the epoch.
    """
    p50, p90 = (None if time is None else -(-time // 1_000_000) for time in (forecast.p50_us, forecast.p90_us))
    return StartAnswer(
        p50=_time(now, p50),
        p90=_time(now, p90),
        p50_seconds=p50,
        p90_seconds=p90,
        horizon_seconds=forecast.horizon_us // 1_000_000,
        within_horizon=round(forecast.within / forecast.scenarios, 3),
        scenarios=forecast.scenarios,
        asked_scenarios=forecast.asked_scenarios,
        ahead=forecast.ahead,
        runs=forecast.runs,
        bases={basis.value: count for basis, count in forecast.bases.items()},
        unknown=forecast.unknown,
        deadlines=forecast.deadlines,
        text=start_text(forecast),
    )


def start_text(forecast: StartForecast) -> str:
    """Say in a sentence or two when a group is likely to start, and what that rests on."""
    parts = [_when(forecast)]
    if forecast.within < forecast.scenarios:
        share = round(100 * (1 - forecast.within / forecast.scenarios))
        parts.append(f"not within {duration_text(forecast.horizon_us // 1_000_000)} in {share} % of scenarios")
    text = f"{', '.join(part for part in parts if part)} ({_rests_on(forecast)})"
    if forecast.scenarios < forecast.asked_scenarios and forecast.within:
        text += (
            f"; {forecast.scenarios} of {forecast.asked_scenarios} scenarios were computed, which is what one may cost"
        )
    return text


def _when(forecast: StartForecast) -> str:
    p50, p90 = (None if time is None else -(-time // 1_000_000) for time in (forecast.p50_us, forecast.p90_us))
    if p50 is None:
        return ""
    within = f"likely to start within {duration_text(p50)} (p50)" if p50 else "likely to start at once (p50)"
    return within if p90 is None else f"{within}, {duration_text(p90)} (p90)"


def _rests_on(forecast: StartForecast) -> str:
    runs = [f"{count} by runs {_RUNS_OF[basis]}" for basis, count in forecast.bases.items()]
    parts = [f"{forecast.runs} runs have ended"]
    if runs:
        parts.append(f"ends of pods that run: {', '.join(runs)}")
    if forecast.deadlines:
        parts.append(f"{forecast.deadlines} bounded by a deadline")
    if forecast.unknown:
        parts.append(f"{forecast.unknown} taken to go on, for nothing tells of them")
    return "; ".join(parts)


def duration_text(seconds: int) -> str:
    """Write a duration in its two largest units: `2 h 10 min`."""
    units = [("d", seconds // 86_400), ("h", seconds // 3600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60)]
    first = next((place for place, (_, count) in enumerate(units) if count), len(units) - 1)
    shown = [f"{count} {unit}" for unit, count in units[first : first + 2] if count]
    return " ".join(shown) or "0 s"


def _time(now: int, seconds: int | None) -> str | None:
    return None if seconds is None else time_text(now + seconds * 1_000_000)
