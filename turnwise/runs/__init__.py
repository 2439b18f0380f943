"""What a run writes to disk, and how it is written safely: journals, ledger, checkpoints, and external loggers."""

from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import RunFolderError
from turnwise.runs.folder import RunFolder
from turnwise.runs.journal import Journal, read_journal
from turnwise.runs.ledger import read_groups, read_rows, write_groups

__all__ = [
    "Checkpoints",
    "Journal",
    "RunFolder",
    "RunFolderError",
    "read_groups",
    "read_journal",
    "read_rows",
    "write_groups",
]
