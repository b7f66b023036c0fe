"""Made-up runs, with which figures are drawn and judged without a simulation."""

import numpy as np

from steelyard.figures import Results
from steelyard.figures._style import use_style
from steelyard.runs import History

CLIENTS = 10


def fake_history(
    rounds=30,
    seed=0,
    *,
    speed=0.1,
    level=0.9,
    jitter=0.0,
    tables=None,
    **numbers,
):
    """Return a history whose accuracy rises to a level, and which has the other numbers by round.

    Args:
        rounds: the number of rounds.
        seed: shifts the curve a little, so that seeds differ.
        speed: how fast accuracy rises.
        level: where it ends.
        jitter: accuracy goes up and down by this much in the second half.
        tables: numbers by client: functions of round and client.
        numbers: further numbers of the record: functions of the round, or constants.
    """
    records = []
    for number in range(1, rounds + 1):
        accuracy = (level + 0.001 * seed) * (1 - np.exp(-speed * number))
        if number > rounds // 2:
            accuracy -= jitter * (number % 2)
        record = {"round": number, "accuracy": accuracy, "loss": 1 - accuracy, "lr": 0.1}
        for key, value in numbers.items():
            record[key] = value(number) if callable(value) else value
        for key, value in (tables or {}).items():
            row = {str(client): value(number, client) for client in range(CLIENTS)}
            table, _, metric = key.partition(".")
            if metric:
                record.setdefault(table, {})[metric] = row
            else:
                record[table] = row
        records.append(record)
    return History("fake", records)


def fake_results(scale, make_history):
    """Return results of a scale in which every run is made up.

    Args:
        scale: the scale of a figure.
        make_history: returns the history of a key and a seed.
    """
    histories = {}
    for key in scale.runs:
        histories[key] = [make_history(key, seed) for seed in range(3)]
    return Results(scale, (0, 1, 2), histories)


def draw_and_judge(figure, scale, make_history, path):
    """Return the drawing and the verdict of a figure for made-up runs."""
    results = fake_results(scale, make_history)
    measurements = figure.measure(results, path)
    results = Results(scale, results.seeds, results.histories, measurements)
    with use_style():
        return figure.draw(results), figure.judge(results)
