"""Tables as golden strings, and names that mean harm."""

import csv
import io

import pytest

from steelyard.experiments._comparisons import compare
from steelyard.experiments._run_groups import Run
from steelyard.experiments._tables import (
    csv_lines,
    latex_text,
    long_head,
    long_row,
    markdown_text,
    overview,
    pivot,
)
from steelyard.experiments.scores import SCORES
from tests.experiments.test_scores import history

BEST, ROUNDS = SCORES["best"], SCORES["rounds"]


def run(weighting, partition, seed, *accuracies):
    return Run(
        None,
        history(*accuracies),
        (("weighting", weighting),),
        (("data.partition", partition),),
        str(seed),
    )


RUNS = [
    run("fedavg", "iid", 1, 0.5, 0.90),
    run("fedavg", "iid", 2, 0.6, 0.92),
    run("fedavg", "dirichlet:0.1", 1, 0.5, 0.60),
    run("fedavg", "dirichlet:0.1", 2, 0.5, 0.65),
    run("fed_awa", "iid", 1, 0.7, 0.91),
    run("fed_awa", "iid", 2, 0.7, 0.90),
    run("fed_awa", "dirichlet:0.1", 1, 0.71, 0.70),
]  # fmt: skip


def test_markdown():
    table = pivot(RUNS, BEST)
    assert table.title == "accuracy of the best round, in %; mean ± deviation over 2 seeds"
    assert table.markdown() == (
        "| algorithm | iid | dirichlet:0.1 |\n"
        "| --- | ---: | ---: |\n"
        "| fedavg | **91.00 ± 1.41** | 62.50 ± 3.54 |\n"
        "| fed\\_awa | 90.50 ± 0.71 | 71.00 (1/2) |\n"
    )


