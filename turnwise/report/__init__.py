"""Reports: one self-contained HTML file about one or several run folders. Nothing here imports torch."""

from turnwise.guard.onset import Onset, find_onset
from turnwise.report.build import write_report
from turnwise.report.episodes import Sample

__all__ = ["Onset", "Sample", "find_onset", "write_report"]
