"""Apple's pfl, as its CIFAR-10 benchmark uses it: one process, a SimulatedBackend, federated averaging."""

import functools
from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from benchmarks.peers.job import Job, say
from benchmarks.peers.torch_net import measured, started, taken, tensors


class Net(nn.Module):
    """The network with the two methods pfl asks for; it counts the losses it is asked to compute."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers
        self.steps = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layers' output."""
        return self.layers(inputs)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """Of a batch; pfl calls this once in each step."""
        self.train(not eval)
        self.steps += 1
        return nn.functional.cross_entropy(self(inputs), targets)

    def metrics(
        self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = True
    ) -> dict[str, Any]:
        """Nothing: evaluation is the callback's, as in pfl's benchmark."""
        return {}


class Clock(TrainingProcessCallback):
    """Says when rounds end; evaluates on the test set where asked."""

    def __init__(self, job: Job, net: Net) -> None:
        self.job, self.net, self.before = job, net, 0

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Data and model are there."""
        say(
            "start",
            versions={"pfl": version("pfl"), "torch": torch.__version__},
            threads=torch.get_num_threads(),
        )
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round is over."""
        if self.job.evaluate:
            measured(self.net.layers, *tensors(self.job, "test_inputs", "test_targets"))
        say("round", number=central_iteration + 1, steps=self.net.steps - self.before)
        self.before = self.net.steps
        return False, Metrics()


def main() -> None:
    job = Job.given()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    net = Net(started(job))
    inputs, targets = tensors(job, "inputs", "targets")
    rows = {client: job.rows(client) for client in range(job.clients)}
    users = {client: (inputs[part], targets[part]) for client, part in rows.items()}
    cohorts = job.array("cohorts")
    drawn = iter(cohorts.reshape(-1).tolist())
    data = FederatedDataset.from_slices(users, lambda: next(drawn))
    model = PyTorchModel(
        model=net,
        local_optimizer_create=functools.partial(torch.optim.SGD, momentum=job.momentum),
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=cohorts.shape[1],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=job.lr, local_num_epochs=job.epochs, local_batch_size=job.batch
        ),
        callbacks=[Clock(job, net)],
    )
    job.finish(taken(net))


if __name__ == "__main__":
    main()
