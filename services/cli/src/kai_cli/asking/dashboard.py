"""`kai dashboard`: an address that logs a browser in."""

from kaicore.errors import ConfigurationError, KaiError

from kai_cli.sources.api_requests import login_address
from kai_cli.sources.source import AnswerSource, SourceFlags


def dashboard(*, source: SourceFlags | None = None) -> int:
    """Print an address at which a browser is logged in to the API: once, within a day.

    Args:
        source: which API.
    """
    source = source or AnswerSource()
    address = source.api()
    if address is None:
        raise ConfigurationError("no API runs here: start `kai up`, or name --api-url")
    token = source.api_token()
    if not token:
        raise ConfigurationError("no key is named for the login: --token or $KAI_API_TOKEN")
    try:
        print(login_address(address, token))
    except KaiError as error:
        raise ConfigurationError(str(error)) from error
    return 0
