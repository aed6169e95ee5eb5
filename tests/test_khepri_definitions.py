"""Definitions of RabbitMQ 4 in Khepri: logs that RabbitMQ's own code wrote, against what its store said; and damage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import cli_tools
from tests.support.disk_log_tools import log
from tests.support.quorum_tools import QuorumNode, noop, records, usr
from tests.support.stream_tools import StreamWriter, record
from warren.queue_index.index.dets_format import encode_table
from warren.salvage.archives.archive import unpack
from warren.salvage.metadata.khepri_metadata import KhepriMetadata
from warren.salvage.metadata.khepri_store import khepri_members, read_khepri
from warren.salvage.metadata.khepri_transactions import replay_transaction
from warren.salvage.metadata.khepri_tree import ANY_CHILD, TreeNode
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.erlang_terms import Atom, Opaque, Term, decode
from warren.storage.errors import MessageError
from warren.storage.filesystem import RealFileSystem

DATA = Path(__file__).parent / "data" / "khepri"
UID = b"META"
CONFIG = b'#{id => {rabbitmq_metadata,n@h},machine => {module,khepri_machine,#{}},uid => <<"META">>}.\n'
POLICY_FIELDS = slice(10, 12)
"""Of a queue's record: its policies, which no definition has."""


@pytest.fixture(params=sorted(DATA.glob("*.tar.xz")), ids=lambda path: path.name)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A node's data directory."""
    unpack(str(request.param), str(tmp_path))
    return tmp_path


def definitions(*arguments: str | Path, exit_code: int = 0) -> tuple[dict[str, Any], str]:
    result = cli_tools.warren("definitions", *arguments)
    assert result.exit_code == exit_code, result.stderr
    return json.loads(result.stdout), result.stderr


def read(node: Path) -> tuple[KhepriMetadata, list[Finding]]:
    files, findings = ReadOnlyFileSystem(RealFileSystem()), list[Finding]()
    (member,) = khepri_members(files, str(node))
    return read_khepri(files, member, findings.append), findings


def with_data(node: TreeNode, path: tuple[Term, ...] = ()) -> Iterator[tuple[tuple[Term, ...], TreeNode]]:
    if node.data is not None:
        yield path, node
    for name, child in node.children.items():
        yield from with_data(child, (*path, name))


def without_policies(term: Any) -> Any:
    if isinstance(term, tuple) and term[0] == "amqqueue":
        return (*term[: POLICY_FIELDS.start], *term[POLICY_FIELDS.stop :])
    return term


def test_the_tree_is_what_the_store_held(node: Path) -> None:
    metadata, findings = read(node)
    dump: Any = decode((node / "tree.etf").read_bytes())
    expected = {tuple(path): (without_policies(term), version) for path, term, version in dump}
    nodes = dict(with_data(metadata.tree))
    assert findings == []
    assert {path: without_policies(tree_node.data) for path, tree_node in nodes.items()} == {
        path: term for path, (term, _) in expected.items()
    }
    assert len(nodes) == 36
    for path, tree_node in nodes.items():
        assert tree_node.version in (None, expected[path][1])


def test_definitions_have_what_was_declared_and_not_what_was_deleted(node: Path) -> None:
    document, _ = definitions(node)
    names = {
        part: sorted(item["name"] for item in document[part]) for part in ("users", "vhosts", "queues", "exchanges")
    }
    assert names == {
        "users": ["alice", "bob", "guest"],
        "vhosts": ["/", "vh/ö"],
        "queues": ["classic", "quorum", "qü", "stream", "twice"],
        "exchanges": ["x.alt", "x.set", "x.topic", "x.transient"],
    }
    assert sorted((item["source"], item["destination"], item["routing_key"]) for item in document["bindings"]) == [
        ("amq.topic", "qü", "ö"),
        ("x.topic", "classic", "a.#"),
        ("x.topic", "x.alt", "e"),
    ]
    assert {(item["user"], item["vhost"]): item["read"] for item in document["permissions"]} == {
        ("guest", "/"): ".*",
        ("guest", "vh/ö"): ".*",
        ("alice", "/"): "^c",
    }
    assert [item["user"] for item in document["topic_permissions"]] == ["alice"]
    assert [(item["name"], item["definition"]) for item in document["policies"]] == [("ttl", {"message-ttl": 5})]
    assert sorted(item["name"] for item in document["parameters"]) == ["limits", "op"]
    alice, bob, guest = sorted(document["users"], key=lambda user: str(user["name"]))
    assert (alice["hashing_algorithm"], alice["limits"]) == ("rabbit_password_hashing_sha512", {"max-connections": 5})
    assert (bob["tags"], guest["tags"]) == (["monitoring", "policymaker"], ["administrator", "management"])


