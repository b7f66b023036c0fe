"""Waiting for another process or thread, with a limit that only a hang reaches."""

import time

PATIENCE = 600.0  # seconds; generous, because other work may keep the machine busy


def wait_until(condition, goal, timeout=PATIENCE, pause=0.02):
    """Returns when `condition()` is true; raises TimeoutError, naming the goal, when it never becomes so."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached in {timeout:.0f} s: {goal}")
        time.sleep(pause)
