"""The health of another service, as it answers over HTTP: for the command line and for pages.

It is apart from what services are made of, which the command line does not import.
"""

import urllib.error
import urllib.request

#: Seconds in which a service must answer about its health.
_ANSWER_S = 3.0


def ask_path(url: str) -> tuple[int, str]:
    """Return status and body of another service's answer; status 0 where there is none."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as response:  # noqa: S310  # of our own services
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        return 0, str(getattr(error, "reason", error))


def ask_health(address: str) -> tuple[str, str]:
    """Return another service's status (ready, not ready, no answer), and what it waits for or warns of."""
    code, report = ask_path(f"{address}/readyz")
    if code == 0:
        return "no answer", report
    marks, lines = ("[-]", "[!]"), report.splitlines()
    remarks = "; ".join(line.removeprefix(mark) for mark in marks for line in lines if line.startswith(mark))
    return "ready" if code == 200 else "not ready", remarks
