"""Runs read back: which axes are about the algorithm, which seeds belong together, what is there twice."""

import json

import pytest
from torch import nn

import steelyard
from steelyard.experiments._run_groups import (
    find_differences,
    format_labels,
    group_runs,
    is_of_algorithm,
    read_runs,
)
from steelyard.runs._directory import CONFIG, ROUNDS


@pytest.mark.parametrize(
    "axis", ["case", "weighting", "client", "server", "broadcast", "refine", "local.lr"]
)
def test_every_part_of_an_algorithm_is_a_row(axis):
    assert is_of_algorithm(axis)


@pytest.mark.parametrize(
    "axis", ["data.partition", "participation.share", "proxy.per_class", "model"]
)
def test_settings_are_columns(axis):
    assert not is_of_algorithm(axis)


def test_a_single_algorithm_is_named_with_all_its_parts(tmp_path):
    algorithm = steelyard.Algorithm("fedawa", client="fedcos:mu=0.01", server="momentum")
    steelyard.simulate(algorithm, rounds=1, clients=3, out=tmp_path / "run")
    (run,), _ = read_runs([tmp_path])
    assert format_labels(run.algorithm) == "fedawa + fedcos:mu=0.01 + momentum"


def proxied(out, weighting, seed, **options):
    chosen = {"rounds": 1, "clients": 3, "proxy": {"per_class": 2}, "executor": "serial", **options}
    steelyard.simulate(
        weighting,
        "digits",
        "mlp:hidden=[4]",
        seed=seed,
        out=out / f"{weighting[:3]}-{seed}",
        **chosen,
    )


def test_seeds_of_runs_with_proxy_data_are_grouped(tmp_path):
    for seed in (0, 1):
        for weighting in ("fedavg", "gws:epochs=1"):
            proxied(tmp_path, weighting, seed)
    runs, notes = read_runs([tmp_path])
    ((setting, algorithms),) = group_runs(runs).items()
    assert setting == ()
    assert [(format_labels(name), list(seeds)) for name, seeds in algorithms.items()] == [
        ("fedavg", ["0", "1"]),
        ("gws:epochs=1", ["0", "1"]),
    ]
    assert notes == find_differences(runs) == []


def test_other_proxy_data_is_told(tmp_path):
    proxied(tmp_path, "fedavg", 0)
    proxied(tmp_path, "gws:epochs=1", 0)
    path = tmp_path / "gws-0" / CONFIG
    stored = json.loads(path.read_text())
    stored["resolved"]["proxy"]["fingerprint"] = "other"
    path.write_text(json.dumps(stored))
    (said,) = find_differences(read_runs([tmp_path])[0])
    assert "did not start alike (other proxy data)" in said


def test_of_a_run_done_twice_the_finished_one_is_kept(tmp_path):
    options = {"rounds": 2, "clients": 3, "executor": "serial"}
    for name in ("done", "killed"):
        steelyard.simulate("fedavg", "digits", "mlp:hidden=[4]", out=tmp_path / name, **options)
    log = tmp_path / "killed" / ROUNDS
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    (run,), notes = read_runs([tmp_path], unfinished=True)
    assert run.path == tmp_path / "done"
    assert notes[-1] == f"{tmp_path / 'killed'}: the same run as {tmp_path / 'done'}, left out"


def test_what_is_on_record_tells_runs_apart(tmp_path):
    for name, chance in (("dry", 0.0), ("wet", 0.7)):
        net = nn.Sequential(nn.Flatten(), nn.Dropout(chance), nn.Linear(64, 10))
        for values in net.parameters():
            nn.init.zeros_(values)
        steelyard.simulate(
            "fedavg", "digits", net, out=tmp_path / name, rounds=2, clients=3, executor="serial"
        )
    with pytest.raises(steelyard.SteelyardError, match=r"are not the same run \(other layers"):
        read_runs([tmp_path])
    for name in ("dry", "wet"):  # as in runs of earlier versions, and on Flower
        path = tmp_path / name / CONFIG
        stored = json.loads(path.read_text())
        del stored["resolved"]["model"]["layers"]
        path.write_text(json.dumps(stored))
    with pytest.raises(steelyard.SteelyardError, match="their records differ from round 1 on"):
        read_runs([tmp_path])
