"""Remedies for waiting pods, computed on request (`kaicore.rules.engine.explain.remedies`)."""

from functools import cached_property

from kaicore.rules.deciding.cycle_run import input_to_explain
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.remedies import Remedies, Remedy
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import CycleView

#: For how many shapes of groups it is worked out at most.
MOST_SHAPES = 50


class StateRemedies:
    """Answers about the pods of one state; groups of one shape share theirs."""

    def __init__(self, state: CycleView, config: EngineConfig) -> None:
        """Args:
        state: not changed, and not to be changed while this is asked.
        config: the shard's settings.
        """
        self.config = config
        self._state = state
        self._by_group: dict[str, Remedy] = {}
        self._by_shape: dict[object, Remedy] = {}

    def of(self, entry: PodEntry) -> tuple[Reason, ...]:
        """Return when a pod would become schedulable, as part of what its group is to start next.

        Returns:
            nothing for a pod that does not wait, of which it is not known which pods it starts with, or that another
            kind of pods of its group goes before, for one of a shape beyond the first `MOST_SHAPES`, and where nothing
            was found.
        """
        if entry.pod.uid not in self._state.waiting or entry.group_problem is not None:
            return ()
        remedy = self._by_group.get(entry.group)
        if remedy is None:
            remedy = self._by_group[entry.group] = self._work_out(entry.group)
        return remedy.reasons if self._state.class_of(entry).key in remedy.classes else ()

    @cached_property
    def _remedies(self) -> Remedies:
        return Remedies(input_to_explain(self._state, self.config, now=self._state.recorded_at), self.config)

    def _work_out(self, group: str) -> Remedy:
        shape = self._remedies.shape(group)
        if shape is None:
            return Remedy()
        cached = self._by_shape.get(shape)
        if cached is None:
            if len(self._by_shape) >= MOST_SHAPES:
                return Remedy()
            cached = self._by_shape[shape] = self._remedies.of(group)
        return cached
