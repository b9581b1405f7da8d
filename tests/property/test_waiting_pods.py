"""Reasons that the binder writes into pods equal those of `kai why`, for every pod after every cycle."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kai_binder.projection.open_work import BinderProjection
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.waiting_reasons import condition_reason, reasons_in_short

from tests.given.examples import examples
from tests.property.test_engine_invariants import Story, nodes, queues, rounds


class Reader:
    """A binder's projection that follows a story."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.projection = BinderProjection()

    def check(self) -> None:
        """After a cycle: the projection, and one restored from a snapshot, say of each pod what the state says."""
        events = self.story.cluster.events
        for event in events[self.projection.position :]:
            self.projection.fold(event)
        state = self.story.cluster.state
        restored = BinderProjection.restored(self.projection.snapshot())
        for uid, entry in state.pods.items():
            waits, ours = uid in state.waiting, entry.pod.scheduler_name == EngineConfig().scheduler_name
            expected = pending_reasons(entry, state)
            for projection in (self.projection, restored):
                condition = projection.waiting.condition(uid)
                if not waits:
                    assert condition is None, uid
                elif expected and ours:
                    # The state forgets a class with its last pod; the binder, which does not know of that, may remember
                    # the reasons of pods that were alike.
                    assert condition is not None, uid
                    assert condition.message == reasons_in_short(expected)
                    assert condition.reason == condition_reason(expected)


@settings(max_examples=examples(25), deadline=None)
@given(nodes, queues, st.lists(rounds, min_size=1, max_size=3))
def test_condition_of_every_waiting_pod_says_what_kai_why_says(
    layout: list[Any], queues: dict[str, Any] | None, happenings: list[Any]
) -> None:
    story = Story(layout, queues)
    reader = Reader(story)
    for added, happened in happenings:
        story.come(added)
        reader.check()
        for step in happened:
            story.take(step)
        story.cycle()
        reader.check()