def test_they_can_be_imported(node: Path, tmp_path: Path) -> None:
    result = cli_tools.warren("definitions", tmp_path / "new", "--import", node, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["queues"] == 5
    assert definitions(tmp_path / "new", "--vhost", "vh/ö")[0]["queues"][0]["name"] == "qü"


def test_a_stream_has_its_name(node: Path) -> None:
    StreamWriter(node / "stream" / "__stream_1700000000000000000").write(record(b"a", b"key"))
    StreamWriter(node / "stream" / "__gone_1700000000000000000").write(record(b"a", b"key"))
    result = cli_tools.warren("export", node)
    assert [(message["vhost"], message["queue"]) for message in map(json.loads, result.stdout.splitlines())] == [
        ("/", "stream")
    ]
    assert "leftover of a deleted stream" in cli_tools.warren("verify", node).stdout


@pytest.mark.parametrize("node", [DATA / "rabbitmq-4.3.5.tar.xz"], indirect=True, ids=["4.3.5"])
def test_a_log_that_is_cut_short_loses_only_its_end(node: Path) -> None:
    (wal,) = (node / "coordination").glob("*/*.wal")
    data = wal.read_bytes()
    wal.write_bytes(data[: data.index(b"rabbit_db_exchange__-delete_all") + 20])
    vhosts = {item["name"] for item in definitions(node, exit_code=1)[0]["vhosts"]}
    assert vhosts == {"/", "vh/ö", "gone"}


def test_a_damaged_entry_is_reported_with_its_place(node: Path) -> None:
    (wal,) = (node / "coordination").glob("*/*.wal")
    data = bytearray(wal.read_bytes())
    data[data.index(b"rabbit_db_user__-clear_all") + 40] ^= 0xFF
    wal.write_bytes(data)
    document, errors = definitions(node, exit_code=1)
    assert f"{wal}, offset " in errors
    assert len(document["queues"]) == 5


# ── logs by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────

ROOT, VHOSTS, USERS = Atom("rabbitmq"), Atom("vhosts"), Atom("users")


def written(directory: Path, *commands: Term, uid: bytes = UID) -> Path:
    """A node whose store has applied these commands."""
    node = QuorumNode(RealFileSystem(), str(directory / "coordination" / "n@h"))
    node.write(f"{uid.decode()}/config", CONFIG.replace(UID, uid))
    node.wal(1, records(uid, [noop(1), *map(usr, commands)]))
    return directory


def put(path: Sequence[Term], record: Term) -> Term:
    return Atom("put"), list(path), (Atom("p_data"), record), dict[Term, Term]()


def vhost(name: bytes) -> Term:
    return put([ROOT, VHOSTS, name], (Atom("vhost"), name, list[Term](), dict[Term, Term]()))


def user_record(name: bytes, tag: str) -> Term:
    return Atom("internal_user"), name, b"hash", [Atom(tag)], Atom("rabbit_password_hashing_sha256"), {}


def user(name: bytes, tag: str) -> Term:
    return put([ROOT, USERS, name], user_record(name, tag))


def function(name: str, *variables: Term) -> Term:
    return Atom("horus_fun"), Atom(f"horus__{name}__1234"), b"FOR1", 0, [], {}, list(variables), Atom("undefined")


def test_an_unknown_transaction_is_reported_and_the_rest_counts(tmp_path: Path) -> None:
    unknown: Term = Atom("tx"), function("rabbit_db_later__-change/2-fun-0-", b"x"), list[Term]()
    document, errors = definitions(written(tmp_path, vhost(b"/"), unknown, user(b"u", "x")), exit_code=1)
    assert (
        "entry 2: not replayed, so what it changed may be missing: an unknown transaction rabbit_db_later:change"
        in errors
    )
    assert [item["name"] for item in document["users"]] == ["u"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ((Atom("later"), 1), "in place of a command"),
        ((Atom("delete"), [ROOT, (Atom("if_later"), 1)], {}), "an unknown condition"),
        ((Atom("tx"), [ROOT], []), "in place of a transaction"),
        ((Atom("delete"), [ROOT] * 40, {}), "a path of 40 components"),
        ((Atom("tx"), function("rabbit_db_binding__-create/2-fun-0-", b"x"), []), "without the expected variables"),
        ((Atom("tx"), function("other_application__-create/2-fun-0-"), []), "an unknown transaction horus__other"),
    ],
)
def test_what_cannot_be_replayed_says_why(tmp_path: Path, command: Term, reason: str) -> None:
    assert reason in definitions(written(tmp_path, vhost(b"/"), command), exit_code=1)[1]


