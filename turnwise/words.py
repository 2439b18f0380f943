"""Words around numbers."""


def counted(count: int, noun: str) -> str:
    """`1 episode`, `2 episodes`."""
    return f"{count} {noun}{'s' * (count != 1)}"
