"""Priority of questions over folding in advance.

A process that starts folds the logs of all its clusters, so that later questions find their states. That may take long,
and a question about one cluster must not wait for the logs of the others.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class QuestionsFirst:
    """The clusters that questions are about; folding without a question gives way to them.

    Attributes:
        unasked: held by the one cluster that is folded without a question.
    """

    def __init__(self) -> None:
        self.unasked = asyncio.Lock()
        self._asked: Counter[str] = Counter()
        self._changed = asyncio.Event()

    @contextmanager
    def about(self, cluster: str) -> Iterator[None]:
        """A question about a cluster is being answered."""
        self._count(cluster, 1)
        try:
            yield
        finally:
            self._count(cluster, -1)

    async def give_way(self, cluster: str) -> None:
        """Wait while there are questions, and none about this cluster, which would wait for what is folded now."""
        while self._asked.total() and not self._asked[cluster]:
            await self._changed.wait()

    def _count(self, cluster: str, change: int) -> None:
        self._asked[cluster] += change
        self._changed.set()
        self._changed = asyncio.Event()
