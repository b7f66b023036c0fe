"""Run directories: what a run leaves on disk, for the simulator, Flower, reports and experiments."""

from steelyard.runs._directory import RunDirectory, read_config, read_log
from steelyard.runs._history import History
from steelyard.runs._monitor import Monitor

__all__ = [
    "History",
    "Monitor",
    "RunDirectory",
    "read_config",
    "read_log",
]
