"""Samples of a cluster's GPUs at one moment, and a sampler that takes them along a run."""

from dataclasses import dataclass

import numpy as np

from kaicore.analysis.ask.projections.capacity import gpu_columns
from kaicore.rules.queues.resources import gpus_of, gpus_per_unit
from kaicore.rules.state.views import FleetView

#: Moments of a window at which figures are taken at most, and at which stranded GPUs are looked for.
MOST_SAMPLES, MOST_LOOKS = 2000, 240


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of GPUs from one moment until the next sample.

    Attributes:
        at: microseconds since the epoch.
        gpus: that nodes have.
        held: of these, those that pods hold.
        nodes: that have GPUs.
        fragmented: of these nodes, those on which some GPUs are held and some are not.
        stranded: see `kaicore.analysis.ask.projections.capacity`.
        waiting: pods that wait for a decision.
        waiting_gpus: that they ask for.
    """

    at: int
    gpus: int
    held: int
    nodes: int
    fragmented: int
    stranded: int
    waiting: int
    waiting_gpus: int


class Sampler:
    """Takes figures whenever something has changed, so many times in a window at most."""

    def __init__(self, state: FleetView, *, begin: int, end: int) -> None:
        """Args:
        state: folded on by the caller.
        begin: of the window, microseconds since the epoch.
        end: of the window.
        """
        self.samples: list[Sample] = []
        self._state = state
        self._every = max((end - begin) // MOST_SAMPLES, 1)
        self._look_every = max((end - begin) // MOST_LOOKS, 1)
        self._next = self._next_look = begin
        self._stranded = 0

    def take(self, *, at: int) -> None:
        """Take figures, unless the last ones are young; `at` is in microseconds since the epoch."""
        if at < self._next:
            return
        self._next = at - at % self._every + self._every
        if at >= self._next_look:
            self._next_look = at - at % self._look_every + self._look_every
            self._stranded = gpu_columns(self._state).sum().stranded
        self.samples.append(self._sample(at))

    def _sample(self, at: int) -> Sample:
        state = self._state
        total, held = gpus_by_row(state)
        waiting = [state.pods[uid] for uid in state.waiting]
        asked = sum(gpus_of(entry.requests) for entry in waiting)
        return Sample(
            at=at,
            gpus=int(total.sum()),
            held=int(held.sum()),
            nodes=int((total > 0).sum()),
            fragmented=int(((held > 0) & (held < total)).sum()),
            stranded=min(self._stranded, int(total.sum() - held.sum())),
            waiting=len(waiting),
            waiting_gpus=asked,
        )


def gpus_by_row(state: FleetView) -> tuple[np.ndarray, np.ndarray]:
    """Return how many GPUs each row's node has, and how many of these are held; 0 for a row without a node."""
    columns = state.columns
    weights = np.zeros(columns.allocatable.shape[1], np.int64)
    for resource, column in columns.resources.items():
        weights[column] = gpus_per_unit(resource)
    total = (columns.allocatable @ weights) * columns.present
    return total, np.minimum(columns.used @ weights, total)
