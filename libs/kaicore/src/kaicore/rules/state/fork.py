"""A copy of a state for trials: events are folded into it that no log ever contains.

Immutable parts are shared, everything else is copied. Frozen objects, and the values in pods' entries, are replaced and
never changed (`ClusterState` itself makes such a shallow copy of an entry before a change). Encoding a state as bytes
and decoding it is a copy as well, but takes several times as long.

A restore point takes back what was tried: facts, and then other facts that undo them, leave no trace. Most follows from
the present objects. Times, counts of changes and the past of groups do not. Parts that keep such figures are copied
and put back.
"""

import gc
import types
from array import array
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kaicore.rules.engine.work.workload import LonePod
from kaicore.rules.events.codec import unhashed_event
from kaicore.rules.events.envelope import Event, NewEvent, Unit
from kaicore.rules.numa.columns import RowMemory
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.indexes.workload_index import RestingGroups
from kaicore.rules.state.pods.pod_entry import PodEntry, Remembered

#: Parts of a state that keep what facts that undo others do not take back.
_OF_THE_PAST = ("rejections", "node_readiness", "node_trials", "homes")


class RestorePoint:
    """The figures of a state that facts change for good, as they were when it was taken.

    Counters are not among them: no decision depends on these.
    """

    def __init__(self, state: ClusterState, group: str) -> None:
        """Args:
        group: key of the group that the facts may be about, with those that it starts together with.
        """
        index, known = state.workload_index, state.groups.get(group)
        together = () if known is None else known.together
        self._state = state
        self._clock = state.context.clock
        self._parts = {name: _Fork().of(getattr(state, name)) for name in _OF_THE_PAST}
        self._workloads = index.records({group, *together, *index.needed_by.get(group, ())})

    def restore(self) -> None:
        """Put the figures back, after facts that take back all others; once."""
        state = self._state
        state.context.turn_back(self._clock)
        for name, part in self._parts.items():
            setattr(state, name, part)
        there = state.workload_index.workloads
        state.workload_index.restore([record for record in self._workloads if record.key in there])


def fold_unlogged(state: ClusterState, new: NewEvent, *, recorded_at: int) -> Event:
    """Fold an event as if it had been appended right behind the last one, and return it.

    Args:
        recorded_at: microseconds since the epoch; not before the state's last event.
    """
    event = unhashed_event(
        new,
        cluster=state.cluster,
        position=state.position + 1,
        version=state.versions.get(new.stream, 0) + 1,
        recorded_at=recorded_at,
    )
    state.fold(event)
    return event


_Copy = Callable[[Any], Any]
_T = TypeVar("_T")

#: Of these, and of what is derived from them, objects never change.
_FIXED = (str, bytes, int, float, tuple, frozenset, type, types.FunctionType, types.BuiltinFunctionType, Enum)
_FIXED_TYPES = frozenset({*_FIXED, types.NoneType, types.MappingProxyType, range, ZoneCharge})


def fork(state: ClusterState) -> ClusterState:
    """Return a copy of a state; what is folded into one of the two is not in the other."""
    # So many new containers at once would have the collector look at all of the process several times, for nothing.
    collecting = gc.isenabled()
    gc.disable()
    # What waits there is found by its identity.
    state.queue_registry.settle()
    try:
        return _Fork().of(state)
    finally:
        if collecting:
            gc.enable()


class _Fork:
    """One copy: what is referred to twice in the original is one thing in the copy as well."""

    def __init__(self) -> None:
        #: Copies by the id of the original, which is kept so that its id stays its own.
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._by_type: dict[type, _Copy] = {}
        self._slots: dict[type, list[str]] = {}

    def of(self, original: _T) -> _T:
        kind = type(original)
        how = self._by_type.get(kind)
        if how is None:
            how = self._by_type[kind] = self._how(kind)
        copied: _T = how(original)
        return copied

    def _how(self, kind: type) -> _Copy:
        if kind is LonePod:
            # A workload keeps it, with an entry that belongs to the original; False has it made anew.
            return lambda _: False
        if kind in _FIXED_TYPES or issubclass(kind, _FIXED):
            return _same
        if issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
            return _same
        if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return _same
        if kind is RowMemory or kind is Remembered or kind is RestingGroups:
            return lambda original: self._once(original, lambda _: kind())
        if kind is types.MethodType:
            return lambda method: types.MethodType(method.__func__, self.of(method.__self__))
        if issubclass(kind, np.ndarray):
            return lambda original: self._once(original, self._copied_array)
        if kind is PodEntry or issubclass(kind, array | set):
            return lambda original: self._once(original, copy)
        if issubclass(kind, dict):
            return lambda original: self._once(original, copy, self._fill_dict)
        if issubclass(kind, list):
            return lambda original: self._once(original, copy, self._fill_list)
        if issubclass(kind, msgspec.Struct):
            return lambda original: self._once(original, copy, self._fill_struct)
        return lambda original: self._once(original, _blank, self._fill_object)

    def _once(self, original: Any, begin: _Copy, fill: Callable[[Any, Any], None] | None = None) -> Any:
        known = self._copies.get(id(original))
        if known is not None:
            return known[0]
        made = begin(original)
        self._copies[id(original)] = made, original
        if fill is not None:
            fill(original, made)
        return made

    def _copied_array(self, original: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy; of a view, the same view of the copied array."""
        whole = original.base
        if not isinstance(whole, np.ndarray):
            return original.copy()
        offset = original.ctypes.data - whole.ctypes.data
        return np.ndarray(original.shape, original.dtype, self.of(whole), offset, original.strides)

    def _fill_dict(self, original: dict[Any, Any], made: dict[Any, Any]) -> None:
        by_type, of = self._by_type, self.of
        for key, value in original.items():
            if by_type.get(type(value)) is not _same:
                made[key] = of(value)

    def _fill_list(self, original: list[Any], made: list[Any]) -> None:
        made[:] = [self.of(one) for one in original]

    def _fill_struct(self, original: Any, made: Any) -> None:
        for name in original.__struct_fields__:
            setattr(made, name, self.of(getattr(original, name)))

    def _fill_object(self, original: Any, made: Any) -> None:
        kind = type(original)
        slots = self._slots.get(kind)
        if slots is None:
            slots = self._slots[kind] = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
        for name in slots:
            if hasattr(original, name):
                setattr(made, name, self.of(getattr(original, name)))
        for name, value in getattr(original, "__dict__", {}).items():
            made.__dict__[name] = self.of(value)


def _same(original: Any) -> Any:
    return original


def _blank(original: Any) -> Any:
    return object.__new__(type(original))


class CopiedState:
    """A copy of a state (`now`: recorded time of what is folded to it, microseconds since the epoch)."""

    def __init__(self, state: ClusterState, *, now: int) -> None:
        """Args:
        state: the copy; changed.
        now: see above; not before the state's last event.
        """
        self.state = state
        self.now = max(now, state.recorded_at)

    def record(self, units: Iterable[Unit | None]) -> None:
        """Fold units as if they had been appended."""
        for unit in units:
            for new in unit.events if unit is not None else ():
                fold_unlogged(self.state, new, recorded_at=self.now)
