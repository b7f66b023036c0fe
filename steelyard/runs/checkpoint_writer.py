"""Writes checkpoints beside the training."""

from __future__ import annotations

import threading
import time

from steelyard.runs.checkpoint import Checkpoints
from steelyard.runs.snapshot import Snapshot


class Writer:
    """Writes checkpoints beside the training, in a thread: rounds do not wait for the disk.

    A snapshot is wanted when the last one is on disk and writing takes up no more than `pace` of the time: a run of
    short rounds is not slowed down by its checkpoints. An error comes out of the next call.
    """

    def __init__(self, checkpoints: Checkpoints, log: int, pace: float) -> None:
        self.checkpoints, self.log, self.pace = checkpoints, log, pace
        self.rest_until = 0.0
        self.pending: list[Snapshot] = []
        self.error: Exception | None = None
        self.busy = False
        self.closed = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, name="steelyard-checkpoints", daemon=True)
        self.thread.start()

    def is_due(self) -> bool:
        """Whether a snapshot should be taken now."""
        with self.changed:
            self._raise()
            return not (self.busy or self.pending) and time.monotonic() >= self.rest_until

    def offer(self, *snapshots: Snapshot) -> None:
        """Takes snapshots to write, in this order."""
        with self.changed:
            self._raise()
            self.pending += snapshots
            self.changed.notify_all()

    def flush(self) -> None:
        """Returns when everything taken is on disk."""
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or not (self.pending or self.busy))
            self._raise()

    def close(self) -> None:
        """Ends the thread after what it is writing."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.thread.join()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.pending or self.closed)
                if not self.pending:
                    return
                snapshot = self.pending.pop(0)
                self.busy = True
            began = time.monotonic()
            try:
                self.checkpoints.save(snapshot, self.log)
            except Exception as error:
                with self.changed:
                    self.error, self.busy, self.closed = error, False, True
                    self.pending.clear()
                    self.changed.notify_all()
                return
            ended = time.monotonic()
            with self.changed:
                self.busy = False
                self.rest_until = ended + (ended - began) * (1 / self.pace - 1)
                self.changed.notify_all()
