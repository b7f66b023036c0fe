"""A SuperLink and three SuperNodes on loopback, TLS and node authentication on, run examples/flower as it stands."""

import re

import pytest

pytest.importorskip("flwr", minversion="1.41", reason="the command line of Flower 1.41")

from tests.flower.certificates import make_certificates, make_key
from tests.flower.deployment import LINUX, Federation
from tests.flower.example import APP, assert_as_simulated
from tests.waiting import PATIENCE

pytestmark = LINUX


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("flower"), nodes=3) as made:
        yield made
    assert made.killed == {}  # all ended when asked to


@pytest.mark.slow
def test_three_nodes_train_for_three_rounds(federation, tmp_path):
    federation.complete(federation.run(rounds=3, out=str(tmp_path / "run")))
    assert_as_simulated(tmp_path / "run", clients=3, rounds=3)
    assert federation.proxy.refused == []  # nodes need nothing but /v1/fleet/


def test_an_unregistered_node_is_refused(federation):
    make_key(federation.path / "node3.key")
    federation.node(3)
    assert federation.processes["node3"].wait(PATIENCE) != 0
    assert federation.node_id(3) is None
    assert "code: 2004" in federation.log("node3")


def test_a_node_refuses_a_server_of_another_authority(federation, tmp_path):
    make_certificates(tmp_path)
    federation.node(0, name="doubter", authority=tmp_path / "ca.crt")
    assert federation.processes["doubter"].wait(PATIENCE) != 0
    assert "CERTIFICATE_VERIFY_FAILED" in federation.log("doubter")


def test_the_readme_shows_the_options_that_are_tested():
    readme = (APP / "README.md").read_text()
    commands = re.findall(r"^flower-super(?:link|node) (?:.*\\\n)*.*$", readme, flags=re.MULTILINE)
    options = {option for command in commands for option in re.findall(r"--[a-z-]+", command)}
    harness = (APP.parent.parent / "tests" / "flower" / "deployment.py").read_text()
    assert len(commands) == 3
    assert [option for option in sorted(options) if f'"{option}"' not in harness] == []
