"""Errors about settings that a service cannot start with."""

import pytest
from kaicore.errors import ConfigurationError
from kaicore.runtime.service.settings import ServiceSettings, read_settings
from pydantic import Field


class Settings(ServiceSettings):
    """Of a service that needs a database and a cluster."""

    database_url: str = Field(pattern="^postgresql:")
    cluster: str


def problem(*arguments: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_settings(Settings, list(arguments))
    return str(refused.value)


def test_a_setting_that_is_missing_is_named_and_the_others_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings were printed, the database's password among them, in a line that goes into a log."""
    monkeypatch.setenv("KAI_DATABASE_URL", "postgresql://kai:s3cret@db/kai")
    assert problem() == "--cluster or $KAI_CLUSTER: is required"


def test_a_bad_value_is_told_unless_it_may_hold_a_password() -> None:
    assert problem("--database-url", "postgres://kai:s3cret@db/kai", "--cluster", "c", "--http-port", "70000") == (
        "--http-port: Input should be less than or equal to 65535 (got '70000'); "
        "--database-url: String should match pattern '^postgresql:'"
    )
