"""Reports: one page about runs, figures for print, and pictures of partitions."""

from steelyard.report.build import build_report, find_figure, write_report
from steelyard.report.figures import Figure, Report
from steelyard.report.matplotlib_figures import save_figure
from steelyard.report.partition import Summary, draw_partition

__all__ = [
    "Figure",
    "Report",
    "Summary",
    "build_report",
    "draw_partition",
    "find_figure",
    "save_figure",
    "write_report",
]
