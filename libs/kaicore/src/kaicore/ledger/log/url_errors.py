"""Faults in the url of a log's Postgres, reported without any text that may be part of the password.

These errors have no cause, because a traceback would show the original text.
"""

import re

from kaicore.errors import ConfigurationError

_QUOTED = re.compile(r"""(["'])(.*?)\1""", re.DOTALL)
#: What parameters of a url are set to: `?password=x` is a login, too.
_VALUE = re.compile(r"[?&][^=&]*=([^&]*)")


#: What libpq says where it cannot read an option's value. It calls that a connection that failed.
_UNREADABLE = re.compile(r"invalid (port number|integer value|\w+ value)")
_PORTS = range(1, 65536)


def check_ports(url: str) -> None:
    """See that a url's ports are such as servers have: psycopg takes any other for a host that cannot be found now.

    Raises:
        ConfigurationError: naming the port.
    """
    import psycopg  # noqa: PLC0415  # Half a second, which not all that read errors need.

    try:
        ports = str(psycopg.conninfo.conninfo_to_dict(url).get("port") or "")
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"not the url of a Postgres database: {without_login(url, error)}") from None
    for port in filter(None, ports.split(",")):
        if not (port.isascii() and port.isdecimal() and int(port) in _PORTS):
            wrong = without_login(url, f'port "{port}" is no number from 1 to 65535')
            raise ConfigurationError(f"not the url of a Postgres database: {wrong}")


def is_hopeless(error: object) -> bool:
    """Tell whether a connection failed by an option of the url, which no repetition cures."""
    return _UNREADABLE.search(str(error)) is not None


def without_login(url: str, error: object) -> str:
    """Return an error's text without words of the url's login.

    They quote what they cannot read: of a misspelled scheme the whole url, of a password with an `@`, `/` or `%` that
    is not encoded the rest of the password. Where the url itself has quotes, the quoted part
    cannot be found, and none of the text is returned.
    """
    if '"' in url or "'" in url:
        return "its url cannot be used, and has quotes, so the reason is not known without the login"
    # Of a url the part before the last @ and its parameters, of words like `password=x` all of it.
    login = "\n".join((url.rpartition("@")[0], *_VALUE.findall(url))) if "://" in url else url

    def shown(match: re.Match[str]) -> str:
        quote, word = match.groups()
        return f"{quote}…{quote}" if "@" in word or "://" in word or (word and word in login) else match[0]

    return _QUOTED.sub(shown, str(error)).strip()
