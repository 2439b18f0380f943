"""What every test starts from, whoever started the tests."""

import signal


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start: a shell's background jobs ignore it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
