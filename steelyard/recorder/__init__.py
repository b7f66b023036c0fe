"""The flight recorder: replay rules on a recorded run, shadow rules, contributions of clients."""

from steelyard.recorder._contributions import (
    ClientContribution,
    Contributions,
    Flag,
    contributions,
)
from steelyard.recorder._replay import Replay, ReplayedRound, RuleSummary, replay

__all__ = [
    "ClientContribution",
    "Contributions",
    "Flag",
    "Replay",
    "ReplayedRound",
    "RuleSummary",
    "contributions",
    "replay",
]
