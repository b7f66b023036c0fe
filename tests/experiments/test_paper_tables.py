"""The papers' tables as data."""

import re
import shlex
from collections import Counter

import pytest

from steelyard.algorithm import parse_refiner
from steelyard.core._errors import SteelyardError
from steelyard.experiments import _cost as cost
from steelyard.experiments._paper_table import (
    Number,
    names,
    parse_table,
    read_table,
    tables,
)
from steelyard.sim._experiment import merge_sections

SOME = {  # read in the papers by hand, apart from the files
    ("fedadp-table1", "mnist-1class-3iid/fedavg"): Number(None, 94.48),
    ("fedadp-table1", "mnist-1class-5iid/fedadp"): Number(61),
    ("fedadp-table1", "fashion-mnist-2class-6iid/fedavg"): Number(134),
    ("fedlaw-table1", "alpha-100/gamma-093"): Number(70.16),
    ("fedlaw-table9", "alpha-0.2/gamma-097"): Number(63.72),
    ("fedlaw-table3", "cifar10-0.1-resnet/fedprox"): Number(48.84),
    ("fedlaw-table3", "fashion-mnist-0.1-mlp/fedavg"): Number(85.11),
    ("fedlaw-table3", "cifar10-0.1-resnet/fedlaw-swa"): Number(57.08),
    ("fedlaw-table3", "cifar100-0.1-cnn/server-ft"): Number(24.33),
    ("fedlaw-table3", "fashion-mnist-100-lenet/fedbe"): Number(89.14),
    ("fedlaw-table3", "cifar10-100-cnn/feddf"): Number(69.60),
    ("fedlaw-table3", "fashion-mnist-0.1-lenet/feddyn"): Number(72.68),
    ("fedawa-table1", "cifar100-0.5/fedlaw"): Number(37.56),
    ("fedcos-table1", "90/fedcos-002"): Number(69.83),
    ("fedcos-table2", "total/fedopt-fedcos"): Number(80.76),
    ("pa3fed-table2", "cifar10-0.1/vrlsgd-pa3fed"): Number(57.75),
    ("pa3fed-table2", "fashion-mnist-0.3/fedmut"): Number(78.12),
    ("fedawa-table1", "tiny-imagenet-0.5/fedawa-l"): Number(34.86),
    ("fedawa-table1", "cifar10-100/fedadam"): Number(70.40),
    ("fedawa-table4", "cifar100-0.1/fedawa-cos"): Number(36.74),
    ("fedlaw-table1", "resnet8-alpha-1/gamma-095"): Number(77.00),
    ("fedlaw-table1", "alexnet-alpha-100/gamma-097"): Number(75.54),
    ("fedlaw-table2", "noniid-5e-4/gamma"): Number(0.9529),
    ("fedlaw-table2", "iid-1e-3/fedavg"): Number(68.66),
    ("fedlaw-table4", "noniid-100/feddf"): Number(22.51),
    ("fedlaw-table5", "wrn56-4/fedlaw-swa"): Number(80.70),
    ("fedlaw-table6", "noniid-tail-sampled/fedlaw"): Number(70.42),
    ("fedlaw-table7", "iid/feddf"): Number(39.03),
    ("fedlaw-table8", "corrupt-75/fedlaw-swa"): Number(65.51),
    ("fedlaw-table9", "resnet8-alpha-0.1/gamma-090"): Number(39.85),
    ("fedlaw-table10", "noniid-0.5/gamma"): Number(0.991),
    ("fedlaw-table11", "both/heterogeneity"): Number(0.35),
    ("fedawa-table2", "seconds/fedlaw"): Number(10.11),
    ("fedawa-table5", "cifar100-0.1/fedawa-euc"): Number(37.20),
    ("fedawa-table6", "cifar100-lt/clip2fl"): Number(48.20),
    ("fedawa-table7", "synth/fpl-fedawa"): Number(70.40),
    ("fedawa-table7", "average/fedproto"): Number(81.16),
    ("fedcos-table3", "90/fedprox"): Number(50.54),
    ("fedcos-table4", "fashion-mnist-10-last/fedcos-005"): Number(85.22),
    ("fedcos-table4", "cifar10-20-best/fedcos-002"): Number(57.97),
    ("fedcos-table5", "share-20/fedcos-001"): Number(42.96),
    ("pa3fed-table1", "range/pa3fed"): Number(0.189),
    ("pa3fed-table2", "cifar100-0.3/fednova-pa3fed"): Number(42.08),
}

