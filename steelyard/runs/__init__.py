"""Run directories: what a run leaves on disk, for the simulator, Flower, reports and experiments."""

from steelyard.runs.directory import RunDirectory, read_config, read_log
from steelyard.runs.history import History
from steelyard.runs.monitor import Monitor

__all__ = [
    "History",
    "Monitor",
    "RunDirectory",
    "read_config",
    "read_log",
]
