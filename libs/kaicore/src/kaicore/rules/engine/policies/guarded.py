"""One policy under guard: its answers are looked at before anybody uses them, and what is wrong has a typed reason.

A policy is left out of a cycle that it makes fail, and the cycle is run again without it (`cycle_run.run_on`). Most
failures follow from the state. Those of time and memory do not: the cycle's record tells them, and a replay leaves out
what the record says.
"""

from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, replace
from enum import StrEnum
from types import MappingProxyType, NoneType
from typing import TypeVar

import numpy as np

from kaicore.policy import MOST, Facts, Flags, Hold, Ints, Nodes, Point, Policy, Queue, Running, Waiting, Work
from kaicore.rules.engine.config import PolicySetting
from kaicore.rules.engine.placement.node_score import score_range
from kaicore.rules.engine.policies.book import PolicyGuard, PolicyOverran
from kaicore.rules.events.payloads import PolicyLeftOut

_Answer = TypeVar("_Answer")
#: A text of a policy is no longer in the log.
_LONGEST = 200
_MOST_64 = 2**63


class PolicyFailure(StrEnum):
    """The failure for which a policy is left out of a cycle."""

    RAISED = "Raised"
    WRONG_ANSWER = "WrongAnswer"
    CHANGED_INPUT = "ChangedInput"
    TOO_SLOW = "TooSlow"
    TOO_MUCH_MEMORY = "TooMuchMemory"


#: Failures that do not follow from the state: a replay takes them from the record.
OF_MACHINE = frozenset({PolicyFailure.TOO_SLOW, PolicyFailure.TOO_MUCH_MEMORY})


class PolicyFailed(Exception):
    """A policy failed; the cycle is to be run without it.

    Attributes:
        left_out: what the cycle's record says of it.
    """

    def __init__(self, left_out: PolicyLeftOut) -> None:
        super().__init__(f"policy {left_out.policy}: {left_out.why}: {left_out.detail}")
        self.left_out = left_out


