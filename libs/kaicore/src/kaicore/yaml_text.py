"""Text of YAML as plain values, and the position of a fault in it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import yaml

__all__ = ["SafeLoader", "fault_text", "load_yaml", "load_yaml_all", "place_of_fault"]

if TYPE_CHECKING:
    from yaml import SafeLoader
else:
    # Written in C, ten times as fast; not in every build of the library.
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str | bytes) -> Any:
    """Return the one document of a text. Raises yaml.YAMLError: it is no YAML, or several documents."""
    return yaml.load(text, SafeLoader)  # noqa: S506 - it is a safe one


def load_yaml_all(text: str | bytes) -> Iterator[Any]:
    """Yield the documents of a text; an empty one is None. Raises yaml.YAMLError: it is no YAML."""
    yield from yaml.load_all(text, SafeLoader)


def place_of_fault(error: yaml.YAMLError) -> str:
    """Return at which line and column a text is no YAML; nothing of the text, which PyYAML's own words have.

    The text may hold secrets.
    """
    mark = getattr(error, "problem_mark", None)
    return "is no YAML" if mark is None else f"is no YAML at line {mark.line + 1}, column {mark.column + 1}"


def fault_text(error: yaml.YAMLError) -> str:
    """Return in one line where and why a text is no YAML; of the text itself it has a character at most."""
    why = getattr(error, "problem", None) or getattr(error, "reason", None) or " ".join(str(error).split())
    return f"{place_of_fault(error)}: {why}"
