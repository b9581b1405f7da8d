"""The position of a fault in YAML that cannot be parsed, without the text, which may hold secrets."""

import yaml


def place_of_fault(error: yaml.YAMLError) -> str:
    """Return at which line and column a text is no YAML; nothing of the text, which PyYAML's own words have."""
    mark = getattr(error, "problem_mark", None)
    return "is no YAML" if mark is None else f"is no YAML at line {mark.line + 1}, column {mark.column + 1}"
