"""A module whose parameters are views of one flat vector, and whose gradients are views of another.

SGD and client terms are then a few vector operations, and an update is written to its row in one copy. Convolution
weights lie in memory channels last, which is 1.2 to 1.5 times as fast on a CPU: a permutation inside each tensor's
stretch of the flat vector. It stays in here: what comes in and goes out is in the usual order (`turned`, `usual`), the
one of files and of Flower's messages, so that sums over coordinates have the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from steelyard.client.losses import Loss as Loss
from steelyard.client.losses import resolve_loss
from steelyard.core.errors import SteelyardError
from steelyard.core.layout import Layout, Leaf

_BATCH_NORM = (nn.modules.batchnorm._BatchNorm,)
_EVALUATE = 512  # samples per forward pass of an evaluation
_LARGE = 1 << 19  # parameters from which on moving gradients about costs more than the calls that avoid it


class FlatModel:
    """The one copy of the network in a process; the clients' models pass through it."""

    def __init__(
        self,
        module: nn.Module,
        loss: str | Loss,
        inputs: torch.Tensor,
        device: torch.device,
        layout: Layout | None = None,
    ) -> None:
        """Takes the module over.

        A given layout says where parameters lie in the vector, each in the usual order; there is no vector of gradients
        then.
        """
        self.module = module.to(device)
        self.loss = resolve_loss(loss)
        self.device = device
        state = module.state_dict()
        self.layout = layout or Layout.of(state)
        self._check_dtypes()
        named = dict(module.named_parameters(remove_duplicate=False))
        convolutions = any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in module.modules())
        self.channels_last = inputs.ndim == 4 and convolutions and layout is None
        self.params = torch.zeros(1, self.layout.dim, dtype=self.layout.row_dtype, device=device)  # [1, d]
        self.grad = torch.zeros_like(self.params) if layout is None else self.params[:, :0]
        self.stats = torch.zeros(self.layout.stat_dim, dtype=self.layout.row_dtype, device=device)
        self._bind(state, named)
        if self.channels_last and not self._runs(inputs):
            self.channels_last = False  # a view() in its forward wants the usual order
            self._bind(state, named)
        frozen = [leaf for leaf in self.layout.params if leaf.name not in named or not named[leaf.name].requires_grad]
        self.free: torch.Tensor | None = None  # [d], 0 where nothing is learned
        if frozen:
            self.free = torch.ones_like(self.params[0])
            for leaf in frozen:
                self.free[leaf.start : leaf.stop] = 0
        self.has_batch_norm = any(isinstance(part, _BATCH_NORM) for part in module.modules())
        tied = any(leaf.tied is not None for leaf in self.layout.leaves)
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._learned = learned if self.layout.dim >= _LARGE and not tied else []
        if self.channels_last and self._learned:
            self._keep_channels_last()

    def _check_dtypes(self) -> None:
        trainable = (torch.float32, torch.float64)
        first = next(iter(self.layout.params), None)
        for leaf in self.layout.params:
            if leaf.dtype not in trainable:
                raise SteelyardError(
                    f"model: {leaf.name!r} is {leaf.dtype}: clients train in float32 or float64: use model.float()"
                )
            if first is not None and leaf.dtype != first.dtype:
                raise SteelyardError(
                    f"model: {leaf.name!r} is {leaf.dtype} beside {first.name!r} in {first.dtype}: train in one dtype, "
                    "float32 or float64: use model.float()"
                )

    def view(self, vector: torch.Tensor, leaf: Leaf) -> torch.Tensor:
        """The leaf's stretch of a flat vector, in the leaf's shape."""
        stretch = vector[leaf.start : leaf.stop]
        if self.channels_last and len(leaf.shape) == 4:
            out, into, high, wide = leaf.shape
            return stretch.view(out, high, wide, into).permute(0, 3, 1, 2)
        return stretch.view(leaf.shape)

    def turned(self, vector: torch.Tensor) -> torch.Tensor:
        """A vector in the usual order as `params` would hold it."""
        if not self.channels_last:
            return vector
        made = torch.empty_like(vector)
        for leaf in self.layout.params:
            self.view(made, leaf).copy_(vector[leaf.start : leaf.stop].view(leaf.shape))
        return made

    def usual(self, vector: torch.Tensor) -> torch.Tensor:
        """A vector like `params` in the usual order: each leaf as it is flattened."""
        if not self.channels_last:
            return vector
        made = torch.empty_like(vector)
        for leaf in self.layout.params:
            made[leaf.start : leaf.stop].view(leaf.shape).copy_(self.view(vector, leaf))
        return made

    def _bind(self, state: Mapping[str, torch.Tensor], named: Mapping[str, nn.Parameter]) -> None:
        """Makes parameters, gradients and statistics views of the flat vectors, values kept."""
        places = {leaf.name: leaf for leaf in self.layout.leaves}
        tensors = {**dict(self.module.named_buffers(remove_duplicate=False)), **named}
        for name, tensor in tensors.items():
            leaf = places.get(name)
            leaf = leaf if leaf is None or leaf.tied is None else places[leaf.tied]
            if leaf is None or leaf.kind == "count":
                continue  # not in the state dict, or an integer
            view = self.view(self.params[0], leaf) if leaf.kind == "param" else self._stat(self.stats, leaf)
            with torch.no_grad():
                view.copy_(state[leaf.name])  # in memory of its own still
            tensor.data = view
            if leaf.kind == "param" and tensor.requires_grad and self.grad.numel():
                tensor.grad = self.view(self.grad[0], leaf)
        self.counters = [self.module.get_buffer(leaf.name) for leaf in self.layout.counts]

    def _stat(self, vector: torch.Tensor, leaf: Leaf) -> torch.Tensor:
        return vector[leaf.start : leaf.stop].view(leaf.shape)

    @torch.no_grad()
    def _runs(self, inputs: torch.Tensor) -> bool:
        self.module.eval()
        try:
            self.module(self.cast(inputs[:2]).contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            return False
        return True

    def _keep_channels_last(self) -> None:
        """Hands pooling layers their gradients channels last.

        Those that come through a flattened image are not, and all layers below would turn each of theirs around.
        """
        for part in self.module.modules():
            if type(part) is nn.MaxPool2d and not part.return_indices:
                part.register_forward_hook(_turned)

    def prepare_inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs as `batch` wants them: once for all, so that no batch has to be turned around."""
        inputs = self.cast(inputs)
        return inputs.permute(0, 2, 3, 1).contiguous() if self.channels_last else inputs.contiguous()

    def cast(self, values: torch.Tensor) -> torch.Tensor:
        """Inputs or targets on the model's device, and in its dtype unless they are whole numbers."""
        return values.to(self.device, self.layout.row_dtype if values.is_floating_point() else values.dtype)

    def batch(self, stored: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Some of the stored inputs."""
        chosen = stored.index_select(0, index)
        return chosen.permute(0, 3, 1, 2) if self.channels_last else chosen

    def gradient(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Fills `grad` with the gradient of the mean loss on this batch."""
        self.grad.zero_()
        self.loss(self.module(inputs), targets).backward()  # type: ignore[no-untyped-call]

    def descend(self, inputs: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """A step of plain SGD, the same to the bit as `gradient` and `params -= lr * grad`.

        Gradients stay where autograd made them: nothing is cleared, added up or read twice, a twentieth of the time of
        a network with millions of parameters. Small ones, and tied weights, whose gradients add up, go the long way.
        """
        if not self._learned:
            self.gradient(inputs, targets)
            self.params.add_(self.grad, alpha=-lr)
            return
        grads = torch.autograd.grad(self.loss(self.module(inputs), targets), self._learned, allow_unused=True)
        moved = [(parameter, grad) for parameter, grad in zip(self._learned, grads, strict=True) if grad is not None]
        with torch.no_grad():
            torch._foreach_add_([parameter for parameter, _ in moved], [grad for _, grad in moved], alpha=-lr)

    @torch.no_grad()
    def evaluate(
        self, stored: torch.Tensor, targets: torch.Tensor, index: torch.Tensor, outputs: torch.Tensor | None = None
    ) -> tuple[float, float, int]:
        """Evaluate the model on some samples.

        Args:
            stored: all inputs, as `stored` returns them.
            targets: of all inputs.
            index: positions of the samples.
            outputs: where to put the network's outputs, a row per sample; None if nobody asks for them.

        Returns:
            The sum of losses, the number of right answers (NaN if there is no such thing) and the number of samples.
        """
        self.module.eval()
        loss = right = 0.0
        for number, part in enumerate(torch.split(index, _EVALUATE)):
            wanted = targets.index_select(0, part)
            output = self.module(self.batch(stored, part))
            if outputs is not None:
                start = number * _EVALUATE
                outputs[start : start + len(part)] = output
            loss += self.loss(output, wanted).item() * len(part)
            right += count_right(output, wanted)
        return loss, right, len(index)

    def mode(self, batch_norm: bool) -> None:
        """Training mode; BatchNorm in evaluation mode where batches of one sample would have no variance."""
        self.module.train()
        if not batch_norm:
            for part in self.module.modules():
                if isinstance(part, _BATCH_NORM):
                    part.eval()

    def load(self, params: torch.Tensor, stats: torch.Tensor, counts: torch.Tensor) -> None:
        """Takes over a model given as flat vectors."""
        self.load_params(params)
        self.stats.copy_(stats)
        for place, value in zip(self.counters, self._cut(counts), strict=True):
            place.copy_(value)

    def load_params(self, params: torch.Tensor) -> None:
        """Takes over parameters."""
        if not self.channels_last:
            self.params[0].copy_(params)
            return
        for leaf in self.layout.params:
            self.view(self.params[0], leaf).copy_(params[leaf.start : leaf.stop].view(leaf.shape))

    def counts(self) -> torch.Tensor:
        """The counters, int64."""
        flat = [counter.reshape(-1).to("cpu", torch.int64) for counter in self.counters]
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.int64)

    def _cut(self, counts: torch.Tensor) -> list[torch.Tensor]:
        sizes = [leaf.size for leaf in self.layout.counts]
        parts = torch.split(counts, sizes) if sizes else ()
        return [part.view(leaf.shape) for part, leaf in zip(parts, self.layout.counts, strict=True)]

    def state_dict(self, params: torch.Tensor, stats: torch.Tensor, counts: torch.Tensor) -> dict[str, torch.Tensor]:
        """Flat vectors as a state dict of its own memory, tied weights tied."""
        made = {leaf.name: params[leaf.start : leaf.stop].view(leaf.shape).clone() for leaf in self.layout.params}
        made |= {leaf.name: self._stat(stats, leaf).to(leaf.dtype).clone() for leaf in self.layout.stats}
        parts = zip(self.layout.counts, self._cut(counts), strict=True)
        made |= {leaf.name: part.to(leaf.dtype).clone() for leaf, part in parts}
        return {leaf.name: made[leaf.tied or leaf.name] for leaf in self.layout.leaves}

    def vectors(self, state: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A state dict as flat vectors: parameters, statistics (float64), counters (int64)."""
        params = torch.empty(self.layout.dim, dtype=self.layout.row_dtype)
        stats = torch.empty(self.layout.stat_dim, dtype=torch.float64)
        for leaf in self.layout.params:
            params[leaf.start : leaf.stop].view(leaf.shape).copy_(state[leaf.name])
        for leaf in self.layout.stats:
            self._stat(stats, leaf).copy_(state[leaf.name])
        counts = [state[leaf.name].reshape(-1).to(torch.int64) for leaf in self.layout.counts]
        return params, stats, torch.cat(counts) if counts else torch.zeros(0, dtype=torch.int64)


def count_right(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return how many samples are right; of samples with several targets, the sum of their shares of right ones.

    NaN where there is no such thing: targets are classes, and outputs have a column for each of two or more.
    """
    if targets.is_floating_point() or outputs.ndim < 2 or outputs.shape[1] < 2:
        return float("nan")
    guess = outputs.argmax(dim=1)
    if guess.shape != targets.shape:
        return float("nan")
    return int((guess == targets).sum()) * len(targets) / guess.numel()


def _turned(part: nn.Module, given: object, output: torch.Tensor) -> None:  # noqa: ARG001 - a forward hook's arguments
    """Asks for the gradient of an image channels last."""
    if output.requires_grad and output.ndim == 4:
        output.register_hook(_channels_last)  # type: ignore[no-untyped-call]


def _channels_last(grad: torch.Tensor) -> torch.Tensor:
    return grad.contiguous(memory_format=torch.channels_last)
