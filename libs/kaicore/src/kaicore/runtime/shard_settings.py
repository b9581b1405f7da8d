"""A shard's settings as a YAML file (docs/reference/scheduler-settings.md), for the scheduler and `kai simulate`.

Whoever explains or replays what schedulers decided takes the code of policies alone: the log has the settings.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, PolicyEntry, current_names
from kaicore.rules.engine.policies.book import PolicyBook, PolicyGuard
from kaicore.runtime.policies.loading import load_policies, load_source
from kaicore.yaml_text import fault_text, load_yaml


def read_shard_settings(path: Path | None, book: PolicyBook | None = None) -> EngineConfig:
    """Read a shard's settings; the defaults without a file.

    Raises ConfigurationError: naming the file, the field and what is wrong.

    Args:
        book: that its policies are entered in.
    """
    if path is None:
        return EngineConfig()
    try:
        document = load_yaml(path.read_text()) or {}
        if not isinstance(document, dict):
            return msgspec.convert(document, EngineConfig)
        entries = msgspec.convert(document.pop("policies", None) or (), tuple[PolicyEntry, ...])
        config = msgspec.convert(current_names(document), EngineConfig)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: {fault_text(error)}") from error
    except (OSError, UnicodeDecodeError, msgspec.ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: {problem}") from error
    if not entries:
        return config
    policies = load_policies(entries, path.parent, PolicyBook() if book is None else book)
    return msgspec.structs.replace(config, policies=policies)


def book_of(sources: Iterable[str], guard: PolicyGuard | None = None) -> PolicyBook:
    """Return a book with the code of policies, whatever their arguments.

    Raises ConfigurationError: naming the file, the line and what is wrong.

    Args:
        sources: files that end in `.py`, folders of such files, names of entry points, or shards' settings (`.yaml`).
        guard: under which they run; by default none.
    """
    book = PolicyBook(guard)
    for source in sources:
        path = Path(source)
        if path.suffix in (".yaml", ".yml"):
            read_shard_settings(path, book)
            continue
        for one in sorted(map(str, path.glob("*.py"))) if path.is_dir() else [source]:
            book.add(*load_source(one, guard=guard))
    return book
