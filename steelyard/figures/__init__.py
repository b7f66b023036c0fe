"""Figures of the papers: run what they need, draw them, and say whether they show the claim.

from steelyard.figures import plan_figure, read_figure, run_figure
plan = plan_figure(read_figure("fedlaw-figure5"), is_quick=True)
print(run_figure(plan, "runs/figures").verdict)
"""

# Importing the file of a paper registers its figures.
from steelyard.figures import (  # noqa: F401
    _fedadp,
    _fedawa,
    _fedcos,
    _fedlaw_coherence,
    _fedlaw_results,
    _fedlaw_shrinking,
    _pa3fed,
)
from steelyard.figures._figure import (
    Check,
    PaperFigure,
    Results,
    Scale,
    Source,
    Verdict,
    make_runs,
    merge_settings,
    names,
    read_figure,
    register,
)
from steelyard.figures._run import Plan, Reproduction, plan_figure, run_figure

__all__ = [
    "Check",
    "PaperFigure",
    "Plan",
    "Reproduction",
    "Results",
    "Scale",
    "Source",
    "Verdict",
    "make_runs",
    "merge_settings",
    "names",
    "plan_figure",
    "read_figure",
    "register",
    "run_figure",
]