ALEXNET = "another network: alexnet_cifar (paper: AlexNet of a form that the paper does not give)"
RESNET18 = "another network: simple_cnn (paper: resnet18:max_pool=true)"


@pytest.mark.parametrize(("table", "cell"), SOME)
def test_numbers_are_the_papers(table, cell):
    found = {c.name: c.number for c in read_table(table).cells}
    assert found[cell] == SOME[table, cell]


@pytest.mark.parametrize("table", list(tables()), ids=names())
def test_every_cell_is_a_run_that_would_start(table):
    assert len(table.seeds) == 3
    assert len({cell.name for cell in table.cells}) == len(table.cells)
    for cell in table.cells:
        config = cell.config(table.seeds[0])
        assert config.rounds == table.rounds
        assert (config.target is not None) == (cell.metric == "rounds")
        has_number = cell.number.value is not None or cell.number.best is not None
        assert has_number != cell.is_control
        assert cell.paper_models  # what the number is of is on record
        assert cell.paper_data


@pytest.mark.parametrize("table", list(tables()), ids=names())
def test_rows_of_a_column_differ_only_in_their_algorithm(table):
    """The same data, model and length for every algorithm; FedProx's authors train it without momentum."""
    for column in {cell.column for cell in table.cells}:
        plain = [dict(cell.raw) for cell in table.cells if cell.column == column]
        shared = [
            {key: raw.get(key) for key in ("data", "model", "rounds", "target")} for raw in plain
        ]
        assert all(one == shared[0] for one in shared)


def test_cells_are_chosen_by_pattern():
    table = read_table("fedadp-table1")
    assert [cell.name for cell in table.select_cells(["mnist-1class-5iid/*"]).cells] == [
        "mnist-1class-5iid/fedavg",
        "mnist-1class-5iid/uniform",
        "mnist-1class-5iid/fedadp",
    ]
    assert table.select_cells([]).cells == table.cells
    with pytest.raises(
        SteelyardError,
        match="--cells 'svhn/\\*': fedadp-table1 has no such cell; it has mnist-1class",
    ):
        table.select_cells(["svhn/*"])


def test_settings_go_on_top_of_every_cell_and_leave_the_table_alone():
    table = read_table("fedadp-table1")
    changed = table.apply_settings(["rounds=5", "local.lr=0.5"])
    assert {cell.config(1).rounds for cell in changed.cells} == {5}
    assert {cell.config(1).local.lr for cell in changed.cells} == {0.5}
    assert {cell.config(1).rounds for cell in table.cells} == {300}


def test_the_paper_has_another_network_for_tiny_imagenet():
    (network,) = [
        text for text in read_table("fedawa-table1").deviations if "Another network" in text
    ]
    for cells, setting in (
        ("cifar*", "model=resnet20"),
        ("tiny-*", "model=resnet18:max_pool=true"),
    ):
        assert f"--cells '{cells}' --set {setting}" in network
        for cell in (
            read_table("fedawa-table1").select_cells([cells]).apply_settings([setting]).cells
        ):
            assert cell.config(8).model == setting.removeprefix("model=")
    assert "parameters" not in network


def a_table(**changes):
    """The plain data of a small table."""
    raw = {
        "title": "t",
        "paper": "p",
        "metric": "best",
        "seeds": [1],
        "base": {"rounds": 2, "model": "mlp", "data": {"name": "mnist"}},
        "row": [{"id": "a", "label": "A", "set": {"weighting": "fedavg"}}],
        "column": [{"id": "x", "label": "X", "set": {}}],
        "numbers": {"a": [1.0]},
    }
    return {**raw, **changes}


# Tables without a control: FedCos's do not compare weights, one is about time, one about weights.
WITHOUT_CONTROL = {
    *(name for name in names() if name.startswith("fedcos")),
    "fedawa-table2",
    "fedlaw-table11",
}


@pytest.mark.parametrize("table", [name for name in names() if name not in WITHOUT_CONTROL])
def test_every_table_that_compares_weights_has_uniform_weights_as_a_control(table):
    """One control per column, which differs from FedAvg (or another row) in the weights alone."""
    cells = {cell.name: cell for cell in read_table(table).cells}
    columns = {name.partition("/")[0] for name in cells}
    controls = {name for name, cell in cells.items() if cell.is_control}
    assert controls == {f"{column}/uniform" for column in columns}
    rows = {name.partition("/")[2] for name in cells}
    plain = next(row for row in ("fedavg", "gamma-100", "fedawa-cos") if row in rows)
    for name in controls:
        cell, beside = cells[name], cells[f"{name.partition('/')[0]}/{plain}"]
        assert cell.row == "Uniform (control)"
        assert cell.paper_text == ""
        assert {**cell.raw, "weighting": beside.raw["weighting"]} == beside.raw
        assert cell.raw["weighting"] == "uniform"
        assert plain == "fedawa-cos" or beside.raw["weighting"] == "fedavg"