def test_latex():
    assert pivot(RUNS, BEST).latex() == (
        "% accuracy of the best round, in %; mean ± deviation over 2 seeds\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "algorithm & iid & dirichlet:0.1 \\\\\n"
        "\\midrule\n"
        "fedavg & \\textbf{91.00 $\\pm$ 1.41} & 62.50 $\\pm$ 3.54 \\\\\n"
        "fed\\_awa & 90.50 $\\pm$ 0.71 & 71.00 (1/2) \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


def test_rounds_to_a_target_less_is_better_and_never_is_said():
    table = pivot(RUNS, ROUNDS, 0.7)
    assert table.title == "rounds to the target accuracy 0.7; mean ± deviation over 2 seeds"
    assert table.csv() == (
        "algorithm,iid,dirichlet:0.1\n"
        "fedavg,2.0 ± 0.0,n/a\n"
        "fed_awa,1.0 ± 0.0,1.0 (1/2)\n"
    )  # fmt: skip
    assert [cells[0].best for _, cells in table.rows] == [False, True]
    assert [cells[1].best for _, cells in table.rows] == [False, False]


def test_equals_are_all_the_best_and_one_alone_is_none():
    table = pivot(
        [run("a", "iid", 1, 0.5), run("b", "iid", 1, 0.500001), run("c", "iid", 1, 0.4)], BEST
    )
    assert [cells[0].best for _, cells in table.rows] == [True, True, False]
    assert table.title.endswith("; one seed")
    assert not pivot([run("a", "iid", 1, 0.5)], BEST).rows[0][1][0].best


def test_a_cell_without_runs_is_empty():
    table = pivot([run("a", "iid", 1, 0.5), run("b", "shards", 1, 0.5)], BEST)
    assert table.csv() == "algorithm,iid,shards\na,50.00,\nb,,50.00\n"


def test_seeds_that_failed_are_counted():
    assert pivot([run("a", "iid", 1, 0.5)], BEST, count=3).rows[0][1][0].__str__() == "50.00 (1/3)"


def test_overview_has_every_measure_and_what_is_saved():
    table = overview(RUNS, target=0.7)
    assert table.heads == (*SCORES, "saved")
    cells = dict(table.rows)
    assert [name for name, _ in table.rows][:2] == ["fedavg, iid", "fed_awa, iid"]
    assert (
        str(cells["fed_awa, iid"][-1]) == "0.00 (1/2)"
    )  # with seed 2 it does not reach FedAvg's 0.92
    assert str(cells["fed_awa, dirichlet:0.1"][-1]) == "50.00"
    assert str(cells["fedavg, iid"][-1]) == "0.00 ± 0.00"
    assert "rounds" not in overview(RUNS).heads


def test_the_long_form_has_a_row_per_run():
    axes = ("weighting", "data.partition", "seed")
    text = csv_lines([long_head(axes, 0.7), *(long_row("r", axes, one, 0.7) for one in RUNS)])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(RUNS)
    assert rows[4]["weighting"] == "fed_awa"
    assert rows[4]["seed"] == "1"
    assert float(rows[4]["last10"]) == pytest.approx(0.805)
    assert rows[4]["rounds"] == "1"
    assert rows[2]["rounds"] == ""
    assert rows[2]["rounds_run"] == "2"
    assert "rounds" not in long_head(axes, None)


@pytest.mark.parametrize(
    ("name", "markdown", "latex", "plain"),
    [
        ("a|b", "a\\|b", "a\\textbar{}b", "a|b\n"),
        ("50 % & $x_1$", "50 % & $x\\_1$", "50 \\% \\& \\$x\\_1\\$", "50 % & $x_1$\n"),
        ("=cmd('x')", "=cmd('x')", "=cmd('x')", "'=cmd('x')\n"),
        ("+1", "+1", "+1", "'+1\n"),
        ("-1", "-1", "-1", "'-1\n"),
        ("@SUM(A1)", "@SUM(A1)", "@SUM(A1)", "'@SUM(A1)\n"),
        ("a,b", "a,b", "a,b", '"a,b"\n'),
        ("a\nb", "a b", "a b", '"a\nb"\n'),
        ("\\input{/x}~^", "\\\\input{/x}\\~^", "\\textbackslash{}input\\{/x\\}\\textasciitilde{}\\textasciicircum{}",
         "\\input{/x}~^\n"),
        ("<b>*[x](y)`", "\\<b\\>\\*\\[x\\](y)\\`", "\\textless{}b\\textgreater{}*[x](y)`", "<b>*[x](y)`\n"),
    ],
)  # fmt: skip
def test_names_stay_names(name, markdown, latex, plain):
    assert markdown_text(name) == markdown
    assert latex_text(name) == latex
    assert csv_lines([[name]]) == plain


def test_numbers_are_no_formulas():
    assert csv_lines([["x", -0.5, None, 3]]) == "x,-0.5,,3\n"


def test_comparisons_setting_by_setting():
    made = compare(RUNS, BEST)
    assert [(one.setting, one.difference.first, one.difference.second) for one in made] == [
        ("iid", "fed_awa", "fedavg"),
        ("dirichlet:0.1", "fed_awa", "fedavg"),
    ]
    assert made[0].difference.by_seed == pytest.approx({"1": 0.01, "2": -0.02})
    assert made[1].sentence(BEST) == (
        "dirichlet:0.1: fed_awa is 11.00 points above fedavg with seed 1: one seed says nothing "
        "about noise. "
        "Left out: seed 2 (only of fedavg)."
    )
    assert made[0].communication() == (
        "iid: fedavg takes 1.00 times as many rounds to its final accuracy as fed_awa "
        "(1 seed; with 1 more, fed_awa never gets there)."
    )
    assert made[1].communication() == (
        "dirichlet:0.1: fedavg takes 2.00 times as many rounds to its final accuracy as fed_awa (1 "
        "seed)."
    )
    other = compare(RUNS, BEST, against="fed_awa")
    assert other[0].difference.by_seed == pytest.approx({"1": -0.01, "2": 0.02})
    assert other[0].communication().startswith("iid: fed_awa takes")
    with pytest.raises(
        ValueError, match="against 'x': no such algorithm here: use one of fedavg; fed_awa"
    ):
        compare(RUNS, BEST, against="x")
