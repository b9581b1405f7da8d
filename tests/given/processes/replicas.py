"""Replicas of one shard over one log in memory, without servers: who decides when is up to the caller.

A cycle's decisions depend on the state at its input position only. A replica that is behind has a cycle that was
begun (`begin`) and is appended (`end`) after others have appended: one state does for all of them.

`run` lets them go on in simulated time: a cycle takes as long as its decision took of this process's CPU time, and
meanwhile the others append.
"""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kaicore.rules.deciding.cycle_input import idle
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import PodPlaced, ReplicasChanged
from kaicore.rules.model.replicas import replica_shard, replicas_stream

from tests.given.logs.ledger import Ledger


@dataclass
class Tally:
    """The results of cycles: units of decisions, and the pods that they placed.

    Attributes:
        cycles: that were appended.
        refused: cycles refused as a whole, since the list of replicas had changed.
        units: of decisions, in cycles that were appended.
        conflicts: those of them that were stale.
        placed: pods that were placed.
    """

    cycles: int = 0
    refused: int = 0
    units: int = 0
    conflicts: int = 0
    placed: int = 0

    @property
    def conflict_rate(self) -> float:
        """The part of the units that were stale, 0 to 1."""
        return self.conflicts / self.units if self.units else 0.0


@dataclass
class Replicas:
    """The replicas of a shard, and the cycles that they have begun."""

    ledger: Ledger
    config: EngineConfig = field(default_factory=EngineConfig)
    shard: str = "default"

    def __post_init__(self) -> None:
        self.begun: dict[str, Proposal] = {}
        self.tally = Tally()
        #: Simulated time in seconds, as `run` goes on.
        self.now_s = 0.0

    def list(self, names: Sequence[str]) -> None:
        ledger, stream = self.ledger, replicas_stream(self.shard)
        payload = ReplicasChanged(self.shard, tuple(sorted(names)))
        number = str(len(ledger.events))
        ledger.append((Unit((NewEvent(derived_id("replicas", number), stream, payload, "test", ledger.now),)),))

    def begin(self, name: str) -> bool:
        shard = replica_shard(self.shard, name)
        if idle(self.ledger.state, Share(self.ledger.state, shard)):
            return False
        self.begun[name] = decide(
            self.ledger.state, self.config, shard=shard, now=self.ledger.now, actor=f"scheduler/{shard}"
        )
        return True

    def end(self, name: str) -> int:
        """Append what a replica has begun, as far as it is not stale; return how many pods it placed."""
        proposal = self.begun.pop(name)
        versions = self.ledger.state.versions
        if any(versions.get(stream, 0) != version for stream, version in proposal.expect.items()):
            self.tally.refused += 1
            return 0
        stale = self.ledger.append(proposal.units)
        fresh = [unit for number, unit in enumerate(proposal.units) if number not in stale]
        placed = sum(isinstance(event.payload, PodPlaced) for unit in fresh for event in unit.events)
        self.tally.cycles += 1
        self.tally.units += len(proposal.units) - 1
        self.tally.conflicts += len(stale)
        self.tally.placed += placed
        return placed

    def cycle(self, name: str) -> int:
        """Run a replica's cycle with nothing in between; return how many pods it placed."""
        return self.end(name) if self.begin(name) else 0

    def run(self, names: Sequence[str], *, until_s: float, period_s: float = 0.0, append_s: float = 0.002) -> None:
        """Let replicas decide side by side in simulated time, until nothing is placed any more or the time is over.

        Args:
            names: of replicas that are listed.
            until_s: simulated time.
            period_s: least time between the beginnings of a replica's cycles.
            append_s: how long an append takes, besides the decision.
        """
        queue = [(self.now_s, number, name, False) for number, name in enumerate(names)]
        heapq.heapify(queue)
        number, idle_since = len(queue), dict.fromkeys(names, -1)
        while queue and queue[0][0] < until_s:
            at, _, name, ends = heapq.heappop(queue)
            self.now_s = at
            number += 1
            if ends:
                due = self.begun[name].result.due
                if self.end(name) or due:
                    idle_since = dict.fromkeys(names, -1)
                else:
                    idle_since[name] = len(self.ledger.events)
                heapq.heappush(queue, (at, number, name, False))
                continue
            if all(since >= 0 for since in idle_since.values()):
                return
            started = time.process_time()
            begun = self.begin(name)
            took = time.process_time() - started
            if begun:
                heapq.heappush(queue, (at + max(period_s, took + append_s), number, name, True))
            else:
                idle_since[name] = len(self.ledger.events)
                heapq.heappush(queue, (at + max(period_s, 0.01), number, name, False))
