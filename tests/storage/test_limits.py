"""The limits of retries and timeouts that environment variables set."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tokenmill.errors import UsageError
from tokenmill.storage.objects import clients
from tokenmill.system import environment


def test_variables_replace_the_limits_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both limits reach the client; without variables they are the defaults."""
    assert clients._limits(clients.OPTIONS, clients.RETRIES) == (clients.OPTIONS, clients.RETRIES)
    monkeypatch.setenv("TOKENMILL_RETRY_SECONDS", "7.5")
    monkeypatch.setenv("TOKENMILL_TIMEOUT_SECONDS", "3")
    options, retries = clients._limits(clients.WRITING_OPTIONS, clients.RETRIES)
    assert (options["timeout"], retries["retry_timeout"]) == ("3s", timedelta(seconds=7.5))
    assert environment.exported()["TOKENMILL_RETRY_SECONDS"] == "7.5"


@pytest.mark.parametrize("text", ["0", "481", "nan", "soon"])
def test_a_wrong_limit_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable and its range."""
    monkeypatch.setenv("TOKENMILL_RETRY_SECONDS", text)
    with pytest.raises(UsageError, match=r"(?s)TOKENMILL_RETRY_SECONDS.*from 1 to 480"):
        environment.retry_seconds(180)
