"""Experiments: many runs, their scores and comparisons, the papers' tables, and the benchmark."""

from steelyard.experiments.benchmark import Benchmark, read_benchmark
from steelyard.experiments.comparisons import Comparison, compare
from steelyard.experiments.jobs import Job, Outcome, run_jobs
from steelyard.experiments.paper_table import names as table_names
from steelyard.experiments.paper_table import read_table
from steelyard.experiments.run_groups import read_runs
from steelyard.experiments.scores import last, metric, stability
from steelyard.experiments.statistics import Difference, deviation, difference, mean
from steelyard.experiments.sweep import Summary, Sweep, plan, read_sweep, run_sweep
from steelyard.experiments.tables import Table, pivot

__all__ = [
    "Benchmark",
    "Comparison",
    "Difference",
    "Job",
    "Outcome",
    "Summary",
    "Sweep",
    "Table",
    "compare",
    "deviation",
    "difference",
    "last",
    "mean",
    "metric",
    "pivot",
    "plan",
    "read_benchmark",
    "read_runs",
    "read_sweep",
    "read_table",
    "run_jobs",
    "run_sweep",
    "stability",
    "table_names",
]
