"""What every test starts from, whoever started the tests."""

import os
import signal

import pytest


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start: a shell's background jobs ignore it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs are signed with a key of the tests' own, not with the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
