"""Verdicts and predictions that were worked out before, for nodes that are alike.

A large cluster has few kinds of nodes, and a cycle takes each through the same states. What a class of pods meets on a
node depends on nothing but the class and the zones' state, so it is worked out once per state.
"""

import numpy as np

from kaicore.numa.admission import PredictedPlacement, admitted, predict
from kaicore.numa.columns import Flags, Ints, ZoneColumns
from kaicore.numa.requests import AlignedRequest

#: Up to this many rows are looked up one by one; more are worked out together.
_FEW = 16


class NumaMemo:
    """The rules of `kaicore.numa.admission` for one class of pods, with a memory."""

    def __init__(
        self, columns: ZoneColumns, request: AlignedRequest, *, ignore: frozenset[str], reconstruct: bool
    ) -> None:
        """Args: see `kaicore.numa.admission.admitted`."""
        self._columns = columns
        self._request = request
        self._ignore = ignore
        self._reconstruct = reconstruct
        self._verdicts: dict[object, bool] = {}
        self._placements: dict[object, PredictedPlacement | None] = {}

    def admitted(self, rows: Ints) -> Flags:
        """See `kaicore.numa.admission.admitted`."""
        if len(rows) > _FEW:
            return self._admitted(rows)
        return np.array([self._admits(row) for row in rows.tolist()], np.bool_)

    def predict(self, row: int, zone_names: tuple[str, ...]) -> PredictedPlacement | None:
        """See `kaicore.numa.admission.predict`."""
        key = self._columns.likeness(row)
        if key not in self._placements:
            self._placements[key] = predict(
                self._columns,
                row,
                self._request,
                zone_names=zone_names,
                ignore=self._ignore,
                reconstruct=self._reconstruct,
            )
        return self._placements[key]

    def _admits(self, row: int) -> bool:
        key = self._columns.likeness(row)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = bool(self._admitted(np.array([row], np.int64))[0])
        return verdict

    def _admitted(self, rows: Ints) -> Flags:
        return admitted(self._columns, rows, self._request, ignore=self._ignore, reconstruct=self._reconstruct)
