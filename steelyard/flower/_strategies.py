"""A strategy class for each part of Steelyard.

This file is generated. Do not edit it: run `python -m steelyard.flower._generate_strategies`.
"""

# fmt: off

from __future__ import annotations

import os

from steelyard.algorithm import Algorithm
from steelyard.core._layout import Granularity
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS, UNSET
from steelyard.flower._replies import AggregateMetrics
from steelyard.flower._strategy import Steelyard
from steelyard.rules._detectors import Detector
from steelyard.server._probe import Probe

__all__ = [  # noqa: RUF022 - in alphabetical order
    "Bulyan",
    "CReFF",
    "Cap",
    "CenteredClipping",
    "Craft",
    "Ema",
    "FLTrust",
    "FPL",
    "FedAWA",
    "FedAWACos",
    "FedAWAL",
    "FedAdagrad",
    "FedAdam",
    "FedAdp",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedCE",
    "FedCos",
    "FedDF",
    "FedDisco",
    "FedDyn",
    "FedExP",
    "FedLAW",
    "FedLAWSWA",
    "FedLWS",
    "FedMGDA",
    "FedMut",
    "FedNova",
    "FedProto",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "GWS",
    "GeometricMedian",
    "Krum",
    "LAW",
    "LDAWA",
    "MGDA",
    "Median",
    "ModelStock",
    "MultiKrum",
    "PA3Fed",
    "Recommended",
    "RecordCoherence",
    "SCAFFOLD",
    "ServerFT",
    "Shrink",
    "TrimmedMean",
    "Uniform",
    "VRLSGD",
]


