"""`kai policy try`: a recorded window with a policy and without it, by the rerun of what-ifs."""

import asyncio
from pathlib import Path

import pytest
from kai_cli.policies.trying import trial_text, with_policy
from kai_cli.sources.policies import policy_of
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.history.alternative import HistoryQuestion
from kaicore.analysis.trial.history.comparison import Fares, HistoryComparison, compare_history
from kaicore.analysis.trial.history.page import page
from kaicore.rules.engine.policies.book import PolicyBook, PolicyMismatch
from kaicore.runtime.policies.loading import LoadedPolicy

from tests.given.logs.recorded_history import log_of, saturated

#: Refuses every node.
REFUSES = """
import numpy as np
from kaicore.policy import Policy

class Refuses(Policy):
    name, version = "refuses", "1"

    def filter(self, nodes, work, facts):
        return np.zeros(len(nodes), np.bool_)
"""
RAISES = REFUSES.replace("return np.zeros(len(nodes), np.bool_)", 'raise KeyError("x")')


def loaded(folder: Path, text: str, *queues: str) -> LoadedPolicy:
    (folder / "tried.py").write_text(text)
    return policy_of(str(folder / "tried.py"), queues=queues)


def tried(policy: LoadedPolicy, *, known: bool = True) -> HistoryComparison:
    book = PolicyBook()
    if known:
        book.add(policy.kind, policy.setting.digest)

    async def ask() -> HistoryComparison:
        question = HistoryQuestion(patches=(with_policy(policy),))
        log = await log_of(saturated(12).cluster.events)
        return await compare_history(log, "test", question, OfflineKubelets, policies=book)

    return asyncio.run(ask())


def test_policy_that_refuses_every_node_loses_against_the_window_without_it(tmp_path: Path) -> None:
    policy = loaded(tmp_path, REFUSES)
    answer = tried(policy)
    (alternative,) = answer.alternatives
    assert answer.baseline.started > 8
    assert alternative.result.started == 0
    assert [one.fares for one in alternative.queues] == [Fares.LOSES]
    text = trial_text(answer, policy)
    assert text.startswith(f"policy refuses 1 (filter; digest {policy.setting.digest[:12]}), for all queues\n")
    for part in ("the baseline is as recorded for", "with refuses", "waits by queue", "loses   namespace/default"):
        assert part in text
    assert policy.setting.digest in page(answer)


def test_policy_of_another_queue_changes_nothing(tmp_path: Path) -> None:
    answer = tried(loaded(tmp_path, REFUSES, "elsewhere"))
    (alternative,) = answer.alternatives
    assert alternative.result.started == answer.baseline.started


def test_policy_that_raises_is_left_out_of_every_cycle_and_a_note_says_so(tmp_path: Path) -> None:
    answer = tried(loaded(tmp_path, RAISES))
    (alternative,) = answer.alternatives
    assert alternative.result.started == answer.baseline.started
    assert any("with refuses: policy refuses was left out of" in note and "Raised" in note for note in answer.notes)


def test_policy_without_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyMismatch, match="refuses"):
        tried(loaded(tmp_path, REFUSES), known=False)
