"""The version of this installation, which all its programs have in common."""


def version() -> str:
    """Return it; `unknown` for sources that were not installed."""
    # It takes a mail parser, which nothing else of a short command needs.
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415
    from importlib.metadata import version as installed  # noqa: PLC0415

    try:
        return installed("kai-ledger")
    except PackageNotFoundError:
        return "unknown"
