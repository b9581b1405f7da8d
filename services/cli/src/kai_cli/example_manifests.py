"""Location of the manifests of the demonstration: beside the sources, or in an installed wheel."""

from pathlib import Path

from kaicore.errors import ConfigurationError


def example_manifests() -> Path:
    """Return the folder of the demonstration's manifests.

    Raises:
        ConfigurationError: this installation has none.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_examples", package.parents[3] / "examples"):
        if candidate.is_dir():
            return candidate
    raise ConfigurationError("the examples are missing from this installation: name manifests with --examples")
