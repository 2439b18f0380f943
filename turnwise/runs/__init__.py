"""What a run leaves on disk, and how it gets there whole: journals, ledger, checkpoints, and loggers elsewhere."""

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
