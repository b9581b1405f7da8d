"""What libpq and psycopg say of a url that they cannot use, without what may be a part of the password.

Errors that tell it have no cause: a traceback would show the original's words.
"""

import re

_QUOTED = re.compile(r"""(["'])(.*?)\1""", re.DOTALL)
#: What parameters of a url are set to: `?password=x` is a login, too.
_VALUE = re.compile(r"[?&][^=&]*=([^&]*)")


def without_login(url: str, error: object) -> str:
    """Return an error's text without words of the url's login.

    They quote what they cannot read: of a misspelled scheme the whole url, of a password with an `@`, `/` or `%` that
    is not encoded the rest of the password. Where the url itself has quotes, what is quoted cannot be told from what is
    not, and none of the text is returned.
    """
    if '"' in url or "'" in url:
        return "its url cannot be used, and has quotes, so the reason cannot be told without the login"
    # Of a url the part before the last @ and its parameters, of words like `password=x` all of it.
    login = "\n".join((url.rpartition("@")[0], *_VALUE.findall(url))) if "://" in url else url

    def shown(match: re.Match[str]) -> str:
        quote, word = match.groups()
        return f"{quote}…{quote}" if "@" in word or "://" in word or (word and word in login) else match[0]

    return _QUOTED.sub(shown, str(error)).strip()