def test_records_that_make_no_sense_are_reported(tmp_path: Path) -> None:
    path: list[Term] = [ROOT, VHOSTS, b"/", Atom("exchanges"), b"x", Atom("bindings"), Atom("queue"), b"q", b"k"]
    commands = [vhost(b"/"), put(path, b"no set"), put([ROOT, USERS, b"u"], b"no record")]
    _, errors = definitions(written(tmp_path, *commands), exit_code=1)
    assert errors.count("unreadable record") == 2


def test_a_command_that_was_sent_twice_counts_once(tmp_path: Path) -> None:
    reference = Opaque(b"Z\0\1d\0\3n@h" + bytes(8))
    first: Term = Atom("dedup"), reference, 1, user(b"u", "first")
    document, _ = definitions(written(tmp_path, vhost(b"/"), first, user(b"u", "second"), first))
    assert [item["tags"] for item in document["users"]] == [["second"]]


def test_a_conditional_change_of_an_older_version_changes_nothing(tmp_path: Path) -> None:
    def to(version: int, tag: str) -> Term:
        name: Term = Atom("if_all"), [b"u", (Atom("if_payload_version"), version)]
        return put([ROOT, USERS, name], user_record(b"u", tag))

    document, _ = definitions(written(tmp_path, vhost(b"/"), user(b"u", "a"), to(1, "b"), to(1, "c"), to(2, "d")))
    assert [item["tags"] for item in document["users"]] == [["d"]]


def write_mnesia(directory: Path, vhosts: Sequence[Term]) -> None:
    """Mnesia's files, beside Khepri's."""
    for name, data in (("schema.DAT", encode_table([])), ("rabbit_vhost.DCD", log(vhosts)), ("LATEST.LOG", log([]))):
        (directory / name).write_bytes(data)


def test_a_node_that_stopped_while_it_moved_to_khepri_has_mnesias_definitions(tmp_path: Path) -> None:
    written(tmp_path, vhost(b"/"), vhost(b"from khepri"))
    write_mnesia(tmp_path, [(Atom("vhost"), b"/", [])])
    document, errors = definitions(tmp_path, exit_code=1)
    assert "unfinished migration: Mnesia has a vhost, too" in errors
    assert [item["name"] for item in document["vhosts"]] == ["/"]


def test_a_node_that_has_moved_to_khepri_has_khepris_definitions(tmp_path: Path) -> None:
    written(tmp_path, vhost(b"from khepri"))
    write_mnesia(tmp_path, [])
    assert [item["name"] for item in definitions(tmp_path)[0]["vhosts"]] == ["from khepri"]


def test_damage_in_khepri_is_reported_although_mnesias_empty_tables_are_sound(tmp_path: Path) -> None:
    written(tmp_path, (Atom("later"), vhost(b"/")))
    write_mnesia(tmp_path, [])
    assert "unreadable change" in definitions(tmp_path, exit_code=1)[1]


def test_a_node_with_mnesia_has_an_unused_khepri_beside_it(tmp_path: Path) -> None:
    written(tmp_path)
    write_mnesia(tmp_path, [(Atom("vhost"), b"/", [])])
    assert [item["name"] for item in definitions(tmp_path)[0]["vhosts"]] == ["/"]


