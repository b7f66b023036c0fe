"""FedJAX's federated averaging with its default backend (`jax.jit`, one client after another)."""

from importlib.metadata import version
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.job import LAYERS, Job, say

Params = list[jax.Array]


def to_jax(values: list[np.ndarray]) -> Params:
    """Parameters of torch with channels last: kernels HWIO, matrices input by output, flattened images HWC."""
    made, channels, first = [], 0, True
    for value in values:
        if value.ndim == 4:
            channels = value.shape[0]
            value = value.transpose(2, 3, 1, 0)
        elif value.ndim == 2 and first:
            side = int((value.shape[1] // channels) ** 0.5)
            value = (
                value.reshape(-1, channels, side, side)
                .transpose(2, 3, 1, 0)
                .reshape(value.shape[1], -1)
            )
            first = False
        elif value.ndim == 2:
            value = value.T
        made.append(jnp.asarray(np.ascontiguousarray(value)))
    return made


def to_torch(params: Params) -> list[np.ndarray]:
    """And back."""
    made, channels, first = [], 0, True
    for param in params:
        value = np.asarray(param)
        if value.ndim == 4:
            channels = value.shape[3]
            value = value.transpose(3, 2, 0, 1)
        elif value.ndim == 2 and first:
            side = int((value.shape[0] // channels) ** 0.5)
            value = (
                value.reshape(side, side, channels, -1)
                .transpose(3, 2, 0, 1)
                .reshape(value.shape[1], -1)
            )
            first = False
        elif value.ndim == 2:
            value = value.T
        made.append(np.ascontiguousarray(value))
    return made


def forward(params: Params, x: jax.Array, model: str, rng: Any = None) -> jax.Array:
    """The layers of `LAYERS[model]`; dropout where there is a random key."""
    left = list(params)
    for kind, *numbers in LAYERS[model]:
        if kind == "conv":
            x = jax.lax.conv_general_dilated(
                x, left.pop(0), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ) + left.pop(0)
        elif kind == "linear":
            x = x @ left.pop(0) + left.pop(0)
        elif kind == "relu":
            x = jax.nn.relu(x)
        elif kind == "pool":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        elif kind == "flatten":
            x = x.reshape(len(x), -1)
        elif rng is not None:
            rng, now = jax.random.split(rng)
            kept = jax.random.bernoulli(now, 1 - numbers[0], x.shape)
            x = jnp.where(kept, x / (1 - numbers[0]), 0.0)
    return x


def losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross entropy of each sample."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def main() -> None:
    job = Job.given()
    inputs = np.ascontiguousarray(job.array("inputs").transpose(0, 2, 3, 1))
    targets = job.array("targets")
    test = (
        np.ascontiguousarray(job.array("test_inputs").transpose(0, 2, 3, 1)),
        job.array("test_targets"),
    )
    rows = {client: job.rows(client) for client in range(job.clients)}
    data = fedjax.InMemoryFederatedData(
        {client: {"x": inputs[part], "y": targets[part]} for client, part in rows.items()}
    )

    def loss(params: Params, batch: Any, rng: Any) -> jax.Array:
        return losses(forward(params, batch["x"], job.model, rng), batch["y"]).mean()

    @jax.jit
    def right(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = forward(params, x, job.model)
        return losses(logits, y).sum(), (logits.argmax(axis=1) == y).sum()

    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=job.epochs)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(job.lr, job.momentum or None),
        fedjax.optimizers.sgd(1.0),
        hparams,
    )
    state = algorithm.init(to_jax(job.initial()))
    steps = sum(
        1 for _ in data.get_client(0).shuffle_repeat_batch(hparams)
    )  # of any client: all have as many samples
    key = jax.random.PRNGKey(0)
    say("start", versions={"fedjax": version("fedjax"), "jax": jax.__version__})
    for number, cohort in enumerate(job.array("cohorts"), 1):
        key, *keys = jax.random.split(key, len(cohort) + 1)
        chosen = [
            (client, data.get_client(client), own)
            for client, own in zip(cohort.tolist(), keys, strict=True)
        ]
        state, _ = algorithm.apply(state, chosen)
        if job.evaluate:
            for start in range(0, len(test[1]), 500):
                jax.device_get(
                    right(state.params, test[0][start : start + 500], test[1][start : start + 500])
                )
        jax.block_until_ready(state.params)
        say("round", number=number, steps=steps * len(cohort))
    job.finish(to_torch(state.params))


if __name__ == "__main__":
    main()
