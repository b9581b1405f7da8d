"""Answers from the log itself, folded in this process; what was folded is left as a snapshot for the next question."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.replay.past_states import KeptState
from kaicore.errors import KaiError
from kaicore.ledger.log.snapshots import take_state

from kai_cli.output import Progress
from kai_cli.sources.log_access import open_log
from kai_cli.sources.policies import book_of
from kai_cli.sources.source import AnswerSource

#: Events that a question may fold without leaving a snapshot: about half a second's.
_WORTH_KEEPING = 3000


@asynccontextmanager
async def open_log_answers(source: AnswerSource, *, once: bool = True) -> AsyncIterator[Inquiry]:
    """Yield answers from the log that is meant; `once` for a single question: then no state is kept for more."""
    async with open_log(source) as log:
        with Progress("folding the log") as progress:
            inquiry = Inquiry(log, once=once, progress=progress, policies=book_of())
            yield inquiry
        for state in inquiry.states:
            await _keep(inquiry, state)


async def _keep(inquiry: Inquiry, kept: KeptState) -> None:
    if kept.folded < _WORTH_KEEPING:
        return
    state = await kept.current()
    try:
        await inquiry.log.save_snapshot(kept.cluster, take_state(state))
    except KaiError as error:
        sys.stderr.write(
            f"kai: {kept.folded} events of cluster {kept.cluster} were folded for this answer, and will be for the "
            f"next: no snapshot can be stored here: {error}\n"
        )