@pytest.mark.parametrize("table", sorted(WITHOUT_CONTROL))
def test_other_tables_have_no_control(table):
    assert not any(cell.is_control for cell in read_table(table).cells)


def test_clients_of_equal_size_have_uniform_weights_in_fedcos_tables():
    for number in (1, 2, 3, 4):
        table = read_table(f"fedcos-table{number}")
        assert {cell.raw["weighting"] for cell in table.cells} == {"uniform"}
    roles = read_table("fedcos-table5")  # Eq. (3): roles differ in size
    assert {cell.raw["weighting"] for cell in roles.cells} == {"fedavg"}


def test_a_control_has_no_numbers():
    control = {"id": "u", "label": "U", "control": True, "set": {"weighting": "uniform"}}
    rows = [*a_table()["row"], control]
    (_, cell) = parse_table("t", a_table(row=rows)).cells
    assert (cell.is_control, cell.row, str(cell.number), cell.paper_text) == (
        True,
        "U (control)",
        "-",
        "",
    )
    with pytest.raises(SteelyardError, match="row 'u' is a control and has numbers"):
        parse_table("t", a_table(row=rows, numbers={"a": [1.0], "u": [2.0]}))


@pytest.mark.parametrize("row", ["feddf", "fedbe", "server-ft"])
def test_baselines_on_proxy_data_train_at_the_clients_learning_rate(row):
    """The authors build the server's SGD by the line that builds the clients': 0.01 and 5e-5 for CIFAR-100."""
    cells = read_table("fedlaw-table3").select_cells([f"*/{row}"]).cells
    assert len(cells) == 12
    for cell in cells:
        refiner, local = parse_refiner(cell.raw["refine"]), cell.config(8).local
        assert refiner.preset == "official"
        assert (refiner.lr, refiner.weight_decay) == (local.lr, local.weight_decay)
        assert (refiner.optimizer, refiner.momentum, refiner.persistent) == ("sgd", 0.9, True)
        assert refiner.epochs == (2 if row == "server-ft" else 100)
    rates = {(cell.config(8).local.lr, cell.config(8).local.weight_decay) for cell in cells}
    assert rates == {(0.08, 5e-4), (0.01, 5e-5)}


@pytest.mark.parametrize(
    ("table", "settings", "said"),
    [
        (
            "fedawa-table1",
            [],
            {
                "another network: simple_cnn (paper: resnet20)",
                RESNET18,
                "another network: simple_cnn (paper: ResNet20 and ResNet18, by data set)",
            },
        ),
        (
            "fedawa-table1",
            ["model=resnet20"],
            {
                None,
                "another network: resnet20 (paper: resnet18:max_pool=true)",
                "another network: resnet20 (paper: ResNet20 and ResNet18, by data set)",
            },
        ),
        ("fedawa-table4", [], {"another network: simple_cnn (paper: resnet20)"}),
        ("fedawa-table4", ["model=resnet:depth=20"], {None}),
        ("fedadp-table1", [], {None}),
        ("fedadp-table1", ["model=mcmahan_cnn"], {None}),  # the paper's other description
        (
            "fedadp-table1",
            ["model=mlp"],
            {"another network: mlp (paper: mcmahan_cnn:padding=false)"},
        ),
        ("fedlaw-table1", [], {None, ALEXNET}),
        ("fedlaw-table2", ["model=resnet20"], {"another network: resnet20 (paper: simple_cnn)"}),
        ("fedlaw-table2", ["data.name=mnist"], {"another data set: mnist (paper: cifar10)"}),
        ("fedlaw-table2", ["data.name=cifar10:scale=standard", "rounds=3"], {None}),
        ("fedlaw-table7", [], {"another network: resnet20 (paper: not named in the paper)"}),
    ],
)
def test_another_network_or_data_set_than_the_papers_is_told(table, settings, said):
    assert {cell.difference for cell in read_table(table).apply_settings(settings).cells} == said


