"""The flight recorder: replay rules on a recorded run, watch candidate rules during a run."""

from steelyard.recorder._replay import Replay, ReplayedRound, replay

__all__ = ["Replay", "ReplayedRound", "replay"]
