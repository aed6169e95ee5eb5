"""Parsers of what warren wrote, or is given: logs of records, definitions, settings, exports, archives, frames."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pamqp import commands as c

from tests.fuzz import seeds
from tests.fuzz.parsers import PATH, in_memory
from tests.fuzz.target import Target
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.definitions_file import FORMAT, VERSION, _checksum
from warren.actors.engines.delays import delay_format
from warren.actors.engines.delays.delay_log import DelayLog
from warren.actors.engines.key_table import ROW
from warren.actors.engines.queue.retries import RECORD, Retries
from warren.actors.engines.settings_file import load_settings
from warren.actors.engines.unique_keys import UniqueKeys
from warren.amqp.connection import PROTOCOL_HEADER, Connection
from warren.amqp.framing import BODY, HEADER, frame
from warren.amqp.methods import encode_method, method_of
from warren.amqp.states import Side
from warren.msg_store.rdq import clean_stop
from warren.msg_store.rdq.file_summary import FileSummary
from warren.msg_store.rdq.locations import Locations
from warren.salvage.archives.archive import unpack
from warren.shovel.exported_files import open_export
from warren.shovel.exported_rows import letter_of
from warren.shovel.progress import Progress
from warren.simulation.toml_file import EXAMPLE, scenario_from_toml
from warren.storage.errors import MessageError
from warren.storage.record_log import RecordLog, encode_record
from warren.storage.settings import PROFILES
from warren.traces import replay

DIRECTORY: Final = "/data"
_NO_SALT: Final = bytes


# ── logs of records: the input is what records say, one a line of _SEPARATOR; their checksums are right ──────────────

_SEPARATOR: Final = b"\n----\n"


def _log_of(kind: str, data: bytes, path: str = PATH) -> RecordLog:
    return RecordLog(
        in_memory(b"warren %b 1\n" % kind.encode() + b"".join(map(encode_record, data.split(_SEPARATOR))), path),
        path,
        kind,
    )


def _record_log(data: bytes) -> None:
    for _ in RecordLog(in_memory(data), PATH, "returned").replay():
        pass


def _retries(data: bytes) -> None:
    retries = Retries(QueueDeclaration("/", "q", arguments={"x-delivery-limit": 5}), _log_of("returned", data))
    retries.load(lambda level: 1000)
    retries.check_invariants()
    for level in range(3):
        retries.go_on_waiting(level, range(100), 0)
    retries.take_all()


def _unique(data: bytes) -> None:
    keys = UniqueKeys(
        _log_of("unique", data), lambda level, seq_ids: [None for _ in seq_ids], lambda: 1_600_000_000_000_000
    )
    keys.open()
    keys.check_invariants()
    keys.holders([bytes(16), data[:16].ljust(16)])
    keys.close()


def _delayed(data: bytes) -> None:
    log = _log_of(delay_format.KIND, data, f"{DIRECTORY}/1.delayed")
    _open_delays(log._files)


def _delayed_index(data: bytes) -> None:
    """An index beside a sound log, its checksum put right."""
    log = _log_of(delay_format.KIND, _delayed_records()[0], f"{DIRECTORY}/1.delayed")
    start = len(delay_format.LINE)
    index = data[:start] + zlib.crc32(data[start + 4 :]).to_bytes(4, "little") + data[start + 4 :]
    log._files.open_append(f"{DIRECTORY}/1.due").append(index)
    _open_delays(log._files)


def _open_delays(files: Any) -> None:
    delays = DelayLog.open(files, DIRECTORY, file_size_limit_bytes=1 << 20)
    delays.next_due_ms()
    for _ in range(5):
        taken = delays.take_due(1 << 62, 10, 1 << 20)
        if not taken:
            break
    delays.check_invariants()


def _delayed_records() -> Sequence[bytes]:
    one = delay_format.encode_message_record(1_600_000_000_000, 7, 9, b"\x83a\1")
    gone = delay_format.encode_removed([delay_format.Place(1, 17)])
    return [_SEPARATOR.join((one, one, gone)), one]


def _delayed_indexes() -> Sequence[bytes]:
    entries = delay_format.entries_of([delay_format.Entry(1_600_000_000_000, 7, 9, 17, 40)])
    index = delay_format.Index(entries, delay_format.removed_of([delay_format.Place(1, 17)]), False)
    log_bytes = len(b"warren delayed 1\n") + sum(
        len(encode_record(one)) for one in _delayed_records()[0].split(_SEPARATOR)
    )
    return [delay_format.encode_index(index, log_bytes)]


def _retry_seeds() -> Sequence[bytes]:
    rows = [RECORD.pack(1, 0, 3, 9, 2), RECORD.pack(2, 1, 5, 6, 1_600_000_000_000_000), RECORD.pack(3, 0, 3, 4, 1)]
    return [_SEPARATOR.join(rows), b"".join(rows)]


def _unique_seeds() -> Sequence[bytes]:
    rows = [ROW.pack(bytes([n]) * 16, bytes([n + 1]) * 16, n, n * 10**15, 0, 128 | n) for n in range(8)]
    return [b"".join(rows), _SEPARATOR.join(rows)]


def _clean_stop(data: bytes) -> None:
    """The shortcut of a clean stop, its checksum put right."""
    whole = data[:8] + zlib.crc32(data[12:]).to_bytes(4, "big") + data[12:]
    files = in_memory(whole, f"{DIRECTORY}/{clean_stop.NAME}")
    clean_stop.load(files, DIRECTORY, b"token")


def _clean_stop_seeds() -> Sequence[bytes]:
    files, summary = in_memory(b""), FileSummary()
    summary.add(0, 100, 50)
    clean_stop.save(files, DIRECTORY, b"token", Locations({bytes(16): 5}, {bytes(16): 2}), summary)
    return [files.read(f"{DIRECTORY}/{clean_stop.NAME}")]


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _definitions(data: bytes) -> None:
    Definitions.open(in_memory(data, f"{DIRECTORY}/warren.definitions.json"), DIRECTORY, _NO_SALT)


def _definitions_sound(data: bytes) -> None:
    """What the file says, its checksum put right: damage of a writer, not of a disk."""
    try:
        snapshot = json.loads(data)
        document = {"format": FORMAT, "version": VERSION, "generation": 1, "checksum": _checksum(1, snapshot)}
        text = json.dumps({**document, "definitions": snapshot}).encode()
    except (ValueError, RecursionError):
        return
    _definitions(text)


def _definitions_log(data: bytes) -> None:
    """Changes, a line each, their checksums put right."""
    lines = [b"%08x %s\n" % (zlib.crc32(line), line) for line in data.split(b"\n")]
    files = in_memory(_definition_seeds()[0], f"{DIRECTORY}/warren.definitions.json")
    files.open_append(f"{DIRECTORY}/warren.definitions.log").append(b"".join(lines))
    Definitions.open(files, DIRECTORY, _NO_SALT)


def _import(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    definitions = Definitions()
    definitions.import_definitions(document)
    definitions.check_invariants()


@functools.cache
def _definition_seeds() -> Sequence[bytes]:
    files = in_memory(b"", f"{DIRECTORY}/x")
    kept = Definitions.open(files, DIRECTORY, _NO_SALT)
    kept.import_definitions(json.loads(_DOCUMENT))
    kept.save()
    return [files.read(f"{DIRECTORY}/warren.definitions.json")]


def _snapshots() -> Sequence[bytes]:
    return [json.dumps(json.loads(_definition_seeds()[0])["definitions"]).encode()]


_DOCUMENT: Final = b"""{"rabbit_version": "3.10.8",
 "users": [{"name": "u", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": ["administrator"],
            "hashing_algorithm": "rabbit_password_hashing_sha256", "limits": {"max-connections": 3}}],
 "vhosts": [{"name": "/"}, {"name": "shop", "metadata": {"description": "d", "tags": ["t"]}, "limits": []}],
 "permissions": [{"user": "u", "vhost": "/", "configure": ".*", "write": "a", "read": "b"}],
 "topic_permissions": [{"user": "u", "vhost": "/", "exchange": "e", "write": "^a", "read": ".*"}],
 "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": {"a": 1}}],
 "global_parameters": [{"name": "cluster_name", "value": "c"}],
 "policies": [{"vhost": "/", "name": "p", "pattern": "^q", "apply-to": "queues", "priority": 3,
               "definition": {"max-length": 5, "message-ttl": 60000}}],
 "exchanges": [{"vhost": "/", "name": "e", "type": "topic", "durable": true, "auto_delete": false, "internal": false,
                "arguments": {"alternate-exchange": "amq.fanout"}}],
 "queues": [{"vhost": "/", "name": "q", "durable": true, "auto_delete": false,
             "arguments": {"x-max-priority": 3, "x-message-ttl": 60000, "x-dead-letter-exchange": "e"}},
            {"vhost": "/", "name": "s", "durable": true, "arguments": {"x-queue-type": "stream"}}],
 "bindings": [{"source": "e", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "a.*",
               "arguments": {"x-match": "all"}}]}"""
_CHANGES: Final = (
    b'{"generation":1}\n[["put","queue",{"vhost":"/","name":"new","durable":true,"auto_delete":false,"arguments":{}}]]\n'
    b'[["drop","queue",{"vhost":"/","name":"s"}]]'
)
_SETTINGS: Final = b"""[node]
total_memory_available_override_value = 1000000000
vm_memory_high_watermark = 0.4
[engine]
profile = "rabbitmq-3.10"
[topics]
flush_disk_type = "ASYNC_FLUSH"
"""


def _settings(data: bytes) -> None:
    load_settings(data, PATH, PROFILES["default"])


def _scenario(data: bytes) -> None:
    scenario_from_toml(data.decode("utf-8", "surrogateescape"))


def _trace(data: bytes) -> None:
    try:
        trace = json.loads(data)
    except (ValueError, RecursionError):
        return
    for _ in replay.replay(trace):
        pass


def _traces() -> Sequence[bytes]:
    paths = sorted(
        (Path(__file__).parents[1] / "golden" / "traces").glob("*.json"), key=lambda path: path.stat().st_size
    )
    return [path.read_bytes() for path in paths[:2]]


def _progress(data: bytes) -> None:
    progress = Progress.open(in_memory(data), PATH, source="a", destination="b")
    progress.reach(b"/", "d", b"q").has(3)


_PROGRESS: Final = (
    b'{"warren": "shovel progress 1", "source": "a", "destination": "b", "queues": [{"vhost": "/", "directory": "d",'
    b' "to": "q", "messages": 3, "next_seq_id": 2, "beyond": [5, 7]}]}',
)


# ── exports, and archives: they need a file of their own ─────────────────────────────────────────────────────────────


@functools.cache
def _room() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="warren-fuzz-", dir=seeds.MEMORY_DIRECTORY)


def _exported(name: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        path = Path(_room().name) / name
        path.write_bytes(data)
        for mark, row in open_export(str(path)).rows():
            if not isinstance(row, MessageError):
                with contextlib.suppress(MessageError):
                    letter_of(row, (0, mark.number))

    return read


_LINES: Final = (
    b'{"vhost": "/", "queue": "q", "seq_id": 3, "exchange": "", "routing_keys": ["q"], "properties": '
    b'{"delivery_mode": 2, "priority": 4}, "headers": {"a": [1, {"b": null}], "c": {"type": "timestamp", "value": 5}}, '
    b'"body": "aGVsbG8="}\n{"body": "text", "body_encoding": "string", "expiry_us": 5, "encoded_properties": "AAA="}\n',
)
_CELLS: Final = (b'queue,body,properties,headers,routing_keys\r\nq,aGVsbG8=,"{""delivery_mode"": 2}",,"[""q""]"\r\n',)


def _parquet() -> Sequence[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"vhost": "/", "queue": "q", "seq_id": 3, "expiry_us": None, "exchange": "", "routing_keys": ["q"]}
    row |= {"properties": "{}", "headers": None, "encoded_properties": b"\0\0", "body": b"hello"}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row, row]), sink)
    return [sink.getvalue()]


def _archive(data: bytes) -> None:
    """Nothing of it lands outside, and no more than is allowed."""
    with tempfile.TemporaryDirectory(dir=_room().name) as place:
        inside = Path(place) / "inside"
        inside.mkdir()
        path = Path(place) / "archive"
        path.write_bytes(data)
        try:
            unpack(str(path), str(inside), max_bytes=1 << 24, max_members=1000)
        finally:
            assert sorted(os.listdir(place)) == ["archive", "inside"]
            assert not [one for one in inside.rglob("*") if one.is_symlink() or not (one.is_file() or one.is_dir())]


def _tar(compress: Callable[[bytes], bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("vhosts/a/.vhost", "vhosts/a/" + "long" * 40 + "/0.rdq"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = 5, 1_600_000_000.25
            archive.addfile(member, io.BytesIO(b"hello"))
    return compress(sink.getvalue())


def _archives() -> Sequence[bytes]:
    import bz2
    import gzip
    import lzma

    import zstandard

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vhosts/a/.vhost", b"hello" * 100)
    zstd = zstandard.ZstdCompressor().compress
    kinds: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, bz2.compress, lzma.compress, zstd]
    return [*map(_tar, kinds), zipped.getvalue()]


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _server(data: bytes) -> None:
    """What a client may send, in one piece and in several."""
    whole, parts = Connection(Side.SERVER), Connection(Side.SERVER)
    said = whole.receive(data)
    for at in range(0, len(data), max(len(data) // 7, 1)):
        parts.receive(data[at : at + max(len(data) // 7, 1)])
    repr(said)
    assert whole.state is parts.state


def _running_server(data: bytes) -> None:
    """The same after a handshake."""
    server = Connection(Side.SERVER)
    server.receive(PROTOCOL_HEADER)
    server.send(0, method_of(c.Connection.Start, server_properties={}))
    server.receive(encode_method(0, c.Connection.StartOk({}, "PLAIN", "\0guest\0guest")))
    server.send(0, c.Connection.Tune(2047, 131_072, 60))
    server.receive(encode_method(0, c.Connection.TuneOk(2047, 131_072, 60)))
    server.receive(encode_method(0, c.Connection.Open("/")))
    server.send(0, c.Connection.OpenOk())
    server.receive(encode_method(1, c.Channel.Open()))
    server.send(1, c.Channel.OpenOk())
    repr(server.receive(data))


def _client(data: bytes) -> None:
    repr(Connection(Side.CLIENT).receive(data))


def _frames() -> Sequence[bytes]:
    publish = encode_method(1, c.Basic.Publish(0, "", "q", False, False))
    header = (60).to_bytes(2, "big") + bytes(2) + (5).to_bytes(8, "big") + b"\x10\x00\x02"
    message = b"".join((publish, frame(HEADER, 1, header), frame(BODY, 1, b"hello")))
    methods = [
        c.Queue.Declare(0, "q", False, True, False, False, False, {"x-message-ttl": 5}),
        c.Queue.Bind(0, "q", "e", "k", False, {"x-match": "all"}),
        c.Basic.Qos(0, 10),
        c.Basic.Consume(0, "q", "t"),
        c.Basic.Ack(1, True),
        c.Basic.Ack(2, False),
        c.Tx.Select(),
        c.Channel.Close(200, "", 0, 0),
    ]
    return [message * 2, b"".join(encode_method(1, method) for method in methods)]


def _hello() -> Sequence[bytes]:
    start_ok = encode_method(0, c.Connection.StartOk({"capabilities": {"x": True}}, "PLAIN", "\0guest\0guest"))
    return [PROTOCOL_HEADER + start_ok, b"HTTP/1.1"]


def _start() -> Sequence[bytes]:
    return [encode_method(0, method_of(c.Connection.Start, server_properties={"a": {"b": 1}}))]


OWN: tuple[Target, ...] = (
    Target(
        "record-log",
        _record_log,
        lambda: [b"warren returned 1\n" + b"".join(map(encode_record, (b"one", b"two" * 50)))],
    ),
    Target("retries", _retries, _retry_seeds),
    Target("unique-keys", _unique, _unique_seeds),
    Target("delayed", _delayed, _delayed_records),
    Target("delayed-index", _delayed_index, _delayed_indexes),
    Target("clean-stop", _clean_stop, _clean_stop_seeds),
    Target("definitions-file", _definitions, _definition_seeds),
    Target("definitions-sound", _definitions_sound, _snapshots),
    Target("definitions-log", _definitions_log, seeds.of(_CHANGES)),
    Target("definitions-import", _import, seeds.of(_DOCUMENT)),
    Target("settings", _settings, seeds.of(_SETTINGS)),
    Target("scenario", _scenario, lambda: [EXAMPLE.encode()]),
    Target("trace", _trace, _traces),
    Target("shovel-progress", _progress, seeds.of(*_PROGRESS)),
    Target("export-jsonl", _exported("export.jsonl"), seeds.of(*_LINES)),
    Target("export-csv", _exported("export.csv"), seeds.of(*_CELLS)),
    Target("export-parquet", _exported("export.parquet"), _parquet, is_slow=True),
    Target("archive", _archive, _archives),
    Target("amqp-server", _server, _hello),
    Target("amqp-running-server", _running_server, _frames),
    Target("amqp-client", _client, _start),
)
