"""What every test starts from, whoever started the tests."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

SLOW = (
    "cluster/test_ray_runs.py",
    "engine/test_supervisor.py",
    "guard/test_guarded_runs.py",
    "learn/test_presets_learn.py",
    "learn/test_real_ranks.py",
    "reproduce/test_claim_study.py",
    "study/test_arms.py",
    "study/test_processes.py",
    "tests/test_docs.py",
    "torture/test_campaigns.py",
    "train/test_exchange.py",
    "train/test_faults.py",
    "train/test_kills.py",
    "train/test_ranked_commands.py",
    "train/test_remote_runs.py",
    "train/test_resume.py",
)
"""Files whose tests take long. They come first: a long test that comes last leaves all workers but one idle."""

# The same examples on every machine, however busy it is: what fails once fails again.
settings.register_profile(
    "turnwise", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("turnwise")


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start: a shell's background jobs ignore it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first; all others stay in their order."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(SLOW))


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs are signed with a key of the tests' own, not with the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
