"""What the server remembers of its clients' halves: who added the terms, and whose vectors count.

Clients keep vectors of their own (SCAFFOLD's variates, say) and tell the server how they changed. A
reply may be lost or set aside, and then the change has to be undone at the client too. So every
message names the last round whose reply counted, and the client goes on from what it kept then.
"""

from __future__ import annotations

from collections.abc import Iterable
from logging import WARNING
from typing import Any

from flwr.common.logger import log

from steelyard.algorithm import Algorithm
from steelyard.core.errors import SteelyardError
from steelyard.core.state import ClientId
from steelyard.flower.replies import UNCONFIRMED, Inbox, ReplyRequirements

LOST = "round %d, client %s: what it kept from earlier rounds is lost, and it began at zero (a new process?)%s"
CURE = ": the server still counts it in; stop and resume the run, so that all begin at zero"


class TermSync:
    """Begins anew with every Flower run, as what clients keep does."""

    def __init__(self, algorithm: Algorithm, arrays: str, examples: str) -> None:
        terms = algorithm.client
        text = algorithm.texts["client"] or ""
        self.wanted = ReplyRequirements(
            arrays, examples, text, strict=any(term.server_slots for term in terms)
        )
        self.keeps = any(term.client_slots for term in terms)
        self.tied = [term.name for term in terms if term.told_slots or term.moves_model]
        self.rounds: dict[int, int] = {}
        self.confirmed = self.warned = False

    def accepted(self, node: int) -> int:
        """The last round in which this node's reply counted; 0 if none did."""
        return self.rounds.get(node, 0)

    def check_driver(self) -> None:
        """For rounds that another strategy drives.

        It may change replies and the model, which these terms rely on.
        """
        for name in self.tied:
            raise SteelyardError(
                f"client={name}: its server part goes wrong inside another strategy: call its own "
                f"start, or use "
                "client=fedprox"
            )

    def check(self, number: int, box: Inbox) -> dict[str, Any]:
        """Warns of clients that added no terms or lost what they kept.

        Returns what is put on record of it.
        """
        client, without = self.wanted.client, box.unconfirmed
        self.confirmed = self.confirmed or len(without) < len(box.nodes)
        are_most = 2 * len(without) > box.replies.asked  # it is no single client's fault
        if are_most and self.wanted.strict and not self.confirmed:
            raise SteelyardError(f"the clients {UNCONFIRMED.format(client)}")
        if without and not self.wanted.strict and not self.warned:
            self.warned = True
            problem = f"{len(without)} of {len(box.nodes)} clients {UNCONFIRMED.format(client)}"
            log(WARNING, "round %d: %s. Without it, this is plain averaging", number, problem)
        for restarted_client in box.restarted:
            log(WARNING, LOST, number, restarted_client, CURE if self.keeps else "")
        return {"unconfirmed": without, "restarted": box.restarted}

    def settle(self, number: int, clients: Iterable[ClientId], box: Inbox) -> None:
        """These clients' vectors count from now on."""
        for client in clients:
            self.rounds[box.nodes[client]] = number
