"""Words that people misspell."""

import difflib
from collections.abc import Iterable

#: Words that are compared; comparing takes some 20 µs each.
_MOST = 5000


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean …?` where a word is close to one of others, else nothing.

    Of very many words only those with the same beginning are compared, and of these the first.
    """
    candidates = sorted(words)
    if len(candidates) > _MOST:
        candidates = [other for other in candidates if other.startswith(word[:3])][:_MOST]
    close = difflib.get_close_matches(word, candidates, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