class Bulyan(Steelyard):
    """Krum's selection, then a mean around the median (El Mhamdi et al., ICML 2018), on Flower.

    Options: `steelyard explain bulyan`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, f: int = 1, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["bulyan"].make(
            f=f,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class CReFF(Steelyard):
    """Re-trains the classifier on federated features (Shang et al., IJCAI 2022), on Flower.

    Options: `steelyard explain creff`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        features: int = 100, match_steps: int = 100, match_lr: float = 0.1, epochs: int = 300,
        lr: float = 0.01, batch_size: int = 32, classifier: str = "", guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["creff"].make(
            features=features, match_steps=match_steps, match_lr=match_lr, epochs=epochs, lr=lr,
            batch_size=batch_size, classifier=classifier,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class Cap(Steelyard):
    """No client above max_weight (steelyard), on Flower.

    Options: `steelyard explain cap`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, max_weight: float,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["cap"].make(
            max_weight=max_weight,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class CenteredClipping(Steelyard):
    """Moves to the mean of clipped updates (Karimireddy et al., ICML 2021), on Flower.

    Options: `steelyard explain centered_clipping`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, tau: float = 1.0,
        steps: int = 3, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["centered_clipping"].make(
            tau=tau, steps=steps,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class Craft(Steelyard):
    """The step nearest to the previous one that agrees with every client (Wang et al., arXiv 2605.21317), on Flower.

    Options: `steelyard explain craft`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, lr: float = 0.1,
        length: str = "unit", rtol: float = 0.001, layers: Granularity = "module",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["craft"].make(
            lr=lr, length=length, rtol=rtol, layers=layers,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class Ema(Steelyard):
    """Averages each client's share over rounds (steelyard), on Flower.

    Options: `steelyard explain ema`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, decay: float = 0.9,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["ema"].make(
            decay=decay,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FLTrust(Steelyard):
    """Trusts clients as far as they agree with the server's own update (Cao et al., NDSS 2021), on Flower.

    Options: `steelyard explain fltrust`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, epochs: int = 1,
        lr: float = 0.1, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fltrust"].make(
            epochs=epochs, lr=lr,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FPL(Steelyard):
    """Contrasts features with clusters of prototypes (Huang et al., CVPR 2023), on Flower.

    Options: `steelyard explain fpl`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        weight: float = 1.0, temperature: float = 0.02, regression: str = "mean",
        max_clusters: int = 10, classifier: str = "", guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["fpl"].make(
            weight=weight, temperature=temperature, regression=regression,
            max_clusters=max_clusters, classifier=classifier,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedAWA(Steelyard):
    """Optimises weights towards the mixture of client vectors (Shi et al., CVPR 2025), on Flower.

    Options: `steelyard explain fedawa`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, preset: str = "paper",
        steps: int = 1, lr: float = UNSET, optimizer: str = "adam", distance: str = "cos",
        init: str = UNSET, penalty: str = UNSET, euclidean: str = UNSET, weights: str = UNSET,
        travel: float | None = UNSET, gamma: float = 1.0, population_examples: int | None = None,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedawa"].make(
            preset=preset, steps=steps, lr=lr, optimizer=optimizer, distance=distance, init=init,
            penalty=penalty, euclidean=euclidean, weights=weights, travel=travel, gamma=gamma,
            population_examples=population_examples,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedAWACos(Steelyard):
    """Weights from cosines to the mean update (Shi et al., CVPR 2025), on Flower.

    Options: `steelyard explain fedawa_cos`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, normalize: str = "sum",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedawa_cos"].make(
            normalize=normalize,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedAWAL(Steelyard):
    """FedAWA layer by layer (Shi et al., CVPR 2025), on Flower.

    Options: `steelyard explain fedawa_l`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, layers: Granularity = "tensor",
        preset: str = "paper", steps: int = 1, lr: float = UNSET, optimizer: str = "adam",
        distance: str = "cos", init: str = UNSET, penalty: str = UNSET, euclidean: str = UNSET,
        weights: str = UNSET, travel: float | None = UNSET, gamma: float = 1.0,
        population_examples: int | None = None, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedawa_l"].make(
            layers=layers, preset=preset, steps=steps, lr=lr, optimizer=optimizer,
            distance=distance, init=init, penalty=penalty, euclidean=euclidean, weights=weights,
            travel=travel, gamma=gamma, population_examples=population_examples,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedAdagrad(Steelyard):
    """FedAdagrad (Reddi et al., ICLR 2021), on Flower.

    Options: `steelyard explain adagrad`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        lr: float = 0.01, tau: float = 0.001, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = OPTIMIZERS["adagrad"].make(
            lr=lr, tau=tau,
        )
        super().__init__(
            Algorithm(weighting, server=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedAdam(Steelyard):
    """FedAdam (Reddi et al., ICLR 2021), on Flower.

    Options: `steelyard explain adam`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99), tau: float = 1e-05,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = OPTIMIZERS["adam"].make(
            lr=lr, betas=betas, tau=tau,
        )
        super().__init__(
            Algorithm(weighting, server=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedAdp(Steelyard):
    """Weighs clients by the smoothed angle of their update to the mean (Wu & Wang, IEEE TCCN 2021), on Flower.

    Options: `steelyard explain fedadp`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, alpha: float = 5.0,
        clock: str = "round", reference: str = "mean", guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedadp"].make(
            alpha=alpha, clock=clock, reference=reference,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedAvg(Steelyard):
    """Weights by number of examples, or by any reported number (McMahan et al., AISTATS 2017), on Flower.

    Options: `steelyard explain fedavg`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, by: str = "num_examples",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedavg"].make(
            by=by,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedAvgM(Steelyard):
    """Server momentum (FedAvgM) (Hsu et al., 2019), on Flower.

    Options: `steelyard explain momentum`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        beta: float = 0.9, lr: float = 1.0, convention: str = "hsu", guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = OPTIMIZERS["momentum"].make(
            beta=beta, lr=lr, convention=convention,
        )
        super().__init__(
            Algorithm(weighting, server=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedBE(Steelyard):
    """Distils clients, average and sampled models into the average (Chen & Chao, ICLR 2021), on Flower.

    Options: `steelyard explain fedbe`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        preset: str = "paper", epochs: int = UNSET, lr: float = UNSET, optimizer: str = UNSET,
        momentum: float = UNSET, weight_decay: float = UNSET, persistent: bool = UNSET,
        samples: int = 1, mode: str = "gaussian", scale: float = 0.1, alpha: float = 1.0,
        average: str = "logits", sharpen: float = 1.0, swa_start: int = 0, swa_every: int = 25,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", record: str = "auto",
        shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = REFINERS["fedbe"].make(
            preset=preset, epochs=epochs, lr=lr, optimizer=optimizer, momentum=momentum,
            weight_decay=weight_decay, persistent=persistent, samples=samples, mode=mode,
            scale=scale, alpha=alpha, average=average, sharpen=sharpen, swa_start=swa_start,
            swa_every=swa_every,
        )
        super().__init__(
            Algorithm(weighting, refine=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, record=record, shadow=shadow, lora=lora,
        )


class FedCE(Steelyard):
    """Weighs clients by what the model would miss without them (Jiang et al., CVPR 2023), on Flower.

    Options: `steelyard explain fedce`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *,
        score: str | None = "error_without", mode: str = "plus", eps: float = 1e-06,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", record: str = "auto",
        shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedce"].make(
            score=score, mode=mode, eps=eps,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, record=record,
            shadow=shadow, lora=lora,
        )


class FedCos(Steelyard):
    """A cosine penalty along the last global step (Zhang et al., IoT-J 2023), on Flower.

    Options: `steelyard explain fedcos`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        mu: float = 0.02, form: str = "official", eps: float = 0.0001, direction: str = "step",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["fedcos"].make(
            mu=mu, form=form, eps=eps, direction=direction,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedDF(Steelyard):
    """Distils the clients into the average (Lin et al., NeurIPS 2020), on Flower.

    Options: `steelyard explain feddf`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        preset: str = "paper", epochs: int = UNSET, lr: float = UNSET, optimizer: str = UNSET,
        momentum: float = UNSET, weight_decay: float = UNSET, persistent: bool = UNSET,
        average: str = "logits", temperature: float = 1.0, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = REFINERS["feddf"].make(
            preset=preset, epochs=epochs, lr=lr, optimizer=optimizer, momentum=momentum,
            weight_decay=weight_decay, persistent=persistent, average=average,
            temperature=temperature,
        )
        super().__init__(
            Algorithm(weighting, refine=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedDisco(Steelyard):
    """Weighs clients down by the discrepancy of their labels (Ye et al., ICML 2023), on Flower.

    Options: `steelyard explain feddisco`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, a: float = 0.5, b: float = 0.1,
        metric: str = "kl", guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["feddisco"].make(
            a=a, b=b, metric=metric,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedDyn(Steelyard):
    """Dynamic regularisation (Acar et al., ICLR 2021), on Flower.

    Options: `steelyard explain feddyn`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "uniform",
        alpha: float = 0.01, form: str = "official", guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["feddyn"].make(
            alpha=alpha, form=form,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedExP(Steelyard):
    """Multiplies the step by the extrapolation of the updates (Jhunjhunwala et al., ICLR 2023), on Flower.

    Options: `steelyard explain fedexp`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, eps: float = 0.001,
        preset: str = "paper", guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedexp"].make(
            eps=eps, preset=preset,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedLAW(Steelyard):
    """Learns weights and a shrinking factor on proxy data (Li et al., ICML 2023), on Flower.

    Options: `steelyard explain fedlaw`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, preset: str = "paper",
        epochs: int = UNSET, lr: float = 0.01, optimizer: str = "adam",
        betas: tuple[float, float] = (0.5, 0.999), function: str = "exp", init: str = UNSET,
        halve: int = 20, learn: str = "both", critical: float | None = None,
        floor: float | None = None, trace: bool = False, global_lr: float = 1.0, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedlaw"].make(
            preset=preset, epochs=epochs, lr=lr, optimizer=optimizer, betas=betas,
            function=function, init=init, halve=halve, learn=learn, critical=critical, floor=floor,
            trace=trace, global_lr=global_lr,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedLAWSWA(Steelyard):
    """FedLAW in two stages, weights averaged over epochs (Li et al., ICML 2023), on Flower.

    Options: `steelyard explain fedlaw_swa`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, preset: str = "paper",
        epochs: int = UNSET, lr: float = 0.01, swa_lr: float = 0.05, optimizer: str = "adam",
        betas: tuple[float, float] = (0.5, 0.999), function: str = "exp", init: str = UNSET,
        learn: str = "both", order: str = UNSET, halve: int = 20, snapshots: str = "required",
        average: str = "logits", floor: float | None = None, trace: bool = False,
        global_lr: float = 1.0, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedlaw_swa"].make(
            preset=preset, epochs=epochs, lr=lr, swa_lr=swa_lr, optimizer=optimizer, betas=betas,
            function=function, init=init, learn=learn, order=order, halve=halve,
            snapshots=snapshots, average=average, floor=floor, trace=trace, global_lr=global_lr,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedLWS(Steelyard):
    """Shrinks each layer by the disagreement of the clients (Shi et al., ICLR 2025), on Flower.

    Options: `steelyard explain fedlws`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, beta: float = 0.03,
        min_tau: float = 0.01, max_tau: float = 0.2, layers: Granularity = "module",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedlws"].make(
            beta=beta, min_tau=min_tau, max_tau=max_tau, layers=layers,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedMGDA(Steelyard):
    """The shortest combination of unit updates, near the prior (Hu et al., IEEE TNSE 2022), on Flower.

    Options: `steelyard explain fedmgda`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, epsilon: float = 0.1,
        normalize: bool = True, length: str = "unit", guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fedmgda"].make(
            epsilon=epsilon, normalize=normalize, length=length,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedMut(Steelyard):
    """Clients start from mutated copies of the global model (Hu et al., AAAI 2024), on Flower.

    Options: `steelyard explain fedmut`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "uniform",
        radius: float = 4.0, rate: float = 0.3, bound: int = 50, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = BROADCASTS["fedmut"].make(
            radius=radius, rate=rate, bound=bound,
        )
        super().__init__(
            Algorithm(weighting, broadcast=part), fraction_train, fraction_evaluate,
            min_train_nodes, min_evaluate_nodes, min_available_nodes, weighted_by_key,
            arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn,
            guard=guard, proxy=proxy, id_key=id_key, population=population,
            mean_examples=mean_examples, seed=seed, out=out, checkpoint_dir=checkpoint_dir,
            resume=resume, checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedNova(Steelyard):
    """Divides each update by its local work (Wang et al., NeurIPS 2020), on Flower.

    Options: `steelyard explain fednova`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, tau_eff: str = "normalizer",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["fednova"].make(
            tau_eff=tau_eff,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class FedProto(Steelyard):
    """Pulls features to the prototype of their class (Tan et al., AAAI 2022), on Flower.

    Options: `steelyard explain fedproto`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        weight: float = 1.0, average: str = "counts", classifier: str = "", guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["fedproto"].make(
            weight=weight, average=average, classifier=classifier,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedProx(Steelyard):
    """A proximal term around the model received (Li et al., MLSys 2020), on Flower.

    Options: `steelyard explain fedprox`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        mu: float = 0.01, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["fedprox"].make(
            mu=mu,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedSGD(Steelyard):
    """Theta + lr D (steelyard), on Flower.

    Options: `steelyard explain sgd`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        lr: float = 1.0, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = OPTIMIZERS["sgd"].make(
            lr=lr,
        )
        super().__init__(
            Algorithm(weighting, server=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class FedYogi(Steelyard):
    """FedYogi (Reddi et al., ICLR 2021), on Flower.

    Options: `steelyard explain yogi`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99), tau: float = 0.001,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = OPTIMIZERS["yogi"].make(
            lr=lr, betas=betas, tau=tau,
        )
        super().__init__(
            Algorithm(weighting, server=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class GWS(Steelyard):
    """Learns a shrinking factor on proxy data (Li et al., ICML 2023), on Flower.

    Options: `steelyard explain gws`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, preset: str = "paper",
        epochs: int = UNSET, lr: float = 0.01, optimizer: str = "adam",
        betas: tuple[float, float] = (0.5, 0.999), function: str = "exp", halve: int = 20,
        floor: float | None = None, trace: bool = False, global_lr: float = 1.0, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["gws"].make(
            preset=preset, epochs=epochs, lr=lr, optimizer=optimizer, betas=betas,
            function=function, halve=halve, floor=floor, trace=trace, global_lr=global_lr,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class GeometricMedian(Steelyard):
    """The point of least total distance (Pillutla et al., IEEE TSP 2022), on Flower.

    Options: `steelyard explain geometric_median`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, steps: int = 3,
        nu: float = 0.1, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["geometric_median"].make(
            steps=steps, nu=nu,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class Krum(Steelyard):
    """The one update with the closest neighbours (Blanchard et al., NeurIPS 2017), on Flower.

    Options: `steelyard explain krum`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, f: int = 1,
        neighbours: str = "byzfl", guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["krum"].make(
            f=f, neighbours=neighbours,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class LAW(Steelyard):
    """Learns weights on proxy data (Li et al., ICML 2023), on Flower.

    Options: `steelyard explain law`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, preset: str = "paper",
        epochs: int = UNSET, lr: float = 0.01, optimizer: str = "adam",
        betas: tuple[float, float] = (0.5, 0.999), function: str = "exp", init: str = UNSET,
        halve: int = 20, critical: float | None = None, trace: bool = False, global_lr: float = 1.0,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["law"].make(
            preset=preset, epochs=epochs, lr=lr, optimizer=optimizer, betas=betas,
            function=function, init=init, halve=halve, critical=critical, trace=trace,
            global_lr=global_lr,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class LDAWA(Steelyard):
    """Scales each layer by its cosine to the last global one (Rehman et al., ICCV 2023), on Flower.

    Options: `steelyard explain ldawa`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, warmup: int = 3,
        layers: Granularity = "tensor", guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["ldawa"].make(
            warmup=warmup, layers=layers,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class MGDA(Steelyard):
    """The shortest convex combination of the updates (Desideri 2012; Sener & Koltun 2018), on Flower.

    Options: `steelyard explain mgda`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["mgda"].make()
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class Median(Steelyard):
    """The median of each coordinate (Yin et al., ICML 2018), on Flower.

    Options: `steelyard explain median`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["median"].make()
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class ModelStock(Steelyard):
    """Moves to the mean of the clients as far as their updates agree (Jang et al., ECCV 2024), on Flower.

    Options: `steelyard explain model_stock`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, layers: Granularity = "tensor",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["model_stock"].make(
            layers=layers,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class MultiKrum(Steelyard):
    """The mean of the updates with the closest neighbours (Blanchard et al., NeurIPS 2017), on Flower.

    Options: `steelyard explain multikrum`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, f: int = 1,
        neighbours: str = "byzfl", keep: int | None = None, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["multikrum"].make(
            f=f, neighbours=neighbours, keep=keep,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class PA3Fed(Steelyard):
    """Weighs clients by the change of their score, in critical periods (PA3Fed, AAAI 2025), on Flower.

    Options: `steelyard explain pa3fed`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, beta: float = 0.3,
        score: str = UNSET, detector: str | Detector = "eq6", model: str = UNSET,
        preset: str = "intended", divide: bool = True, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["pa3fed"].make(
            beta=beta, score=score, detector=detector, model=model, preset=preset, divide=divide,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class Recommended(Steelyard):
    """The composition feddisco client=fedcos, on Flower."""

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        super().__init__(
            Algorithm("recommended"), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class RecordCoherence(Steelyard):
    """Records coherence by group and across the model (FedLAW, Figs. 5 and 6), on Flower.

    Options: `steelyard explain record_coherence`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, groups: int = 1,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["record_coherence"].make(
            groups=groups,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class SCAFFOLD(Steelyard):
    """Control variates (Karimireddy et al., ICML 2020), on Flower.

    Options: `steelyard explain scaffold`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["scaffold"].make()
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class ServerFT(Steelyard):
    """Fine-tunes on proxy data (Li et al. (FedLAW), ICML 2023), on Flower.

    Options: `steelyard explain server_ft`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        preset: str = "paper", epochs: int = UNSET, lr: float = UNSET, optimizer: str = UNSET,
        momentum: float = UNSET, weight_decay: float = UNSET, persistent: bool = UNSET,
        guard: bool = True, proxy: Probe | None = None, id_key: str = "partition-id",
        population: int | None = None, mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = REFINERS["server_ft"].make(
            preset=preset, epochs=epochs, lr=lr, optimizer=optimizer, momentum=momentum,
            weight_decay=weight_decay, persistent=persistent,
        )
        super().__init__(
            Algorithm(weighting, refine=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )


class Shrink(Steelyard):
    """Multiplies the aggregated model by gamma (Li et al., ICML 2023), on Flower.

    Options: `steelyard explain shrink`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, gamma: float,
        stats: bool = False, global_lr: float = 1.0, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["shrink"].make(
            gamma=gamma, stats=stats, global_lr=global_lr,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class TrimmedMean(Steelyard):
    """The mean of each coordinate without its extremes (Yin et al., ICML 2018), on Flower.

    Options: `steelyard explain trimmed_mean`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, f: int = 1, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["trimmed_mean"].make(
            f=f,
        )
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class Uniform(Steelyard):
    """Every client the same weight (steelyard), on Flower.

    Options: `steelyard explain uniform`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, guard: bool = True,
        proxy: Probe | None = None, id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = RULES["uniform"].make()
        super().__init__(
            Algorithm(part), fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes,
            min_available_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
            train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard, proxy=proxy,
            id_key=id_key, population=population, mean_examples=mean_examples, seed=seed, out=out,
            checkpoint_dir=checkpoint_dir, resume=resume, checkpoint_every=checkpoint_every,
            patience=patience, memory=memory, data_name=data_name, monitor=monitor, mode=mode,
            record=record, shadow=shadow, lora=lora,
        )


class VRLSGD(Steelyard):
    """Variance-reduced local SGD (Liang et al., 2019), on Flower.

    Options: `steelyard explain vrlsgd`.
    """

    def __init__(
        self,
        fraction_train: float = 1.0, fraction_evaluate: float = 1.0, min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2, min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples", arrayrecord_key: str = "arrays",
        configrecord_key: str = "config", train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None, *, weighting: str = "fedavg",
        scale: float = 1.0, guard: bool = True, proxy: Probe | None = None,
        id_key: str = "partition-id", population: int | None = None,
        mean_examples: float | None = None, seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None, resume: bool = False,
        checkpoint_every: int = 1, patience: int = 5, memory: int | str | None = None,
        data_name: str = "flower", monitor: str = "accuracy", mode: str = "auto",
        record: str = "auto", shadow: tuple[str, ...] | list[str] = (), lora: str | None = None,
    ) -> None:
        part = TERMS["vrlsgd"].make(
            scale=scale,
        )
        super().__init__(
            Algorithm(weighting, client=part), fraction_train, fraction_evaluate, min_train_nodes,
            min_evaluate_nodes, min_available_nodes, weighted_by_key, arrayrecord_key,
            configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, guard=guard,
            proxy=proxy, id_key=id_key, population=population, mean_examples=mean_examples,
            seed=seed, out=out, checkpoint_dir=checkpoint_dir, resume=resume,
            checkpoint_every=checkpoint_every, patience=patience, memory=memory,
            data_name=data_name, monitor=monitor, mode=mode, record=record, shadow=shadow,
            lora=lora,
        )
