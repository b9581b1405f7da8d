"""Predicted verdicts of kubelets about one class of pods, with a memory: equal nodes are evaluated once."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import msgspec
import numpy as np

from kaicore.rules.engine.config import EngineConfig, Evaluator
from kaicore.rules.engine.constraints.zones.doubts import Doubts
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.row_states import RowStates
from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.explain import Refusal, explain
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.requests import AlignedRequest
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.verdict import Admitted, PredictedPlacement, Rejected, predicted_placement
from kaicore.rules.numa.kubelet.zones import NodeZones
from kaicore.rules.numa.one_zone import hints_key, is_from_one, may_come_from_one
from kaicore.rules.numa.own_policy import Stray, shared_devices, spans, strays
from kaicore.rules.numa.scoring import UNKNOWN, ScoringStrategy, score
from kaicore.rules.numa.screen import admit_by_counting, may_admit


def configure_kubelets(columns: NodeColumns, config: EngineConfig) -> None:
    """Set in a cycle's own columns what the configuration knows of kubelets better than what they publish.

    Args:
        columns: a copy; its kubelets' settings are changed.
        config: with `kubelets` and `ignore_list`.
    """
    if not config.kubelets and not config.ignore_list:
        return
    zones = columns.zones
    zones.own_settings()
    ignored = frozenset(config.ignore_list)
    for row, node in enumerate(columns.facts):
        if node is None or not zones.zone_count[row]:
            continue
        settings = zones.kubelet_of(row)
        for override in config.kubelets:
            if all(node.labels.get(key) == value for key, value in override.match_labels.items()):
                settings = override.applied(settings)
        if ignored:
            settings = _without(settings, ignored)
        zones.set_kubelet(row, settings)
    for name, column in zones.resources.items():
        if name in ignored:
            zones.reported[:, column] = False


def _without(settings: KubeletSettings, ignored: frozenset[str]) -> KubeletSettings:
    static_cpu = settings.static_cpu and CPU not in ignored
    static_memory = settings.static_memory and MEMORY not in ignored
    if (static_cpu, static_memory) == (settings.static_cpu, settings.static_memory):
        return settings
    return msgspec.structs.replace(settings, static_cpu=static_cpu, static_memory=static_memory)


#: Up to this many rows are asked one by one, by what they are like; more are first ruled out together.
_FEW = 16


@dataclass(frozen=True, slots=True)
class ZoneFit:
    """The fit of a class on some nodes' zones; all of shape (rows,).

    Attributes:
        admit: whether the kubelet admits it.
        keeps: whether the kubelet keeps to the pods' own policy; True without one.
        score: see `kaicore.rules.numa.scoring.score`; 0 where scoring is off.
    """

    admit: Flags
    keeps: Flags
    score: Ints


class NumaVerdicts:
    """One class of pods on the nodes of a cycle.

    Attributes:
        asks_nothing: whether no kubelet aligns anything of such a pod.
        concerns_shared: whether the pods' own policy is about GPUs that they share.
    """

    def __init__(
        self,
        columns: NodeColumns,
        pod_class: PodClass,
        config: EngineConfig,
        states: RowStates | None = None,
        doubts: Doubts | None = None,
    ) -> None:
        """Args:
        states: of the cycle's rows; without it, rows must not be charged as long as this is asked.
        doubts: about the rows; None where pods do not come to them now.
        """
        self._doubts = doubts
        self._states = states or RowStates(columns)
        self._own = pod_class.numa_policy
        self._scoring = config.numa_scoring
        self._fits: dict[int, tuple[bool, bool, int]] = {}
        #: By kind, the zones of such a pod; and with the zones of other devices, what these add to the score.
        self._zones_of: dict[int, int] = {}
        self._gains_with: dict[tuple[int, tuple[int, ...]], int] = {}
        self._columns = columns
        self._counting = config.evaluator is Evaluator.COUNTING
        self._reconstruct = config.reconstruct_available
        request = pod_class.counted if self._counting else pod_class.aligned
        self._request = request.without(frozenset(config.ignore_list))
        self.asks_nothing = self._request.empty
        shared = shared_devices(pod_class.gpu_share, self._own, self._request)
        self._shared = None if GPU in config.ignore_list else shared
        self.concerns_shared = self._shared is not None
        #: Whether zones make nodes better or worse for such a pod.
        least = self._scoring.strategy is ScoringStrategy.LEAST_NUMA_NODES
        self._scored = self._scoring.strategy is not ScoringStrategy.OFF and not self.asks_nothing
        self._gains = self._scored and not (least and self._request.one_device)
        self._verdicts: dict[int, Admitted | Rejected] = {}
        #: By kind, of nodes that admit such a pod.
        self._placements: dict[int, PredictedPlacement] = {}
        #: By the identity of verdicts, which are kept with it: a verdict is of rows of one shape and one kubelet.
        self._placements_of: dict[int, tuple[Admitted, PredictedPlacement | None]] = {}
        self._fits_of: dict[int, tuple[Admitted, tuple[bool, bool, int]]] = {}
        self._scored_by_use = self._gains and not least
        #: Of this cycle and of those before it; on nodes as they are, and without their pods.
        asking = self._request, self._counting, self._reconstruct
        self._met = columns.zones.met(asking)
        #: By the hints of the providers, where these settle it.
        self._met_hints = columns.zones.met((*asking, "hints"))
        self._may_come_from_one = not self._counting and may_come_from_one(self._request)
        self._empty = columns.zones.met((*asking, "empty"))
        # Scores tell how many zones a node has of the most that any has.
        self._most_zones = int(columns.zones.zone_count.max(initial=0))
        scored = self._scoring.strategy, tuple(self._scoring.weights.items()), self._most_zones
        #: All that a class's verdicts and fits depend on besides the node.
        self.asking = (*asking, self._own, self._shared, scored)
        self._met_fits = columns.zones.met(self.asking)

    def may_admit(self, rows: Ints) -> Flags:
        """Tell which of some nodes are not ruled out; shape (rows,)."""
        if len(rows) <= _FEW:
            # With a policy or a score each of them is asked anyway.
            return np.array([self.discerns or self.admits(row) for row in rows.tolist()], np.bool_)
        request = self._request if not self._counting else AlignedRequest((), ())
        return may_admit(self._columns.zones, rows, request, reconstruct=self._reconstruct)

    @property
    def discerns(self) -> bool:
        """True if the zones distinguish nodes that admit such a pod: by a score, or by the pod's own policy."""
        return self._own is not None or self._scored

    def zone_fit(self, rows: Ints) -> ZoneFit:
        """Tell what the class meets on rows; of rows that are alike, one is asked; there must be some."""
        kinds, first, which = np.unique(self._states.kinds(rows), return_index=True, return_inverse=True)
        fits = []
        for kind, index in zip(kinds.tolist(), first.tolist(), strict=True):
            fits.append(self._fits.get(kind) or self.fit(int(rows[index])))
        admits, keep, scores = zip(*fits, strict=True)
        return ZoneFit(
            np.array(admits, np.bool_)[which], np.array(keep, np.bool_)[which], np.array(scores, np.int64)[which]
        )

    def fit(self, row: int) -> tuple[bool, bool, int]:
        """Return a row's `ZoneFit`."""
        kind = self._states.kind(row)
        fit = self._fits.get(kind)
        if fit is None:
            likeness = self._likeness(row)
            fit = self._met_fits.get(likeness)
            if fit is None:
                fit = self._met_fits[likeness] = self._fit_of(row, likeness)
            self._fits[kind] = fit
        return fit

    def _fit_of(self, row: int, likeness: Hashable) -> tuple[bool, bool, int]:
        verdict, zones = self.verdict(row, likeness), self._columns.zones
        if isinstance(verdict, Rejected):
            return False, False, 0
        known = None if self._scored_by_use else self._fits_of.get(id(verdict))
        if known is not None:
            return known[1]
        value = UNKNOWN if self._scored else 0
        if self._gains:
            value = self._score(row, spans(zones, row, verdict))
        fit = True, self.stray(row) is None, value
        self._fits_of[id(verdict)] = verdict, fit
        return fit

    def _score(self, row: int, masks: tuple[int, ...]) -> int:
        return score(
            self._columns.zones,
            row,
            masks,
            self._request,
            scoring=self._scoring,
            reconstruct=self._reconstruct,
            most_zones=self._most_zones,
        )

    def zones(self, row: int) -> int:
        """Return the zones that anything of such a pod may come from, as a mask; 0 where nothing is bound to zones."""
        kind = self._states.kind(row)
        mask = self._zones_of.get(kind)
        if mask is None:
            mask = self._zones_of[kind] = reduce(or_, self._spans(row), 0)
        return mask

    def gain_with(self, row: int, others: tuple[int, ...]) -> int:
        """Return what a row's score changes by if devices of other pods count as the pod's own.

        Args:
            others: the zones of each of those devices, as masks.
        """
        if not self._scored or not others:
            return 0
        key = self._states.kind(row), others
        gain = self._gains_with.get(key)
        if gain is None:
            own = self._spans(row)
            gain = self._gains_with[key] = self._score(row, (*own, *others)) - self.fit(row)[2] if own else 0
        return gain

    def _spans(self, row: int) -> tuple[int, ...]:
        verdict = self.verdict(row)
        return () if isinstance(verdict, Rejected) else spans(self._columns.zones, row, verdict)

    def stray(self, row: int, *, empty: bool = False, shared_on: int = 0) -> Stray | None:
        """Say what a node that admits such a pod would do otherwise than its own policy asks.

        Args:
            empty: as if the node had no pods.
            shared_on: the zones that the GPUs may be of that the pod shares, as a mask; 0 where that is left open.
        """
        if self._own is None:
            return None
        verdict = self._on_empty(row) if empty else self.verdict(row)
        if isinstance(verdict, Rejected):
            return None
        return strays(
            self._columns.zones,
            row,
            request=self._request,
            own=self._own,
            admitted=verdict,
            shared=self._shared,
            shared_on=shared_on,
        )

    def admits(self, row: int, *, on_empty: bool = False) -> bool:
        """Tell whether a node's kubelet would admit such a pod; one without zones admits all.

        Args:
            on_empty: as if the node had no pods.
        """
        if on_empty:
            return isinstance(self._on_empty(row), Admitted)
        return self._states.kind(row) in self._placements or isinstance(self.verdict(row), Admitted)

    def is_certain(self, row: int, *, created_at: int) -> bool:
        """Tell whether a node that admits a pod does so whatever pods there hold that have not been observed yet.

        Args:
            created_at: when the pod was created, seconds since the epoch.
        """
        if self._doubts is None or not self.doubted:
            return True
        return self._doubts.admits(row, self._request, created_at=created_at, node=lambda: self._node(row))

    def is_certain_in_turn(self, row: int, ages: Sequence[int]) -> bool:
        """Tell whether `is_certain` is true of each of some pods that come one after the other to a node.

        Args: see `Doubts.admits_in_turn`.
        """
        return self._doubts is not None and self._doubts.admits_in_turn(row, self._request, ages)

    @property
    def doubted(self) -> bool:
        """True if unknown facts of nodes matter to such a pod."""
        return not (self._doubts is None or self.asks_nothing or self._counting)

    def doubts_about(self, row: int) -> object:
        """Return a key that is equal for rows of one state about which the doubts are the same."""
        return self._doubts.likeness(row) if self._doubts is not None and self.doubted else None

    def verdict(self, row: int, likeness: Hashable = None) -> Admitted | Rejected:
        """Return what a node's kubelet makes of such a pod.

        Where it is open what some pods keep (`NodeZones.repeated`), or whether cores have one CPU or two, it must fit
        whichever is so: a pod that fits one way only is refused. A row's likeness is looked up where it is not given.
        """
        if self.asks_nothing or not self._columns.zones.zone_count[row]:
            return _NOTHING
        kind = self._states.kind(row)
        verdict = self._verdicts.get(kind)
        if verdict is None:
            likeness = self._likeness(row) if likeness is None else likeness
            verdict = self._met.get(likeness)
            if verdict is None:
                verdict = self._met[likeness] = self._by_hints(row)
            self._verdicts[kind] = verdict
        return verdict

    def _likeness(self, row: int) -> Hashable:
        return self._columns.likeness(row, published=not self._reconstruct)

    def likeliest(self, row: int) -> Admitted | Rejected:
        """Return what a node's kubelet most likely makes of such a pod, though it is not certain to."""
        node = self._node(row).likeliest()
        return admit_by_counting(node, self._request) if self._counting else admit(node, self._request)

    def predict(self, row: int) -> PredictedPlacement | None:
        """Return the zones that a pod gets on a node that admits it; None when nothing of it is bound to zones."""
        if self.asks_nothing:
            return None
        # Nodes that are alike name their zones alike.
        kind = self._states.kind(row)
        placement = self._placements.get(kind)
        if placement is not None:
            return placement
        verdict, topology = self.verdict(row), self._columns.topologies[row]
        if topology is None or verdict is _NOTHING or isinstance(verdict, Rejected):
            return None
        if id(verdict) not in self._placements_of:
            names = [zone.name for zone in topology.zones]
            self._placements_of[id(verdict)] = verdict, predicted_placement(verdict, names)
        placement = self._placements_of[id(verdict)][1]
        if placement is not None:
            self._placements[kind] = placement
        return placement

    def refusal(self, row: int, *, on_empty: bool = False) -> Refusal | None:
        """Explain why a node refuses such a pod, or would even without its pods; None when it does not."""
        if on_empty:
            verdict = self._on_empty(row)
            return explain(verdict).on_empty_node() if isinstance(verdict, Rejected) else None
        verdict = self.verdict(row)
        return explain(verdict) if isinstance(verdict, Rejected) else None

    def _on_empty(self, row: int) -> Admitted | Rejected:
        columns, zones = self._columns, self._columns.zones
        if self.asks_nothing or not zones.zone_count[row]:
            return _NOTHING
        shared = columns.shared_devices(row)
        totals = tuple(int(columns.allocatable[row, columns.resources[name]]) for name in shared)
        key = int(zones.shape[row]), int(zones.kubelet[row]), shared, totals
        verdict: Admitted | Rejected | None = self._empty.get(key)
        if verdict is None:
            verdict = self._empty[key] = self._admit(row, empty=True)
        return verdict

    def _by_hints(self, row: int) -> Admitted | Rejected:
        """Return the verdict about a row, which another one with equal hints may have had."""
        columns, key = self._columns, None
        if self._may_come_from_one and not columns.shared_devices(row):
            key = hints_key(columns.zones, row, self._request, reconstruct=self._reconstruct)
        verdict: Admitted | Rejected | None = self._met_hints.get(key)
        if verdict is None:
            verdict = self._admit(row, empty=False)
            if key is not None and is_from_one(verdict):
                self._met_hints[key] = verdict
        return verdict

    def _admit(self, row: int, *, empty: bool) -> Admitted | Rejected:
        node = self._node(row, empty=empty)
        if self._counting:
            return admit_by_counting(node, self._request)
        open_ = bool(node.repeated)
        verdict = admit(node, self._request)
        if open_ and isinstance(verdict, Admitted):
            verdict = self.likeliest(row)
        if isinstance(verdict, Rejected) or node.settings.threads_known or not self._request.lends_cpus:
            return verdict
        node = self._node(row, empty=empty)
        node.settings = msgspec.structs.replace(node.settings, threads_per_core=2)
        other = admit(node, self._request)
        return other if isinstance(other, Rejected) else verdict

    def _node(self, row: int, *, empty: bool = False) -> NodeZones:
        return self._columns.node_zones(row, reconstruct=self._reconstruct, empty=empty, cores=self._request.lends_cpus)


_NOTHING = Admitted((), {})
