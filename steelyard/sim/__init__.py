"""The simulator: federated training on one machine, deterministic and resumable."""

from steelyard.sim.callbacks import Callback
from steelyard.sim.experiment import Data, Execution, Experiment, read_experiment
from steelyard.sim.loggers import MLflow, TensorBoard, WandB
from steelyard.sim.participation import Participation
from steelyard.sim.simulate import simulate

__all__ = [
    "Callback",
    "Data",
    "Execution",
    "Experiment",
    "MLflow",
    "Participation",
    "TensorBoard",
    "WandB",
    "read_experiment",
    "simulate",
]