def test_who_says_how_many_rounds():
    sources = {table.name: table.rounds_source for table in tables()}
    assert {name for name, source in sources.items() if source == "the authors' code"} == {
        "fedawa-table1",
        "fedawa-table3",
        "fedawa-table4",
        "fedawa-table5",
        "fedawa-table8",
    }
    assert sources["fedlaw-table3"] == "the paper"


@pytest.mark.parametrize(
    "table",
    ["fedawa-table1", "fedawa-table3", "fedawa-table4", "fedawa-table5", "fedawa-table8"],
)
def test_fedawas_deviations_say_whose_rounds_and_seeds(table):
    said = " ".join(read_table(table).deviations)
    assert "300 rounds are the default of the authors' code" in said
    assert "seeds 8, 9, 10 are FedLAW's" in said


def test_fedawas_table_says_which_feddyn_and_how_much_proxy_data():
    said = " ".join(read_table("fedawa-table1").deviations)
    assert "FedDyn in its own authors' form" in said
    assert "200 proxy images" in said
    for cell in read_table("fedawa-table1").select_cells(["*/fedlaw"]).cells:
        classes = {"cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}[cell.paper_data]
        assert cell.raw["proxy"]["per_class"] * classes == 200


@pytest.mark.parametrize("table", list(tables()), ids=names())
def test_commands_in_deviations_can_be_given(table):
    for text in table.deviations:
        for command in re.findall(r"`((?:--cells|--set) [^`]*)`", text):
            words = shlex.split(command)
            pairs = list(zip(words[::2], words[1::2], strict=True))
            cells = [value for option, value in pairs if option == "--cells"]
            settings = [value for option, value in pairs if option == "--set"]
            assert len(cells) + len(settings) == len(pairs)
            for cell in table.select_cells(cells).apply_settings(settings).cells:
                cell.config(table.seeds[0])


def test_all_tables_of_the_five_papers_are_here():
    counts = Counter(name.partition("-")[0] for name in names())
    assert counts == {"fedlaw": 11, "fedawa": 8, "fedcos": 5, "pa3fed": 2, "fedadp": 1}
    assert counts.total() == 27


@pytest.mark.parametrize("name", ["fedawa-table1", "fedawa-table4", "fedawa-table7"])
def test_printed_averages_are_those_of_the_columns(name):
    table = read_table(name)
    for row in table.lines:
        cells = table.select_cells([f"*/{row}"]).cells
        *values, average = [cell.number.value for cell in cells]
        assert cells[-1].column == "average"
        assert average == pytest.approx(sum(values) / len(values), abs=0.011), (row, values)


def test_what_needs_pretrained_weights_says_so():
    (reason,) = {
        cell.impossible for cell in read_table("fedawa-table6").cells if "CLIP2FL" in cell.row
    }
    assert "pretrained weights" in reason
    impossible = [cell.name for table in tables() for cell in table.cells if cell.impossible]
    assert impossible == ["cifar10-lt/clip2fl", "cifar100-lt/clip2fl"]


def test_an_unknown_table_is_answered_with_the_nearest():
    with pytest.raises(
        SteelyardError, match="unknown table 'fedadp-tabel1': did you mean 'fedadp-table1'"
    ):
        read_table("fedadp-tabel1")


def test_a_row_with_too_few_numbers_is_refused():
    raw = {
        "title": "t",
        "paper": "p",
        "metric": "best",
        "seeds": [1],
        "base": {"rounds": 2},
        "row": [{"id": "a", "label": "A", "set": {}}],
        "column": [{"id": "x", "label": "X", "set": {}}, {"id": "y", "label": "Y", "set": {}}],
        "numbers": {"a": [1.0]},
    }
    with pytest.raises(SteelyardError, match="row 'a' has 1 numbers for 2 columns"):
        parse_table("t", raw)


def test_the_second_configuration_wins_section_by_section():
    low = {"a": 1, "local": {"lr": 1.0, "epochs": 2}}
    assert merge_sections(low, {"local": {"lr": 2.0}}) == {
        "a": 1,
        "local": {"lr": 2.0, "epochs": 2},
    }
    assert low["local"]["lr"] == 1.0


def test_costs_grow_with_rounds_and_with_the_network():
    table = read_table("fedlaw-table1").select_cells(["alpha-1/gamma-100"])
    small = cost.estimate_seconds(table.cells[0].config(8))
    longer = cost.estimate_seconds(table.apply_settings(["rounds=400"]).cells[0].config(8))
    deeper = cost.estimate_seconds(table.apply_settings(["model=resnet20"]).cells[0].config(8))
    assert longer == pytest.approx(2 * small)
    assert deeper == pytest.approx(small * 81.6 / 9.1, rel=0.05)  # operations per sample


def test_cost_counts_what_clients_train_on():
    """10 nodes x 600 samples x 3 passes of 8.5 million operations, and 10 000 test images."""
    cell = (
        read_table("fedadp-table1")
        .select_cells(["mnist-1class-5iid/fedavg"])
        .apply_settings(["rounds=1"])
        .cells[0]
    )
    operations = 8.534e6 * (3 * 6000 + 10_000)
    cores = __import__("os").sched_getaffinity(0)
    assert cost.estimate_seconds(cell.config(1)) == pytest.approx(
        operations / (cost.measure_speed() * cost.EFFICIENCY * len(cores)), rel=0.01
    )


def test_cost_counts_passes_over_proxy_data():
    """FedLAW's 100 passes over 100 samples, on one core, beside training on 42 000 samples three times."""
    plain, learned = (
        cost.estimate_seconds(
            read_table("fedlaw-table3")
            .select_cells([f"fashion-mnist-0.1-mlp/{row}"])
            .cells[0]
            .config(8)
        )
        for row in ("fedavg", "fedlaw")
    )
    cores = len(__import__("os").sched_getaffinity(0))
    work = 3 * 3 * 42_000 + 10_000
    assert learned / plain == pytest.approx((work + 3 * cores * 100 * 100) / work, rel=0.01)


def test_a_row_may_differ_more_in_some_columns():
    table = {cell.name: cell.raw for cell in read_table("fedlaw-table3").cells}
    assert table["cifar10-0.1-cnn/fedlaw"]["weighting"] == "fedlaw:lr=0.01"
    assert table["cifar100-0.1-cnn/fedlaw"]["weighting"] == "fedlaw:lr=0.005"


def test_cost_counts_what_torch_does_not():
    """The weights of an LSTM at each of 80 characters; a step on a table of 20 000 x 64 numbers."""
    lstm = cost._count_operations("char_lstm", (80,), 80)
    weights = 4 * 100 * (8 + 100 + 2) + 4 * 100 * (100 + 100 + 2)
    assert lstm == pytest.approx(2 * (80 * weights + 100 * 80))
    assert cost._count_table_operations("text_mean", (64,), 4) == cost.TABLE_COST * 20_000 * 64
    assert cost._count_table_operations("simple_cnn", (3, 32, 32), 10) == 0.0


def test_sizes_depend_on_the_options_of_a_data_set():
    digits = cost.find_size("digits-5:domains=[mnist,usps],samples=600")
    assert digits == (600 + 600, 10_000 + 2_007, (3, 32, 32), 10)
    assert cost.find_size("shakespeare:stride=1").train == 413_684
    assert cost.find_size("no-such-data") is None


@pytest.mark.parametrize("table", list(tables()), ids=names())
def test_every_run_has_an_estimate(table):
    for run in table.runs:
        assert cost.find_size(run.config(1).data.name) is not None


def test_an_unknown_data_set_has_no_estimate():
    assert (
        cost.estimate_seconds(
            read_table("fedadp-table1").apply_settings(["data.name=svhn"]).cells[0].config(1)
        )
        is None
    )
    assert cost.format_duration(None) == "?"


@pytest.mark.parametrize(
    ("value", "words"),
    [(40, "40 s"), (720, "12 min"), (12_600, "3.5 h"), (345_600, "4 days"), (5399, "90 min")],
)
def test_durations_in_words(value, words):
    assert cost.format_duration(value) == words


def test_every_pa3fed_row_says_which_reading_it_runs():
    """The default of the rule may change; what a table's row ran may not."""
    rows = [
        str(cell.raw["weighting"])
        for cell in read_table("pa3fed-table2").cells
        if "PA3Fed" in cell.row
    ]
    assert len(rows) == 9 * 9
    assert all("pa3fed:" in row and "preset=" in row for row in rows)


def test_fedcos_table_2_ends_with_the_500th_epoch():
    table = read_table("fedcos-table2")
    batches = -(-(60_000 // 7) // 128)
    assert table.rounds == -(-500 * batches // 400) == 84
    assert {cell.config(1).local.steps for cell in table.cells} == {400}


def test_fedadps_images_are_standardised():
    """In [0, 1], 80 % on Fashion-MNIST is out of reach; MNIST is standardised by default."""
    found = {cell.config(1).data.name for cell in read_table("fedadp-table1").cells}
    assert found == {"mnist", "fashion-mnist:scale=standard"}
