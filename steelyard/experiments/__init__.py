"""Experiments: many runs, their scores and comparisons, the papers' tables, and the benchmark."""

from steelyard.experiments._benchmark import Benchmark, Rule, read_benchmark
from steelyard.experiments._comparisons import Comparison, compare
from steelyard.experiments._jobs import Job, Outcome, run_jobs
from steelyard.experiments._paper_table import names as table_names
from steelyard.experiments._paper_table import read_table
from steelyard.experiments._run_groups import read_runs
from steelyard.experiments._statistics import Difference, deviation, difference, mean
from steelyard.experiments._sweep import Summary, Sweep, plan, read_sweep, run_sweep
from steelyard.experiments._tables import Table, pivot
from steelyard.experiments.scores import Score, find_score, last, stability

__all__ = [
    "Benchmark",
    "Comparison",
    "Difference",
    "Job",
    "Outcome",
    "Rule",
    "Score",
    "Summary",
    "Sweep",
    "Table",
    "compare",
    "deviation",
    "difference",
    "find_score",
    "last",
    "mean",
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
