"""A Flower federation of real processes on loopback. All that depends on Flower's version and command line is here.

Flags are those of flwr 1.41: one port for all of the SuperLink. Every process has a FLWR_HOME of
its own below `path`, as on machines of their own.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from tests.flower.certificates import make_certificates, make_key
from tests.flower.example import APP
from tests.flower.proxy import Proxy
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
LINUX = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found in /proc"
)


class Federation:
    """A SuperLink and SuperNodes with TLS, node authentication and a proxy between; or a SuperLink for simulation."""

    def __init__(self, path, nodes=3, simulation=False):
        self.path, self.nodes, self.simulation = Path(path), nodes, simulation
        self.processes, self.sessions = {}, {}
        self.port, self.proxy, self.temporary, self.killed = free_port(), None, None, {}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            error.add_note(self.logs())
        self.stop()

    def start(self):
        """Returns when the SuperLink answers and every node is known to it."""
        self.path.mkdir(parents=True, exist_ok=True)
        # Ray's sockets have long names, and a socket's path may have 107 bytes at most.
        self.temporary = Path(tempfile.mkdtemp(prefix="sy", dir="/tmp"))
        connection = {"address": f"127.0.0.1:{self.port}"}
        if self.simulation:
            connection["insecure"] = True
            self.spawn("superlink", "flower-superlink", "--insecure", "--simulation", *self.address)
        else:
            make_certificates(self.path)
            connection["root-certificates"] = str(self.path / "ca.crt")
            self.spawn(
                "superlink",
                "flower-superlink",
                "--enable-supernode-auth",
                *("--ssl-ca-certfile", self.path / "ca.crt"),
                *(
                    "--ssl-certfile",
                    self.path / "server.crt",
                    "--ssl-keyfile",
                    self.path / "server.key",
                ),
                *self.address,
            )
        (self.path / "cli").mkdir()
        settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in connection.items())
        (self.path / "cli" / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\n{settings}\n'
        )
        self.until(self.healthy, "the SuperLink is healthy", "superlink")
        if not self.simulation:
            self.proxy = Proxy(self.port, self.path)
            for node in range(self.nodes):
                self.flwr("supernode", "register", make_key(self.path / f"node{node}.key"))
                self.node(node)
            for node in range(self.nodes):
                self.connected(node)

    @property
    def address(self):
        return "--host", "127.0.0.1", "--port", str(self.port)

    def healthy(self):
        """Whether the SuperLink answers, with a certificate of our own authority."""
        handlers = [urllib.request.ProxyHandler({})]
        if not self.simulation:
            context = ssl.create_default_context(cafile=self.path / "ca.crt")
            handlers.append(urllib.request.HTTPSHandler(context=context))
        url = f"{'http' if self.simulation else 'https'}://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.build_opener(*handlers).open(url, timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def node(self, number, partition=None, name=None, authority=None):
        """Starts a SuperNode with the key `node<number>.key`; `authority` is whom it trusts, if not our own."""
        part = number if partition is None else partition
        self.spawn(
            name or f"node{number}",
            "flower-supernode",
            *(
                "--superlink",
                f"127.0.0.1:{self.proxy.server_port}",
                "--root-certificates",
                authority or self.path / "ca.crt",
            ),
            *("--auth-supernode-private-key", self.path / f"node{number}.key"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"partition-id={part} num-partitions={self.nodes}"),
        )

    def connected(self, number):
        """Waits until the SuperLink knows a node."""
        self.until(
            lambda: self.node_id(number) is not None, f"node {number} is connected", f"node{number}"
        )

    def node_id(self, number):
        """The id Flower gave a node, from its log."""
        lines = [
            line for line in self.log(f"node{number}").splitlines() if "SuperNode ID: " in line
        ]
        return int(lines[-1].split("SuperNode ID: ")[1]) if lines else None

    def run(self, app=APP, **config):
        """Starts a run of an app; its id."""
        options = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        extra = ["--federation-config", f"num-supernodes={self.nodes}"] if self.simulation else []
        reply = self.flwr("run", app, *extra, *(["-c", options] if config else []))
        return reply["run-id"]

    def status(self, run):
        """E.g. `running` or `finished:completed`."""
        return self.flwr("ls", "--run-id", str(run))["runs"][0]["status"]

    def wait(self, run):
        """The status in which a run ended."""
        self.until(
            lambda: self.status(run).startswith("finished"), f"run {run} has ended", pause=3.0
        )
        return self.status(run)

    def complete(self, run):
        """Waits for a run, which is to end well; what its ServerApp said."""
        status, said = self.wait(run), self.command("log", str(run), "--show").stdout
        assert status == "finished:completed", f"run {run}: {status}:\n{said}\n{self.logs()}"
        return said

    def flwr(self, *arguments):
        """What a `flwr` command answers, as JSON; one that failed may exit with 0 as well."""
        made = self.command(*arguments, "--format", "json")
        reply = json.loads(made.stdout or "{}")
        assert reply.get("success"), f"flwr {arguments}: {made.stdout}{made.stderr}\n{self.logs()}"
        return reply

    def command(self, *arguments):
        return subprocess.run(
            [BIN / "flwr", *arguments],
            env=self.environment("cli"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def spawn(self, name, command, *arguments):
        with (self.path / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / command, *map(str, arguments)],
                cwd=self.path,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.sessions.setdefault(name, set()).add(self.processes[name].pid)

    def environment(self, name):
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "RAY_"))
        }
        return (
            kept
            | {
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # Flower starts its own programs by name
                "PYTHONPATH": str(ROOT),
                "FLWR_HOME": str(self.path / name),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TMPDIR": str(self.temporary),
                "OMP_NUM_THREADS": "1",
            }
        )

    def log(self, name):
        path = self.path / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self):
        """The ends of all logs, for a failure's message."""
        return "\n".join(
            f"--- {name}\n" + "\n".join(self.log(name).splitlines()[-40:])
            for name in self.processes
        )

    def until(self, true, what, name=None, pause=0.2):
        """Waits; fails if time is up or the process called `name` has ended."""

        def reached():
            ended = name is not None and self.processes[name].poll() is not None
            assert not ended, f"{name} ended before {what}:\n{self.log(name)}"
            return true()

        try:
            wait_until(reached, what, pause=pause)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.logs()}") from None

    def alive(self, name=None, program=""):
        """Living processes of this federation, or of its process `name`: command lines by pid.

        A process is ours if its session or its parent is. Sessions are kept in mind: Flower starts
        some processes in sessions of their own, and these may outlive the parent that shows whose
        they are.
        """
        table, commands = process_table(), {}
        for each in [name] if name else self.processes:
            ours, grown = None, set()
            while grown != ours:
                ours = grown
                grown = {
                    p
                    for p, (parent, session) in table.items()
                    if session in self.sessions[each] or parent in ours
                }
                self.sessions[each] = {table[pid][1] for pid in grown}
            commands |= {pid: command_line(pid) for pid in grown}
        return {pid: command for pid, command in commands.items() if program in command}

    def stop(self):
        """Ends everything, by asking first; `killed` is what did not listen. Fails if anything is left."""
        for pid in self.alive():  # now, since parents that live show what belongs to them
            signalled(pid, signal.SIGCONT)
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + 20
        while self.alive() and time.monotonic() < deadline:
            for process in self.processes.values():
                process.poll()  # to its children a zombie is a living parent
            time.sleep(0.1)
        self.killed = self.alive()
        self.kill()
        self.until(lambda: not self.alive(), "all processes are gone")

    def kill(self):
        for pid in self.alive():
            signalled(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(10)
        if self.proxy is not None:
            self.proxy.close()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def signalled(pid, number):
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, number)


def process_table():
    """Parent and session of every process but zombies, by pid."""
    table = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                table[int(entry.name)] = int(parent), int(session)
    return table


def command_line(pid):
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
