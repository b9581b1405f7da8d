"""Durations of a pod's life on a node, from its annotations and the profile."""

from dataclasses import dataclass

from kaicore.errors import InvalidObject

from kai_fleet.profile import TimingProfile
from kai_fleet.wire import PodObject

#: How long the pod's containers run, in seconds; it then ends whatever its restart policy.
RUN_SECONDS = "simulator.kai.scheduler/run-seconds"
#: What its containers exit with.
EXIT_CODE = "simulator.kai.scheduler/exit-code"

_LONGEST_S = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of an admitted pod: seconds it runs (None: forever), and its exit code."""

    run_seconds: float | None
    exit_code: int


def fate_of(pod: PodObject, timing: TimingProfile) -> tuple[Fate, list[InvalidObject]]:
    """Return the pod's fate, and what is wrong with its annotations; a wrong one counts as absent."""
    annotations = pod.metadata.annotations or {}
    problems: list[InvalidObject] = []
    run_seconds = None if pod.spec.restart_policy == "Always" else timing.run_seconds
    if (text := annotations.get(RUN_SECONDS)) is not None:
        try:
            run_seconds = _number(text)
        except ValueError:
            problems.append(InvalidObject(str(pod), RUN_SECONDS, text, "not a number of seconds"))
    exit_code = 0
    if (text := annotations.get(EXIT_CODE)) is not None:
        if text.isascii() and text.isdigit() and int(text) < 256:
            exit_code = int(text)
        else:
            problems.append(InvalidObject(str(pod), EXIT_CODE, text, "not an exit code from 0 to 255"))
    return Fate(run_seconds, exit_code), problems


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _LONGEST_S:
        raise ValueError(text)
    return value
