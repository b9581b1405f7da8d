"""Words that people misspell."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean …?` where a word is close to one of others, else nothing."""
    close = difflib.get_close_matches(word, sorted(words), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
