"""Suggestions for misspelled words."""

from collections.abc import Iterable

#: Words that are compared; comparing takes some 20 µs each.
_MOST = 5000


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean …?` where a word is close to one of others, else nothing."""
    close = closest(word, words)
    return f"; did you mean {close!r}?" if close else ""


def closest(word: str, words: Iterable[str]) -> str:
    """Return the one of other words that a word is closest to; empty where it is close to none.

    Of very many words only those with the same beginning are compared, and of these the first.
    """
    candidates = sorted(words)
    if len(candidates) > _MOST:
        candidates = [other for other in candidates if other.startswith(word[:3])][:_MOST]
    # Only here: most processes misspell nothing, and an exporter counts its memory (decision 0500).
    import difflib  # noqa: PLC0415

    close = difflib.get_close_matches(word, candidates, n=1)
    return close[0] if close else ""