# ── what goes with what ──────────────────────────────────────────────────────────────────────────────────────────────


def resource(kind: str, name: bytes) -> tuple[Any, ...]:
    return Atom("resource"), b"/", Atom(kind), name


def binding(source: bytes, kind: str, destination: bytes) -> tuple[Any, ...]:
    return Atom("binding"), resource("exchange", source), b"k", resource(kind, destination), list[Term]()


def bound(*bindings: tuple[Any, ...]) -> KhepriMetadata:
    """A vhost with auto-delete exchanges and these bindings."""
    metadata = KhepriMetadata()
    for bind in bindings:
        for name in (bind[1], bind[3]):
            queue = (Atom("amqqueue"), name, True, False, Atom("none"), list[Term]())
            exchange = (Atom("exchange"), name, Atom("fanout"), True, True, False, list[Term]())
            is_queue = name[2] == "queue"
            place = Atom("queues" if is_queue else "exchanges")
            metadata.put((ROOT, VHOSTS, b"/", place, name[3]), queue if is_queue else exchange)
    for bind in bindings:
        replay_transaction(metadata, function("rabbit_db_binding__-create/2-fun-0-", bind))
    return metadata


def exchanges(metadata: KhepriMetadata) -> list[Term]:
    pattern = (ROOT, VHOSTS, b"/", Atom("exchanges"), ANY_CHILD)
    return sorted((path[-1] for path, _ in metadata.tree.find(pattern)), key=str)


def test_auto_delete_exchanges_go_one_after_the_other_with_a_queue() -> None:
    metadata = bound(binding(b"a", "queue", b"q"), binding(b"b", "exchange", b"a"), binding(b"c", "queue", b"other"))
    replay_transaction(
        metadata, function("rabbit_db_queue__-delete_in_khepri/2-fun-0-", resource("queue", b"q"), False)
    )
    assert exchanges(metadata) == [b"c"]
    assert len(metadata.tables()["rabbit_durable_route"]) == 1


def test_an_exchange_that_is_in_use_is_not_deleted_if_unused() -> None:
    metadata = bound(binding(b"a", "queue", b"q"))
    unused = function("rabbit_db_exchange__conditional_delete_in_khepri")
    delete = function("rabbit_db_exchange__-delete_in_khepri/2-fun-2-", resource("exchange", b"a"), unused)
    replay_transaction(metadata, delete)
    assert exchanges(metadata) == [b"a"]


def test_a_user_that_is_created_again_has_no_permissions() -> None:
    metadata = KhepriMetadata()
    path = (ROOT, VHOSTS, b"/", Atom("user_permissions"), b"u")
    metadata.put((ROOT, USERS, b"u"), (Atom("internal_user"), b"u"))
    metadata.put(path, (Atom("user_permission"), (Atom("user_vhost"), b"u", b"/"), ()))
    metadata.delete((ROOT, USERS, b"u"))
    metadata.put((ROOT, USERS, b"u"), (Atom("internal_user"), b"u"))
    assert metadata.tree.get(path) is None


def test_permissions_of_a_missing_user_are_not_set() -> None:
    metadata = KhepriMetadata()
    inner = function("rabbit_db_user__-set_user_permissions/1-fun-0-", (Atom("user_permission"), (0, b"u", b"/"), ()))
    replay_transaction(metadata, function("rabbit_db_user__-with_fun_in_khepri_tx/2-fun-0-", b"u", inner))
    assert metadata.tables()["rabbit_user_permission"] == []


def test_a_change_of_a_user_that_is_not_known_is_an_error() -> None:
    metadata = KhepriMetadata()
    internal: Term = Atom("internal_user"), b"u", b"", list[Term](), Atom("undefined"), dict[Term, Term]()
    metadata.put((ROOT, USERS, b"u"), internal)
    change = function("rabbit_auth_backend_internal__-later/2-fun-0-", b"x")
    with pytest.raises(MessageError, match="an unknown change of a user"):
        replay_transaction(metadata, function("rabbit_db_user__-update/2-fun-0-", b"u", change))
