"""LoRA adapters: pairs of leaves A and B whose product is the change of a weight.

The mean of products is not the product of means, so rules must see the products

    M_k = B_k A_k        B_k [outputs, rank], A_k [rank, inputs]

and the server must average them. Neither needs the products themselves:

    <B_i A_i, B_j A_j> = sum((B_i^T B_j) * (A_i A_j^T))         a few rank x rank matrices

and a sum of products is a product of stacked factors, `sum c_k B_k A_k = [c_k B_k] [A_k]`. What the
server returns is the option `lora`:

    stack      the stacked factors: exact; the ranks of all clients add up
    residual   the mean factors, and the exact rest as stacked factors for the weight itself
    svd:r      the best approximation of rank r, from inner products of the stacked factors
    factors    the mean factors, as if A and B were ordinary weights: what most programs do

In federated training, where the rank must not grow, `stack` adds the stacked factors to the weight
itself, and the adapters start again from the global A and a B of zeros (`restart`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from steelyard import threads
from steelyard.core._errors import NonFiniteUpdate, SteelyardError, shorten
from steelyard.core._layout import Layout, Leaf, LoraPair
from steelyard.core._store import UpdateStore
from steelyard.core._sums import Array, are_finite

_SVD = re.compile(r"svd(?::(?:rank=)?(\d+))?")


@dataclass(frozen=True)
class LoraOutput:
    """What the server returns for LoRA adapters: the option `lora`.

    Attributes:
        kind: `stack`, `residual`, `svd`, `factors` or `restart`.
        rank: the rank of `svd`; None for the rank of the global model.
    """

    kind: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.kind if self.rank is None else f"{self.kind}:{self.rank}"


FACTORS = LoraOutput("factors")
STACK = LoraOutput("stack")
RESTART = LoraOutput("restart")


def parse_lora(text: str) -> LoraOutput:
    """Return the value of the option `lora`.

    Examples:
        >>> parse_lora("svd:16")
        LoraOutput(kind='svd', rank=16)
    """
    if text in ("stack", "residual", "factors"):
        return LoraOutput(text)
    match = _SVD.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise SteelyardError(f"lora={shorten(text)}: use stack, residual, svd:16 or factors")
    rank = None if match[1] is None else int(match[1])
    if rank == 0:
        raise SteelyardError(f"lora={shorten(text)}: use a rank of at least 1")
    return LoraOutput("svd", rank)


@dataclass(frozen=True)
class Factors:
    """A sum of products as one product of stacked factors, `left @ right`.

    Attributes:
        left: `[outputs, rank]`.
        right: `[rank, inputs]`.
    """

    left: torch.Tensor
    right: torch.Tensor

    @property
    def rank(self) -> int:
        """The number of columns of `left`."""
        return self.left.shape[1]

    def minus(self, other: Factors) -> Factors:
        """Return the factors of the difference."""
        return Factors(
            torch.cat([self.left, -other.left], dim=1),
            torch.cat([self.right, other.right], dim=0),
        )

    def norm(self) -> float:
        """Return the Frobenius norm of the product, without the product."""
        square = (self_products(self.left.T) * self_products(self.right)).sum()
        return float(square.clamp(min=0.0).sqrt())

    def truncate(self, rank: int) -> tuple[Factors, float]:
        """Return the best approximation of this rank, and its distance from the product.

        The singular values are shared equally by both factors.
        """
        # The product is Q_l (S_l S_r^T) Q_r with orthonormal Q: only the small matrix in the
        # middle is decomposed.
        q_left, s_left = _orthonormalize(self.left.T)
        q_right, s_right = _orthonormalize(self.right)
        u, values, v = torch.linalg.svd(s_left @ s_right.T, full_matrices=False)
        roots = values[:rank].sqrt()
        left = self.left @ (q_left @ u[:, :rank]) * roots
        right = roots[:, None] * ((v[:rank] @ q_right.T) @ self.right)
        distance = float(torch.linalg.vector_norm(values[rank:]))
        return _pad(Factors(left, right), rank), distance


def self_products(rows: torch.Tensor) -> torch.Tensor:
    """Return the inner products of the rows of a matrix, `rows @ rows.T`.

    Blocks below the diagonal are copied from those above it, which saves a third of the time.
    """
    count = len(rows)
    products = rows.new_empty(count, count)
    size = max(64, -(-count // 4))
    for start in range(0, count, size):
        stop = min(start + size, count)
        block = rows[start:stop] @ rows[start:].T
        products[start:stop, start:] = block
        products[stop:, start:stop] = block[:, stop - start :].T
    return products


def _orthonormalize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an orthonormal basis of the rows of a matrix, by the rows' inner products.

    Directions that are shorter than a 10-millionth of the longest are left out: in the inner
    products they are rounding errors.

    Args:
        rows: X, `[n, d]`, float64.

    Returns:
        C `[n, m]` and S `[m, n]` with `X = S^T C^T X`, where the rows of `C^T X` are orthonormal.
    """
    values, vectors = torch.linalg.eigh(self_products(rows))
    is_kept = values > 1e-14 * values[-1].clamp(min=0.0)
    if not bool(is_kept.any()):
        return rows.new_zeros(len(rows), 1), rows.new_zeros(1, len(rows))
    roots = values[is_kept].sqrt()
    kept = vectors[:, is_kept]
    return kept / roots, roots[:, None] * kept.T


