"""The simulator: federated training on one machine, deterministic and resumable."""

from steelyard.sim._callbacks import Callback
from steelyard.sim._experiment import Data, Execution, Experiment, read_experiment
from steelyard.sim._loggers import MLflow, TensorBoard, WandB
from steelyard.sim._participation import Participation
from steelyard.sim._simulate import simulate

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
