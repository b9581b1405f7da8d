"""The first of ranked rows, found by blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.engine.placement.node_score import NEVER, Levels, Ranking

ROWS = 300
SOME_ROWS = st.one_of(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5), st.just([*range(ROWS)]))
CHANGES = st.lists(st.tuples(SOME_ROWS, st.one_of(st.just(NEVER), st.integers(0, 50)), st.booleans()))


@given(CHANGES, st.integers(0, 4))
def test_first_row_after_any_changes_is_that_of_the_highest_level_and_rank(
    changes: list[tuple[list[int], int, bool]], count: int
) -> None:
    levels = np.arange(ROWS) % count if count else np.zeros(ROWS, np.int64)
    ranking, ranks = Ranking(ROWS, Levels(levels) if count else None), np.full(ROWS, NEVER)
    for rows, rank, asked in changes:
        # No two ranks are equal: a row's place is part of it.
        given_ranks = [rank if rank == NEVER else rank * ROWS - row for row in rows]
        if rank == NEVER and len(rows) > 1:
            ranking.refuse(np.array(rows))
        elif len(rows) == 1:
            ranking.set(rows[0], given_ranks[0])
        elif len(rows) < ROWS:
            ranking.set_few(zip(rows, given_ranks, strict=True))
        else:
            ranking.set_many(np.array(rows), np.array(given_ranks))
        ranks[rows] = given_ranks
        if asked:
            wanted = [(levels[row], ranks[row], row) for row in np.flatnonzero(ranks != NEVER).tolist()]
            assert ranking.first() == (max(wanted)[-1] if wanted else None)


def test_ranking_of_no_rows_has_no_first_row() -> None:
    assert Ranking(0).first() is None
