"""Reports: one page about runs, figures for print, and pictures of partitions."""

from steelyard.report._build import build_report, find_figure, write_report
from steelyard.report._figures import Figure, Report
from steelyard.report._matplotlib_figures import save_figure
from steelyard.report._partition import Summary, draw_partition
from steelyard.report._replay import write_replay

__all__ = [
    "Figure",
    "Report",
    "Summary",
    "build_report",
    "draw_partition",
    "find_figure",
    "save_figure",
    "write_replay",
    "write_report",
]
