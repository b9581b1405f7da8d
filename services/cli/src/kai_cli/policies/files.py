"""A policy as the command line names it: its file or entry point, and its arguments."""

import json
from typing import Annotated

from cyclopts import Parameter
from kaicore.errors import ConfigurationError
from kaicore.runtime.policies import LoadedPolicy, load_policy

ArgumentsFlag = Annotated[str, Parameter(name="--arguments")]


def policy_of(source: str, arguments: str = "", *, queues: tuple[str, ...] = ()) -> LoadedPolicy:
    """Load a policy.

    Args:
        source: a file that ends in `.py`, or the name of an entry point.
        arguments: a JSON object; empty for all defaults.
        queues: for which it decides; empty for all.

    Raises:
        ConfigurationError: naming the file, or the flag, and what is wrong.
    """
    try:
        given = json.loads(arguments or "{}")
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"--arguments: is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigurationError(f'--arguments: is no JSON object, such as {{"weight": 700}}: {arguments}')
    return load_policy(source, given, queues)
