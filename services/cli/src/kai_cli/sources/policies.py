"""A policy as the command line names it: its file or entry point, and its arguments."""

import json
import os
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.runtime import shard_settings
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.policies.loading import LoadedPolicy, load_policy

ArgumentsFlag = Annotated[str, Parameter(name="--arguments")]


def policy_of(source: str, arguments: str = "", *, queues: tuple[str, ...] = ()) -> LoadedPolicy:
    """Load a policy. Raises ConfigurationError: naming the file, or the flag, and what is wrong.

    Args:
        source: a file that ends in `.py`, or the name of an entry point.
        arguments: a JSON object; empty for all defaults.
        queues: for which it decides; empty for all.
    """
    try:
        given = json.loads(arguments or "{}")
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"--arguments: is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigurationError(f'--arguments: is no JSON object, such as {{"weight": 700}}: {arguments}')
    return load_policy(source, given, queues)


def book_of(sources: Sequence[str] = ()) -> PolicyBook:
    """Return a book with the code of policies, which run under guard; with that which the environment names.

    Raises ConfigurationError: naming the file and what is wrong.

    Args:
        sources: files that end in `.py`, folders of them, names of entry points, or shards' settings.
    """
    named = filter(None, os.environ.get("KAI_POLICIES", "").split(","))
    return shard_settings.book_of((*named, *sources), TimeAndMemory())
