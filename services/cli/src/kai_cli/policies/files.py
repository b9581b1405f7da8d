"""A policy that is named on the command line: its file and its arguments."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.errors import ConfigurationError
from kaicore.runtime.policies import LoadedPolicy, PolicyReference, load_policy

ArgumentsFlag = Annotated[str, Parameter(name="--arguments")]


def policy_in(file: Path, arguments: str = "", *, queues: tuple[str, ...] = ()) -> LoadedPolicy:
    """Load a policy's file.

    Args:
        file: with the policy.
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
    return load_policy(PolicyReference(file=str(file), arguments=given, queues=queues))
