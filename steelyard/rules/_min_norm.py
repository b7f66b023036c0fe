"""The shortest combination of unit vectors within bounds: a small quadratic program.

    minimise  y^T C y   subject to   s^T y = total ,  low <= y <= high

C holds the cosines of the updates. The weights of MGDA are found in the coordinates `y_k = w_k
|d_k|`, with `s_k = 1 / |d_k|`, so that updates of very different lengths are not a problem.

The solver is an active-set method: it solves linear equations for the variables that are not at a
bound, and moves variables to and from their bounds until no move makes the result shorter. If some
updates are combinations of others, several solutions are equally short, and the equations are
singular. The solver therefore solves a sequence of problems `y^T C y + r |y - y_before|^2`, which
are not singular and converge to a solution (the proximal-point method). Equal updates keep equal
weights this way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.core._gram import Array

_RIDGE = 1e-5  # r: large for rounding errors, small for the number of problems in the sequence
_PROBLEMS = 50
_CHANGE = 1e-14  # the relative change of y at which the sequence ends
_NOISE = 1e-13  # smaller relative differences of slopes are rounding errors


@dataclass(frozen=True)
class Program:
    """One quadratic program, `y^T matrix y - 2 pull^T y` within the constraints.

    Attributes:
        matrix: positive definite, `[K, K]`.
        pull: the linear term, `[K]`.
        prices: `s` of the constraint `s^T y = total`, positive, `[K]`.
        low: lower bounds, `[K]`.
        high: upper bounds, `[K]`.
    """

    matrix: Array
    pull: Array
    prices: Array
    low: Array
    high: Array

    def solve(self, start: Array) -> Array:
        """Return the solution; `start` must satisfy the constraints, and sets `total`."""
        y = np.clip(start, self.low, self.high)
        free = (y > self.low) & (y < self.high)
        for _ in range(20 * len(y) + 20):
            # The minimum over the free variables, or as far towards it as the bounds allow.
            if free.any():
                goal, price = self._solve_free(y, free)
                y, free, is_blocked = self._move(y, goal, free)
                if is_blocked:
                    continue
            else:
                price = None

            # Free the variables that should leave their bound.
            leaving = self._find_leaving(y, free, price)
            if not leaving:
                break
            free[leaving] = True
        return y

    def _solve_free(self, y: Array, free: NDArray[np.bool_]) -> tuple[Array, float]:
        """Return the minimum with all other variables fixed, and the multiplier of the constraint."""
        fixed = np.where(free, 0.0, y)
        prices = self.prices[free]
        total = prices @ y[free]
        pull = (self.pull - self.matrix @ fixed)[free]
        block = self.matrix[np.ix_(free, free)]
        solved = np.linalg.solve(block, np.column_stack([pull, prices]))
        price = (total - prices @ solved[:, 0]) / (prices @ solved[:, 1])
        goal = y.copy()
        goal[free] = solved[:, 0] + price * solved[:, 1]
        return goal, float(price)

    def _move(
        self, y: Array, goal: Array, free: NDArray[np.bool_]
    ) -> tuple[Array, NDArray[np.bool_], bool]:
        """Move towards the goal until a bound is reached.

        Returns:
            The new point, the variables that are free there, and whether a bound was reached.
        """
        # How far each variable may go, as a share of the way.
        step = goal - y
        room = np.where(step > 0, self.high - y, self.low - y)
        share = np.full_like(y, np.inf)
        np.divide(room, step, out=share, where=free & (step != 0))
        length = float(share.min())
        if length >= 1:
            return goal, free, False

        # Variables that reach their bound are set to it exactly.
        is_stopped = share <= length
        bound = np.where(step > 0, self.high, self.low)
        moved = np.where(is_stopped, bound, y + length * step)
        return np.clip(moved, self.low, self.high), free & ~is_stopped, True

    def _find_leaving(self, y: Array, free: NDArray[np.bool_], price: float | None) -> list[int]:
        """Return the variables at a bound whose release makes the result smaller the most.

        Args:
            y: the minimum over the free variables.
            free: which variables are free.
            price: the multiplier of the constraint; None if no variable is free.
        """
        # The slope of each variable, per unit of the constraint.
        terms = np.abs(self.matrix) @ np.abs(y) + np.abs(self.pull)
        slope = (self.matrix @ y - self.pull) / self.prices
        noise = _NOISE * terms / self.prices
        may_rise = ~free & (y < self.high)
        may_fall = ~free & (y > self.low)

        # Without a free variable, one variable must fall where another rises.
        if price is None:
            if not may_rise.any() or not may_fall.any():
                return []
            rising = int(np.argmin(np.where(may_rise, slope, np.inf)))
            falling = int(np.argmax(np.where(may_fall, slope, -np.inf)))
            is_gain = slope[falling] - slope[rising] > noise[falling] + noise[rising]
            return [rising, falling] if is_gain else []

        # Otherwise the free variables make up for the one that leaves.
        gain = np.where(may_rise, price - slope, -np.inf)
        gain = np.maximum(gain, np.where(may_fall, slope - price, -np.inf))
        gain = np.where(gain > noise, gain * self.prices, -np.inf)
        best = int(np.argmax(gain))
        return [best] if gain[best] > 0 else []


def find_shortest(cosines: Array, prices: Array, start: Array, low: Array, high: Array) -> Array:
    """Return `y` with the smallest `y^T C y` within the bounds and with the `s^T y` of `start`.

    Args:
        cosines: C, `[K, K]`; the rows of zero updates are zero.
        prices: s, positive, `[K]`.
        start: a point within the bounds, `[K]`; of several solutions, one near it is returned.
        low: lower bounds, `[K]`.
        high: upper bounds, `[K]`.
    """
    matrix = cosines + _RIDGE * np.eye(len(start))
    program = Program(matrix, np.zeros_like(start), prices, low, high)
    y = start
    for _ in range(_PROBLEMS):
        before = y
        y = replace(program, pull=_RIDGE * before).solve(before)
        if np.abs(y - before).max() <= _CHANGE * np.abs(y).max():
            break
    return y