def _pad(factors: Factors, rank: int) -> Factors:
    """Return the factors with zeros up to a rank."""
    missing = rank - factors.rank
    if missing <= 0:
        return factors
    left = torch.nn.functional.pad(factors.left, (0, missing))
    right = torch.nn.functional.pad(factors.right, (0, 0, 0, missing))
    return Factors(left, right)


class PairReader:
    """Reads the factors of all models of a store, pair by pair."""

    def __init__(self, store: UpdateStore) -> None:
        self.store = store
        pairs = store.layout.pairs
        longest = max((max(pair.a.size, pair.b.size) for pair in pairs), default=0)
        self._scratch = store.scratch(longest)
        # Memory that is allocated once: many large allocations would not be returned to the system.
        count = (len(store.ids) + 1) * longest
        self._memory = torch.empty(2, count, dtype=store.layout.row_dtype)

    def read(self, pair: LoraPair) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors of the clients and, last, of the global model.

        They are valid until the next call.

        Returns:
            A `[K+1, rank, inputs]` and B `[K+1, outputs, rank]`.
        """
        a = self._read_leaf(pair.a, self._memory[0])
        b = self._read_leaf(pair.b, self._memory[1])
        return a.view(len(a), pair.rank, pair.inputs), b.view(len(b), pair.outputs, pair.rank)

    def _read_leaf(self, leaf: Leaf, memory: torch.Tensor) -> torch.Tensor:
        """Return a leaf of all models, `[K+1, n]`, in this memory.

        Raises:
            NonFiniteUpdate: if a row holds NaN or infinity.
        """
        rows = self.store.rows(leaf.start, leaf.stop, self._scratch)
        values = memory[: rows.numel()].view(rows.shape)
        values.copy_(rows)
        if not are_finite(values):
            bad = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten().tolist()
            raise NonFiniteUpdate(tuple(bad))
        values[:-1] += values[-1]  # rows hold updates: add the global model
        return values


def pair_products(store: UpdateStore, pairs: Sequence[LoraPair]) -> Array:
    """Return the inner products of the products' updates, float64 `[pairs, K+1, K+1]`.

    Row k is `B_k A_k - B A` for client k, with the global model's factors B and A; the last row is
    `B A`.
    """
    reader = PairReader(store)
    count = len(store.ids) + 1
    blocks = np.empty((len(pairs), count, count))
    with threads.alone():
        for number, pair in enumerate(pairs):
            blocks[number] = _to_updates(model_products(*reader.read(pair)))
    return blocks


def model_products(a: torch.Tensor, b: torch.Tensor) -> Array:
    """Return the inner products `<B_i A_i, B_j A_j>` of n models, float64 `[n, n]`.

    Args:
        a: `[n, rank, inputs]`.
        b: `[n, outputs, rank]`.
    """
    # Where a global model is subtracted later, float32 would lose digits. A product of zero needs
    # no computation.
    count, rank, _ = a.shape
    has_base = bool(a[-1].any()) and bool(b[-1].any())
    dtype = torch.float64 if has_base else a.dtype
    used = count if has_base else count - 1
    rows_a = a[:used].reshape(used * rank, -1).to(dtype)
    columns_b = b[:used].permute(1, 0, 2).reshape(-1, used * rank).to(dtype)

    # Some models at a time, with themselves and those after them; the rest is symmetric.
    sums = np.zeros((count, count))
    step = max(1, -(-used // 5))
    for first in range(0, used, step):
        last = min(first + step, used)
        part = slice(first * rank, last * rank)
        rest = slice(first * rank, None)
        products = rows_a[part] @ rows_a[rest].T
        products *= columns_b[:, part].T @ columns_b[:, rest]
        by_model = products.view(last - first, rank, used - first, rank)
        block = by_model.sum(dim=(1, 3), dtype=torch.float64).numpy()
        sums[first:last, first:used] = block
        sums[first:used, first:last] = block.T
    return sums


def _to_updates(products: Array) -> Array:
    """Return the products of updates and the global model, from those of the models.

    The global model is the last row.
    """
    rows = products[:-1, -1:]
    square = products[-1, -1]
    updates = products.copy()
    updates[:-1, :-1] += square - rows - rows.T
    updates[:-1, :-1] = (updates[:-1, :-1] + updates[:-1, :-1].T) / 2
    updates[:-1, -1] -= square
    updates[-1, :-1] = updates[:-1, -1]
    return updates


@dataclass(frozen=True)
class CombinedPair:
    """The new factors of a pair.

    Attributes:
        factors: the new A and B.
        residual: the exact rest, for the weight itself; None if there is none.
        error: distance of the new product from the exact one, as a share of the step's length;
            with a residual, that of the factors and the residual together.
    """

    factors: Factors
    residual: Factors | None
    error: float


def combine_pair(
    pair: LoraPair,
    a: torch.Tensor,
    b: torch.Tensor,
    weights: Array,
    base: float,
    output: LoraOutput,
    length: float,
) -> CombinedPair:
    """Return the new factors of a pair.

    The exact result is `base B A + sum_k w_k (B_k A_k - B A)`.

    Args:
        pair: the pair.
        a: the factors A of the clients and, last, of the global model, `[K+1, rank, inputs]`.
        b: the factors B, `[K+1, outputs, rank]`.
        weights: coefficients on the updates, `[K]`.
        base: coefficient on the global model.
        output: what to return.
        length: the norm of the exact result minus `B A`, which the error is divided by.
    """
    # The exact result, as stacked factors.
    exact = stack_factors(a, b, np.append(weights, base - weights.sum()))

    # What the server returns.
    residual = None
    distance = 0.0
    if output.kind == "stack":
        factors = exact
    elif output.kind == "svd":
        factors, distance = exact.truncate(pair.rank if output.rank is None else output.rank)
    elif output.kind == "restart":
        factors = Factors(torch.zeros_like(b[-1], dtype=torch.float64), a[-1].double())
        residual = exact
    else:
        factors = average_factors(a, b, weights, base)
    if output.kind == "residual":
        residual = exact.minus(factors)
    elif output.kind == "factors":
        distance = exact.minus(factors).norm()
    error = distance / length if length > 0 else 0.0
    return CombinedPair(factors, residual, error)


def step_norms(blocks: Array, weights: Array, base: Array) -> Array:
    """Return the norms of the exact steps of all pairs, `[pairs]`.

    Args:
        blocks: what `pair_products` returned.
        weights: coefficients on the updates, `[pairs, K]`.
        base: coefficients on the global model, `[pairs]`.
    """
    coefficients = np.column_stack([weights, base - 1])
    squares = np.einsum("pi,pij,pj->p", coefficients, blocks, coefficients)
    norms: Array = np.sqrt(np.maximum(squares, 0.0))
    return norms


def stack_factors(a: torch.Tensor, b: torch.Tensor, coefficients: Array) -> Factors:
    """Return the factors of `sum_k c_k B_k A_k`, of the smallest rank that stacking gives.

    Args:
        a: `[n, rank, inputs]`.
        b: `[n, outputs, rank]`.
        coefficients: `[n]`.
    """
    lefts = []
    rights = []
    for row, coefficient in enumerate(coefficients.tolist()):
        if coefficient == 0.0:
            continue
        # Columns of zeros, from padding to a common rank, would only add rank.
        used = torch.nonzero(a[row].any(dim=1) & b[row].any(dim=0)).flatten()
        lefts.append(coefficient * b[row][:, used].double())
        rights.append(a[row][used].double())
    factors = Factors(torch.cat(lefts, dim=1), torch.cat(rights)) if lefts else None
    if factors is None or factors.rank == 0:
        return Factors(torch.zeros(b.shape[1], 1).double(), torch.zeros(1, a.shape[2]).double())
    return factors


def average_factors(a: torch.Tensor, b: torch.Tensor, weights: Array, base: float) -> Factors:
    """Return the mean factors: the same coefficients on A and on B, each as an ordinary weight."""
    coefficients = torch.from_numpy(np.append(weights, base - weights.sum()))
    left = torch.einsum("n,nor->or", coefficients, b.double())
    right = torch.einsum("n,nri->ri", coefficients, a.double())
    return Factors(left, right)


# Unequal ranks.


def find_common_ranks(
    layout: Layout, shapes_by_model: Iterable[Mapping[str, Sequence[int]]]
) -> dict[str, int]:
    """Return the largest rank of each adapter over all models, by the name of the adapter.

    A rank beyond the size of the weight does not count: such a client is refused later.

    Args:
        layout: the layout of the global model.
        shapes_by_model: the shapes of the tensors of each client.
    """
    ranks = {pair.name: pair.rank for pair in layout.pairs}
    for shapes in shapes_by_model:
        for pair in layout.pairs:
            shape = shapes.get(pair.a.name, ())
            if len(shape) == len(pair.a.shape) and shape[0] <= pair.max_rank:
                ranks[pair.name] = max(ranks[pair.name], shape[0])
    return ranks


def pad_factors(
    tensors: Mapping[str, torch.Tensor], layout: Layout, ranks: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return a model with the factors of all pairs padded with zeros to these ranks.

    The products do not change. Factors of another shape stay as they are.
    """
    padded = dict(tensors)
    for pair in layout.pairs:
        rank = ranks[pair.name]
        a = padded.get(pair.a.name)
        b = padded.get(pair.b.name)
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if a.ndim < 2 or b.ndim < 2 or a.shape[0] != b.shape[1] or a.shape[0] >= rank:
            continue
        padded[pair.a.name] = torch.cat([a, a.new_zeros(rank - a.shape[0], *a.shape[1:])])
        zeros = b.new_zeros(b.shape[0], rank - b.shape[1], *b.shape[2:])
        padded[pair.b.name] = torch.cat([b, zeros], dim=1)
    return padded
