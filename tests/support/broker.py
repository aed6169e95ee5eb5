"""A private RabbitMQ for a test: the packaged server, run on a directory of the test's own.

A :class:`Broker` owns everything below its base directory, and the processes it starts:

    home/            the Erlang cookie, and whatever else Erlang puts into a home directory
    server/          the packaged server as symbolic links, without the plugins (see ``_link_server``)
    *.conf, *.config, inetrc, enabled_plugins    its configuration, written at every start
    broker.log       what the server printed, all starts one after another
    data/<node>/     the node directory; below it msg_stores/vhosts, which is what the tests are about

Terms. The *node* is one Erlang virtual machine (``beam.smp``) with the server in it. ``epmd`` is Erlang's name service;
each Broker runs its own, so that it shares nothing with another broker on the machine.

Invariants: everything listens on loopback only; the child process is the virtual machine itself, with no shell around
it, so that a signal reaches it directly; between two starts only the test touches the directory.

``stop`` leaves the directory of a clean shutdown, ``kill`` that of a crash of the process (what it had written is
there, synced or not). ``close`` leaves no process; a node that still ran is killed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import pika
import pytest

SERVER_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # not the one in /usr/sbin, which changes the user
REQUIRE_VARIABLE = "WARREN_REQUIRE_BROKER"
ABSENT = "no RabbitMQ server on this machine (Debian: apt-get install rabbitmq-server)"

STARTED = "Server startup complete"  # later than the first accepted connection: a stop before it is not a clean one
START_DEADLINE_S = 90.0  # a start takes 4 s on an idle machine; several at once on two busy cores take far longer
STOP_DEADLINE_S = 60.0
COMMAND_DEADLINE_S = 60.0
POLL_INTERVAL_S = 0.02
LOG_TAIL_LINES = 40

# Below the range from which the kernel takes ports for outgoing connections: only other brokers compete for them.
PORT_BLOCKS = range(20_000, 32_000, 4)
TRANSACTION_MESSAGES = 1_000

_MANAGEMENT_PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_prometheus",
    "rabbitmq_web_dispatch",
)

requires_broker = pytest.mark.broker
"""Mark a test (or ``pytestmark``): it is skipped if no server is installed, and fails if one is required."""


class BrokerError(RuntimeError):
    """The server did not do what the test asked of it; says what, with the end of its log."""


class Message(NamedTuple):
    """A message to publish. Without properties: persistent, and nothing else set."""

    body: bytes
    routing_key: str
    exchange: str = ""
    properties: pika.BasicProperties | None = None


class Delivery(NamedTuple):
    """A message as the broker delivered it."""

    body: bytes
    properties: pika.BasicProperties
    redelivered: bool
    exchange: str
    routing_key: str


def is_installed() -> bool:
    """Whether the packaged server and its name service are there to be started."""
    return SERVER_SCRIPT.exists() and shutil.which("epmd") is not None


def is_required() -> bool:
    """Whether the environment insists on tests with a real broker, as continuous integration does."""
    return bool(os.environ.get(REQUIRE_VARIABLE))


class Broker:
    """One RabbitMQ node on its own directory and its own loopback ports; also a context manager that closes it.

    ``settings`` are keys of the ``rabbit`` application with their values (``queue_index_max_journal_entries``,
    ``msg_store_file_size_limit``; ``queue_index_segment_entry_count`` counts for virtual hosts made afterwards).
    Integers and truth values are written as such, strings as the Erlang they are. ``raft``: settings of that name in
    rabbitmq.conf (``wal_max_size_bytes``). Both may be changed between starts. ``conf``: further lines of
    rabbitmq.conf, by key (``listeners.ssl.1``). ``management``: with RabbitMQ's plugins for that and for Prometheus.
    ``plugins``: further ones that come with RabbitMQ.
    """

    def __init__(
        self,
        base_directory: Path,
        settings: Mapping[str, int | bool | str] | None = None,
        conf: Mapping[str, str] | None = None,
        *,
        management: bool = False,
        plugins: Iterable[str] = (),
    ) -> None:
        self.base_directory = base_directory.resolve()
        self.plugins = tuple(plugins)
        self.management = management
        self.settings = dict(settings or {})
        self.raft: dict[str, int] = {}
        self.conf = dict(conf or {})
        digest = hashlib.sha256(os.fsencode(self.base_directory)).hexdigest()
        self.node_name = f"warren-{digest[:12]}@localhost"
        self._server = self.base_directory / "server"
        self._guard: socket.socket | None = None
        self._management_guard: socket.socket | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where things are

    @property
    def node_directory(self) -> Path:
        """The node's data directory; there after the first start."""
        return self.base_directory / "data" / self.node_name

    @property
    def vhosts_directory(self) -> Path:
        """What holds the directories of all virtual hosts."""
        return self.node_directory / "msg_stores" / "vhosts"

    @property
    def log_file(self) -> Path:
        return self.base_directory / "broker.log"

    @property
    def amqp_port(self) -> int:
        """The port of AMQP; kept from the first start until ``close``. BrokerError before it."""
        if self._guard is None:
            raise BrokerError("the broker was not started")
        port: int = self._guard.getsockname()[1]
        return port + 1

    @property
    def management_port(self) -> int:
        """The port of the HTTP API; Prometheus has the next one. Raises BrokerError if the node has no management."""
        if self._management_guard is None:
            raise BrokerError("the broker was not started with management")
        port: int = self._management_guard.getsockname()[1]
        return port + 1

    @property
    def amqp_url(self) -> str:
        """For the virtual host "/"."""
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/%2F"

    @property
    def pid(self) -> int | None:
        """The process of the virtual machine, None while it does not run."""
        return self._node.pid if self._node is not None and self._node.poll() is None else None

    # Its life

    def start(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the node, on whatever lies in its directory, and wait until it accepts AMQP.

        Raises BrokerError if it does not within ``deadline_s`` seconds, or ends before; nothing runs then.
        """
        if self.pid is not None:
            raise BrokerError("the broker runs already")
        if not is_installed():
            raise BrokerError(ABSENT)
        try:
            if self._guard is None:
                self._guard = _reserve_ports()
            if self._management_guard is None and self.management:
                self._management_guard = _reserve_ports()
            self._write_configuration()
            self._start_epmd()
            self._start_node(deadline_s)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Shut the node down in order and wait until its virtual machine is gone.

        Raises BrokerError if it does not run, takes too long (then it is killed) or ends with an error.
        """
        node = self._running_node()
        node.send_signal(signal.SIGTERM)
        try:
            status = node.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"no clean stop within {STOP_DEADLINE_S} s{self._log_tail()}") from None
        if status != 0:
            raise BrokerError(f"the stop ended with status {status}{self._log_tail()}")

    def kill(self) -> None:
        """End the node as a crash would: SIGKILL to the virtual machine. Raises BrokerError if it does not run."""
        node = self._running_node()
        self._write_out_metadata()
        node.kill()
        node.wait()

    def close(self) -> None:
        """Leave no process and no port open; the directory stays. It may be closed twice, or started again."""
        for process in (self._node, self._epmd):
            if process is not None:
                process.kill()
                process.wait()
        for guard in (self._guard, self._management_guard):
            if guard is not None:
                guard.close()
        self._node = self._epmd = self._guard = self._management_guard = None

    # Commands

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` (about half a second) and return its output. Raises BrokerError if it fails."""
        self._running_node()
        done = self.run_ctl(*arguments)
        if done.returncode != 0:
            raise BrokerError(f"rabbitmqctl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    @property
    def ctl_command(self) -> tuple[str, ...]:
        """``rabbitmqctl`` for this node, in any environment."""
        own = [f"{name}={value}" for name, value in self._environment().items() if os.environ.get(name) != value]
        return ("env", *own, str(self._server / "sbin" / "rabbitmqctl"), "--node", self.node_name)

    def run_ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``rabbitmqctl``, however it ends."""
        return subprocess.run(
            [*self.ctl_command, "--quiet", *arguments],
            cwd=self.base_directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )

    def eval(self, erlang: str) -> str:
        """Evaluate Erlang in the node; the last expression's value as Erlang prints it. BrokerError where it fails."""
        return self.ctl("eval", erlang.rstrip().rstrip(".") + ".")

    def set_queue_version(self, pattern: str, version: int) -> None:
        """A policy: classic queues of the vhost "/" whose names match ``pattern`` are of that version from now on."""
        definition = f'[{{<<"queue-version">>, {version}}}]'
        where = f'<<"/">>, <<"{pattern}">>, <<"{pattern}">>'
        self.eval(f'ok = rabbit_policy:set({where}, {definition}, 0, <<"queues">>, <<"guest">>)')

    def wait_for_quorum_queues(self) -> None:
        """Until each has a leader, and it has taken back what the processes of an earlier run held."""
        self.eval(
            "Wait = fun Again(Server) ->"
            "  case ra:leader_query(Server, fun rabbit_fifo:query_stat/1, 1000) of"
            "    {ok, {_, {_, 0}}, _} -> ok;"
            "    _ -> timer:sleep(20), Again(Server)"
            "  end end, "
            "[Wait(amqqueue:get_pid(Queue)) || Queue <- rabbit_amqqueue:list_by_type(rabbit_quorum_queue)], ok"
        )

    def connect(self, vhost: str = "/") -> pika.BlockingConnection:
        """A new connection as guest; the caller closes it."""
        credentials = pika.PlainCredentials("guest", "guest")
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.amqp_port, vhost, credentials, heartbeat=0)
        )

    @contextmanager
    def channel(self, vhost: str = "/") -> Iterator[Any]:
        """A channel on a connection of its own, both closed at the end."""
        connection = self.connect(vhost)
        try:
            yield connection.channel()
        finally:
            with suppress(pika.exceptions.ConnectionWrongStateError):
                connection.close()

    def declare(
        self, queue: str, durable: bool = True, arguments: Mapping[str, Any] | None = None, vhost: str = "/"
    ) -> None:
        """Declare a queue; classic unless ``arguments`` say otherwise."""
        with self.channel(vhost) as channel:
            channel.queue_declare(queue, durable=durable, arguments=dict(arguments or {}))

    def publish(self, messages: Iterable[Message], confirm: bool = True, vhost: str = "/") -> None:
        """Publish ``messages`` in order over one channel; BrokerError where one of them reaches no queue.

        With ``confirm`` the broker has taken responsibility for all of them on return (persistent ones are on disk).
        They go in transactions: the client library would wait for the confirm of every single message. Without it
        they are only handed to the broker, and a message that reaches no queue is lost silently.
        """
        with self.channel(vhost) as channel:
            if not confirm:
                for message in messages:
                    _publish_one(channel, message, mandatory=False)
                return
            returned: list[str] = []
            channel.add_on_return_callback(lambda _, method, *__: returned.append(method.routing_key))
            channel.tx_select()
            remaining = iter(messages)
            while batch := list(islice(remaining, TRANSACTION_MESSAGES)):
                for message in batch:
                    _publish_one(channel, message, mandatory=True)
                channel.tx_commit()
            channel.connection.process_data_events(time_limit=0)
            if returned:
                raise BrokerError(f"{len(returned)} messages reached no queue, the first with key {returned[0]!r}")

    def drain(self, queue: str, vhost: str = "/") -> list[Delivery]:
        """Consume all ready messages of ``queue`` in delivery order. No other consumer may use it meanwhile."""
        deliveries: list[Delivery] = []
        with self.channel(vhost) as channel:
            ready = channel.queue_declare(queue, passive=True).method.message_count
            # By count, as an empty queue does not announce itself; a pause means that messages expired on the way.
            if ready:
                for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=2.0):
                    if method is None:
                        break
                    deliveries.append(_delivery(method, properties, body))
                    if len(deliveries) == ready:
                        break
                channel.cancel()
            while True:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    return deliveries
                deliveries.append(_delivery(method, properties, body))

    # How it is done

    def _running_node(self) -> subprocess.Popen[bytes]:
        if self._node is None or self._node.poll() is not None:
            raise BrokerError(f"the broker does not run{self._log_tail()}")
        return self._node

    def _write_out_metadata(self) -> None:
        """Make the node write what it knows of queues, bindings and virtual hosts to its own database's log.

        Left alone it does so within seconds; a queue declared just before the crash would be unknown at the next start,
        and its directory deleted; a quorum queue without an entry in names.dets would start empty. Takes milliseconds,
        so that the crash still catches the queues in the act.
        """
        cookie = (self.base_directory / "home" / ".erlang.cookie").read_text()
        for function in ("mnesia sync_log", "dets sync [ra_directory_reverse]"):
            call = ["erl_call", "-n", self.node_name, "-c", cookie, "-a", function]
            with suppress(subprocess.TimeoutExpired):  # a node that hangs is killed all the same
                subprocess.run(call, env=self._environment(), capture_output=True, timeout=5.0, check=False)

    def _write_configuration(self) -> None:
        base = self.base_directory
        (base / "home").mkdir(parents=True, exist_ok=True)
        cookie = base / "home" / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)  # Erlang refuses one that others can read
        # A nearly full disk must not block the publishers of a test.
        lines = f"listeners.tcp.1 = 127.0.0.1:{self.amqp_port}\ndisk_free_limit.absolute = 1MB\n"
        conf: dict[str, object] = {f"raft.{name}": value for name, value in self.raft.items()}
        if self.management:
            for number, listener in enumerate(("management", "prometheus")):
                conf[f"{listener}.tcp.port"] = self.management_port + number
                conf[f"{listener}.tcp.ip"] = "127.0.0.1"
        lines += "".join(f"{name} = {value}\n" for name, value in {**conf, **self.conf}.items())
        (base / "rabbitmq.conf").write_text(lines)
        terms = ", ".join(f"{{{key}, {_erlang(value)}}}" for key, value in self.settings.items())
        (base / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
        enabled = (*(("rabbitmq_management", "rabbitmq_prometheus") if self.management else ()), *self.plugins)
        (base / "enabled_plugins").write_text(f"[{', '.join(enabled)}].\n")
        # Without the system's resolver: that one is a program of its own, which outlives a killed virtual machine.
        (base / "inetrc").write_text('{lookup, [file]}.\n{host, {127,0,0,1}, ["localhost"]}.\n')
        _link_server(self._server, (*(_MANAGEMENT_PLUGINS if self.management else ()), *self.plugins))

    def _environment(self) -> dict[str, str]:
        base, port = self.base_directory, self.amqp_port
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        return inherited | {
            "HOME": str(base / "home"),
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(port + 1),
            "ERL_INETRC": str(base / "inetrc"),
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_ALLOW_INPUT": "true",  # makes the script become the virtual machine instead of its parent
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CTL_DIST_PORT_MAX": "0",  # any free one: the default is eleven ports for the whole machine
            "RABBITMQ_CTL_DIST_PORT_MIN": "0",
            "RABBITMQ_CTL_ERL_ARGS": loopback,
            "RABBITMQ_DIST_PORT": str(port + 2),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(base),
            "RABBITMQ_MNESIA_BASE": str(base / "data"),
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",  # nodes bound to the same cores hold each other up
            "RABBITMQ_SCRIPTS_DIR": str(self._server / "sbin"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        }

    def _start_epmd(self) -> None:
        if self._epmd is not None and self._epmd.poll() is None:
            return
        self._epmd = self._spawn("epmd")
        # If it came before this one listened, the node would start a name service of its own that never stops.
        _wait_until(lambda: _accepts(self.amqp_port + 1), self._epmd, time.monotonic() + START_DEADLINE_S, "epmd")

    def _start_node(self, deadline_s: float) -> None:
        already_logged = self.log_file.stat().st_size
        deadline = time.monotonic() + deadline_s
        self._node = self._spawn(str(self._server / "sbin" / "rabbitmq-server"), "-noinput")

        def has_started() -> bool:
            with self.log_file.open("rb") as log:
                log.seek(already_logged)
                return STARTED.encode() in log.read()

        try:
            _wait_until(has_started, self._node, deadline, "the node")
            _wait_until(lambda: _accepts(self.amqp_port), self._node, deadline, "the AMQP listener")
        except BrokerError as error:
            raise BrokerError(f"{error}{self._log_tail()}") from None

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                command,
                env=self._environment(),
                cwd=self.base_directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is the test run's, which then closes the broker
            )

    def _log_tail(self) -> str:
        if not self.log_file.exists():
            return ""
        lines = self.log_file.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(["; its log ends:", *lines])


def _link_server(directory: Path, plugins: Iterable[str]) -> None:
    """Lay out the packaged server as links, with only these ``plugins``.

    All of them would stand in Erlang's code path, where each module is looked for in one directory after the other:
    most of 50,000 failed look-ups, and half of the time that a start takes.
    """
    if directory.exists():
        return
    packaged = SERVER_SCRIPT.resolve().parent.parent
    (directory / "plugins").mkdir(parents=True)
    for part in ("sbin", "escript"):
        (directory / part).symlink_to(packaged / part)
    for library in (packaged / "plugins").iterdir():
        name = library.name.rpartition("-")[0]
        if name == "rabbitmq_prelaunch" or name in plugins or not library.name.startswith("rabbitmq_"):
            (directory / "plugins" / library.name).symlink_to(library)


def _reserve_ports() -> socket.socket:
    """Four loopback ports in a row: the returned socket's, which guards the block, then AMQP, epmd, distribution.

    The guard keeps every other Broker off the block, those in other processes included, until it is closed.
    """
    for _ in range(len(PORT_BLOCKS)):
        first = secrets.choice(PORT_BLOCKS)
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", first))
            guard.listen(1)
        except OSError:
            guard.close()
            continue
        if not any(_accepts(port) for port in range(first + 1, first + 4)):
            return guard
        guard.close()
    raise BrokerError("no free ports on loopback")


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], deadline: float, what: str) -> None:
    """Poll ``condition`` until it holds; BrokerError where ``process`` ends or ``deadline`` (monotonic) passes."""
    while not condition():
        if process.poll() is not None:
            raise BrokerError(f"{what} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise BrokerError(f"{what} was not there in time")
        time.sleep(POLL_INTERVAL_S)


def _erlang(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _publish_one(channel: Any, message: Message, mandatory: bool) -> None:
    properties = message.properties or pika.BasicProperties(delivery_mode=2)
    channel.basic_publish(message.exchange, message.routing_key, message.body, properties, mandatory=mandatory)


def _delivery(method: Any, properties: pika.BasicProperties, body: bytes) -> Delivery:
    return Delivery(body, properties, method.redelivered, method.exchange, method.routing_key)
