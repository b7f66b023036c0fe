"""Alerts: the grammar of conditions, and when they are raised."""

import json
import threading

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
from steelyard.report._alerts import Alerts, describe_unknown_key, parse_condition, read_values
from steelyard.report._watch import Watch
from steelyard.runs._directory import ROUNDS
from tests.report.runs import HOSTILE, record, write_run


@pytest.mark.parametrize(
    ("text", "key", "sign", "limit", "rounds"),
    [
        ("weight>0.3 for 5", "weight", ">", 0.3, 5),
        ("mean_cosine<0 for 3", "mean_cosine", "<", 0.0, 3),
        ("  accuracy <= 1e-1  ", "accuracy", "<=", 0.1, 1),
        ("cosines>=-.5 for 1 round", "cosines", ">=", -0.5, 1),
        ("loss>+2.5E+1 for 10 rounds", "loss", ">", 25.0, 10),
        ("my_own.metric<3", "my_own.metric", "<", 3.0, 1),
        ("moved>2", "mean_update_norm", ">", 2.0, 1),  # the key of an older version
    ],
)
def test_conditions_are_parsed(text, key, sign, limit, rounds):
    condition = parse_condition(text)
    assert (condition.key, condition.sign, condition.limit, condition.rounds) == (
        key,
        sign,
        limit,
        rounds,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a condition"),
        ("weight", "not a condition"),
        ("weight=0.3", "not a condition"),
        ("weight>0.3 5", "not a condition"),
        ("weight>0.3 for", "not a condition"),
        ("0.3<weight", "not a condition"),
        ("weight>>0.3", "not a condition"),
        ("weight>much", "'much' is not a number"),
        ("weight>nan", "'nan' is not a number"),
        ("weight>inf", "'inf' is not a number"),
        ("weight>0.3 for 0", "'for 0'"),
        ("weight>0.3 for five", "'for five'"),
        ("void>1", "'void' is recorded as text"),
        ("critical>0", "'critical' is recorded as true or false"),
        ("x" * 9000, "not a condition"),
        ("\x1b[31m>1", "not a condition"),
    ],
)
def test_mistakes_are_refused_with_the_value(text, reason):
    with pytest.raises(SteelyardError, match=reason) as caught:
        parse_condition(text)
    assert len(str(caught.value)) < 400


def test_a_key_that_is_not_recorded_is_noted():
    assert describe_unknown_key(parse_condition("weight>1")) is None
    assert describe_unknown_key(parse_condition("mean_cosines<0")) is None  # computed when read
    assert "did you mean 'mean_cosine'" in describe_unknown_key(parse_condition("mean_cosin<0"))
    assert "does not record 'zzz'" in describe_unknown_key(parse_condition("zzz<0"))


def test_values_of_a_record():
    seen = {"weights": {"a": 1.0, "b": -3.0}, "loss": 2, "void": None, "cosines": {"a": None}}
    assert read_values(seen, "weight") == {None: 0.75}
    assert read_values(seen, "weights") == {"a": 1.0, "b": -3.0}
    assert read_values(seen, "loss") == {None: 2.0}
    assert read_values(seen, "cosines") == {}
    assert read_values(seen, "accuracy") == {}
    assert read_values({"weights": {}}, "weight") == {}


def write_records(path, records):
    """Appends records to the log of a run directory."""
    path.mkdir(parents=True, exist_ok=True)
    with open(path / ROUNDS, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in records)


def list_alerts(alerts):
    return [(alert.round, alert.name, alert.value) for alert in alerts.check()]


def test_an_alert_is_raised_once_until_the_condition_was_not_satisfied(tmp_path):
    losses = [1, 5, 5, 5, 5, None, 5, 1, 5, 5, 5]
    records = [{"round": k, "loss": loss} for k, loss in enumerate(losses, start=1)]
    alerts = Alerts([tmp_path], [parse_condition("loss>2 for 3")])
    write_records(tmp_path / "run", records[:3])
    assert list_alerts(alerts) == []
    write_records(tmp_path / "run", records[3:])
    assert list_alerts(alerts) == [(4, None, 5.0), (11, None, 5.0)]
    assert list_alerts(alerts) == []


def test_clients_are_counted_one_by_one_and_named(tmp_path):
    rows = [
        {"round": 1, "cosines": {"a": -1, "b": -1}},
        {"round": 2, "cosines": {"b": -1, "c": -1}},  # a does not take part
        {"round": 3, "cosines": {"a": -1, "b": 1}},
    ]
    write_records(tmp_path, rows)
    alerts = Alerts([tmp_path], [parse_condition("cosines<0 for 2")])
    assert list_alerts(alerts) == [(2, "b", -1.0), (3, "a", -1.0)]


def test_the_largest_share_names_its_client(tmp_path):
    write_records(tmp_path, [{"round": 1, "weights": {"a": 0.2, HOSTILE[0]: 0.8}}])
    (alert,) = Alerts([tmp_path], [parse_condition("weight>0.3")]).check()
    assert alert.name == HOSTILE[0]
    assert str(alert).endswith(f"round 1: weight>0.3: 0.8 (client {HOSTILE[0]})")


def test_runs_that_start_later_are_checked_and_half_lines_wait(tmp_path):
    alerts = Alerts([tmp_path], [parse_condition("loss>2")])
    assert list_alerts(alerts) == []
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / ROUNDS).write_text('{"round": 1, "lo')
    assert list_alerts(alerts) == []
    (tmp_path / "late" / ROUNDS).write_text('{"round": 1, "loss": 3}\n')
    assert list_alerts(alerts) == [(1, None, 3.0)]


def test_a_resumed_run_does_not_repeat_its_alerts(tmp_path):
    rows = [{"round": k, "loss": 3} for k in range(1, 6)]
    write_records(tmp_path, rows)
    alerts = Alerts([tmp_path], [parse_condition("loss>2 for 2"), parse_condition("loss>2 for 6")])
    assert list_alerts(alerts) == [(2, None, 3.0)]
    (tmp_path / ROUNDS).write_text("")  # resumed from round 2, in a file that is cut
    write_records(tmp_path, [*rows[:2], {**rows[2], "timings": {"total": 1}}])
    assert list_alerts(alerts) == []
    write_records(tmp_path, [{"round": k, "loss": 3} for k in range(4, 7)])
    assert list_alerts(alerts) == [(6, None, 3.0)]


def test_the_server_reports_alerts_and_may_end_with_one(tmp_path):
    run = write_run(tmp_path / "run", done=3)
    raised = []
    server = Watch([tmp_path], 0, None, [parse_condition("loss>100")], raised.append)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        line = record(4, ("a", "b"), np.random.default_rng(0)) | {"loss": 1000.0}
        write_records(run, [line])
        for _ in range(600):
            if raised:
                break
            thread.join(0.05)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [(alert.round, alert.value) for alert in raised] == [(4, 1000.0)]
