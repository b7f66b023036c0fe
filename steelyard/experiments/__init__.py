"""Experiments: many runs, their scores and comparisons, the papers' tables, and the benchmark."""
