"""Chooses what a server returns for LoRA adapters, and checks that the algorithm allows it."""

from __future__ import annotations

from steelyard.algorithm import Algorithm
from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import part_needing_proxy_data
from steelyard.core._layout import Layout
from steelyard.core._lora import FACTORS, RESTART, LoraOutput, parse_lora
from steelyard.metrics import METRICS, needs_evaluation


def choose_lora_output(
    text: str | None, layout: Layout, algorithm: Algorithm, *, can_change_base: bool
) -> LoraOutput:
    """Return what the server returns to clients that train adapters.

    Args:
        text: the option `lora`; None for the exact one that clients can use, or else `svd`.
        layout: the tensors that are sent.
        algorithm: the algorithm of the run.
        can_change_base: whether the server can change the frozen weights of all clients.

    Raises:
        SteelyardError: if there are no adapters, or clients or the algorithm cannot use it.
    """
    if not layout.pairs:
        if text is not None:
            raise SteelyardError(
                f"lora={text}: the network has no LoRA adapters: wrap it with peft.get_peft_model, "
                "or leave lora out"
            )
        return FACTORS
    if text is None:
        text = "residual" if can_change_base else "svd"
    output = parse_lora(text)
    if output.kind == "factors":
        return output

    # What clients can use.
    if output.kind in ("stack", "residual") and not can_change_base:
        raise SteelyardError(
            f"lora={text}: clients on Flower keep the frozen weights, which the server cannot "
            "change: use lora=svd or lora=factors, or the simulator"
        )
    ranks = sorted({pair.rank for pair in layout.pairs})
    if output.rank is not None and ranks != [output.rank]:
        have = ", ".join(map(str, ranks))
        raise SteelyardError(
            f"lora={text}: clients train adapters of rank {have}, and cannot use another: use "
            "lora=svd"
        )
    _check_algorithm(text, output, algorithm)
    return RESTART if output.kind == "stack" else output


def _check_algorithm(text: str, output: LoraOutput, algorithm: Algorithm) -> None:
    """Raise an error if a part of the algorithm acts on the factors and not on their product."""
    parts = [f"client={term.name}" for term in algorithm.client if term.tags.changes_model]
    if algorithm.server is not None:
        parts.append(f"server={algorithm.server.name}")
    if algorithm.broadcast is not None:
        parts.append(f"broadcast={algorithm.broadcast.name}")
    needing_probe = part_needing_proxy_data(algorithm.rule, algorithm.refine)
    if needing_probe is not None:
        parts.append(needing_probe)
    if algorithm.rule.needs.coordinates:
        parts.append("a rule that works coordinate by coordinate")
    if parts:
        raise SteelyardError(
            f"lora={text} with {parts[0]}: it acts on the factors A and B, not on their product: "
            "use lora=factors, or leave it out"
        )

    # The model without a client is not a mean of factors.
    if needs_evaluation(algorithm.needs.metrics & METRICS.keys(), "without"):
        raise SteelyardError(
            f"lora={text} with a rule that needs 'error_without': clients compute it from the factors "
            "A and B, not from their product: use lora=factors, or fedce:score=none"
        )

    # Vectors of earlier rounds belong to the factors of earlier rounds.
    keeping = [term.name for term in algorithm.client if term.client_slots or term.server_slots]
    if algorithm.needs.broadcast:
        keeping += [term.name for term in algorithm.client if term.needs.broadcast]
    if keeping and output.kind in ("svd", "stack"):
        raise SteelyardError(
            f"lora={text} with client={keeping[0]}: the factors change their basis in every round, "
            f"and the vectors of {keeping[0]} do not: use lora=residual or lora=factors"
        )
