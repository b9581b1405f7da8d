"""Forecasts of starts for pods that already wait in a cluster."""

from kaicore.analysis.ask.answers import GroupStart
from kaicore.analysis.ask.known_names import known_names
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.trial.submission.answers import StartsAnswer
from kaicore.analysis.trial.submission.copied_state import CopiedState
from kaicore.analysis.trial.submission.starts import start_answer
from kaicore.errors import UnknownSubject
from kaicore.rules.forecast.runs import RunHistory
from kaicore.rules.forecast.start import ForecastLimits, NoForecast, StartForecast, forecast_starts
from kaicore.rules.groups.membership import POD
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import PodEntry
from kaicore.rules.state.views import WorkView
from kaicore.spelling import did_you_mean


def waiting_starts(
    state: ClusterState,
    kind: str,
    namespace: str,
    name: str,
    history: RunHistory,
    *,
    now: int,
    oldest: bool = False,
    limits: ForecastLimits | None = None,
) -> StartsAnswer:
    """Say when the pods of something are likely to start.

    Args:
        state: a copy; changed.
        kind: Pod, or without its API group that of a group or of pods' owner.
        namespace: its namespace.
        name: its name.
        history: of the same log, up to the state's position or before; not changed.
        now: microseconds since the epoch.
        oldest: whether only the group of the longest waiting pod is meant.
        limits: how far is looked ahead.

    Raises:
        UnknownSubject: the cluster has no pods of it.
    """
    copied = CopiedState(state, now=now)
    members = [entry for entry in state.pods.values() if _belongs(state, entry, kind, namespace, name)]
    if not members:
        close = did_you_mean(f"{namespace}/{name}" if kind == POD else name, known_names(state, kind, namespace))
        raise UnknownSubject(f"the cluster has no pods of {kind} {namespace}/{name}{close}")
    waiting = sorted((entry.pod.created_at, entry.pod.name, entry.group) for entry in members if entry.waiting)
    keys = sorted({group for _, _, group in (waiting[:1] if oldest else waiting)})
    forecasts = forecast_starts(state, state.config(), history, keys, now=copied.now, limits=limits or ForecastLimits())
    return StartsAnswer(
        cluster=state.cluster,
        position=state.position,
        recorded_at=time_text(state.recorded_at),
        now=time_text(copied.now),
        groups=[_group(state, key, forecasts[key], now=copied.now) for key in keys],
    )


def _belongs(state: WorkView, entry: PodEntry, kind: str, namespace: str, name: str) -> bool:
    pod = entry.pod
    if pod.namespace != namespace:
        return False
    if kind == POD:
        return pod.name == name
    group = state.groups.get(entry.group)
    named = group is not None and (_plain(group.origin), group.name) == (kind, name)
    return named or (pod.owner is not None and (pod.owner.kind, pod.owner.name) == (kind, name))


def _group(state: WorkView, key: str, forecast: StartForecast | NoForecast, *, now: int) -> GroupStart:
    group = state.groups.get(key)
    kind, namespace, name = key.split("/", 2) if group is None else (group.origin, group.namespace, group.name)
    return GroupStart(
        kind=kind,
        namespace=namespace,
        name=name,
        start=start_answer(forecast, now=now) if isinstance(forecast, StartForecast) else None,
        no_start=forecast.why if isinstance(forecast, NoForecast) else "",
    )


def _plain(kind: str) -> str:
    return kind.partition(".")[0]