class GuardedPolicy:
    """A policy of one cycle."""

    def __init__(self, setting: PolicySetting, policy: Policy, guard: PolicyGuard) -> None:
        self.setting, self.policy, self._guard = setting, policy, guard

    def has(self, point: Point) -> bool:
        """Tell whether the policy defines a point."""
        return point.value in self.setting.points

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        """Return `Policy.filter`, as an array of this process."""
        answer = self._run(Point.FILTER, lambda: self.policy.filter(nodes, work, self._declared(facts)))
        if type(answer) is not np.ndarray or answer.dtype != np.bool_ or answer.shape != (len(nodes),):
            raise self._wrong(Point.FILTER, f"expected {len(nodes)} truth values, got {_said(answer)}")
        return answer.copy()

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return `Policy.score`, as an array of this process."""
        answer = self._run(Point.SCORE, lambda: self.policy.score(nodes, work, self._declared(facts)))
        if type(answer) is not np.ndarray or answer.dtype.kind not in "iu" or answer.shape != (len(nodes),):
            raise self._wrong(Point.SCORE, f"expected {len(nodes)} integers, got {_said(answer)}")
        least, most = score_range(self.policy.band)
        if len(answer) and not least <= int(answer.min()) <= int(answer.max()) <= most:
            raise self._wrong(Point.SCORE, f"expected {least} to {most}, got {answer.min()} to {answer.max()}")
        return answer.astype(np.int64)

    def order(self, groups: Sequence[tuple[Waiting, Queue]], facts: Facts) -> list[int]:
        """Return `Policy.order` of each group."""
        own = self._declared(facts)
        answers = self._run(Point.ORDER, lambda: [self.policy.order(*group, own) for group in groups])
        return self._integers(Point.ORDER, answers, -_MOST_64, _MOST_64 - 1)

    def order_queue(self, queues: Sequence[Queue], facts: Facts) -> list[int]:
        """Return `Policy.order_queue` of each queue."""
        own = self._declared(facts)
        answers = self._run(Point.ORDER_QUEUE, lambda: [self.policy.order_queue(queue, own) for queue in queues])
        return self._integers(Point.ORDER_QUEUE, answers, -_MOST_64, _MOST_64 - 1)

    def admit(self, groups: Sequence[tuple[Waiting, Queue]], facts: Facts) -> list[Hold | None]:
        """Return `Policy.admit` of each group."""
        own = self._declared(facts)
        answers = self._run(Point.ADMIT, lambda: [self.policy.admit(*group, own) for group in groups])
        if {*map(type, answers)} <= {NoneType}:
            return answers
        for answer in answers:
            if answer is None:
                continue
            if type(answer) is not Hold or type(answer.reason) is not str:
                raise self._wrong(Point.ADMIT, f"expected None or a Hold, got {_said(answer)}")
            self._integer(Point.ADMIT, answer.until_us, 0, _MOST_64 - 1, of="until_us: ")
        return [None if one is None else Hold(one.reason[:_LONGEST], int(one.until_us)) for one in answers]

    def victims(self, running: Sequence[Running], facts: Facts) -> list[int]:
        """Return `Policy.victims` of each group."""
        own = self._declared(facts)
        answers = self._run(Point.VICTIMS, lambda: [self.policy.victims(group, own) for group in running])
        return self._integers(Point.VICTIMS, answers, 0, MOST)

    def _declared(self, facts: Facts) -> Facts:
        given = facts.inputs
        if not given:
            return facts
        own = {name: given[name] for name in self.policy.inputs if name in given}
        return replace(facts, inputs=MappingProxyType(own))

    def _run(self, point: Point, call: Callable[[], _Answer]) -> _Answer:
        try:
            return self._guard.run(self.setting.name, call)
        except PolicyOverran as error:
            raise self._failed(PolicyFailure.TOO_SLOW, f"{point}: {error}") from error
        except (MemoryError, RecursionError) as error:
            # How deep it may call depends on who called it.
            raise self._failed(PolicyFailure.TOO_MUCH_MEMORY, f"{point}: {type(error).__name__}") from error
        except (Exception, SystemExit, GeneratorExit) as error:
            why = PolicyFailure.CHANGED_INPUT if _writes(error) else PolicyFailure.RAISED
            raise self._failed(why, f"{point}: {type(error).__name__}") from error

    def _integers(self, point: Point, answers: list[int], least: int, most: int) -> list[int]:
        # All of them together, where nothing is wrong with any: one by one takes many times as long.
        if {*map(type, answers)} == {int} and least <= min(answers) and max(answers) <= most:
            return answers
        return [self._integer(point, answer, least, most) for answer in answers]

    def _integer(self, point: Point, answer: object, least: int, most: int, *, of: str = "") -> int:
        if isinstance(answer, bool | np.bool_) or not isinstance(answer, int | np.integer):
            raise self._wrong(point, f"{of}expected an integer, got {_said(answer)}")
        if not least <= int(answer) <= most:
            raise self._wrong(point, f"{of}expected {least} to {most}, got {int(answer)}")
        return int(answer)

    def _wrong(self, point: Point, detail: str) -> PolicyFailed:
        return self._failed(PolicyFailure.WRONG_ANSWER, f"{point}: {detail}")

    def _failed(self, why: PolicyFailure, detail: str) -> PolicyFailed:
        return PolicyFailed(PolicyLeftOut(policy=self.setting.name, why=why.value, detail=detail[:_LONGEST]))


def _writes(error: BaseException) -> bool:
    """Tell whether an error is what writing to columns, mappings or values of the input raises."""
    text = str(error)
    return (
        isinstance(error, FrozenInstanceError)
        or (isinstance(error, ValueError) and ("read-only" in text or "WRITEABLE" in text))
        or (isinstance(error, TypeError) and text.startswith("'mappingproxy' object does not support item"))
    )


def _said(answer: object) -> str:
    """Describe an answer without calling anything of it."""
    if type(answer) is np.ndarray:
        return f"{answer.dtype} of shape {answer.shape}"
    return type(answer).__name__
