"""Which environment seeds are for training and which for evaluation: the two ranges never overlap."""

HELD_OUT = range(2_000_000_000, 2**31)
"""Seeds of held-out tasks if an environment has no split. Environments of other libraries take no larger seeds."""
_APART = 1_000_003
"""How far apart the first tasks of two runs with neighbouring seeds are."""


def training_seed(run_seed: int, number: int) -> int:
    """The environment's seed of the run's task `number`: below `HELD_OUT` for every seed of a run."""
    return (run_seed * _APART + number) % HELD_OUT.start
