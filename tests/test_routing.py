"""Where messages go: each type of exchange, chains of exchanges, alternates; against models that check all."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties

from tests.support.broker import Broker
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.exchanges import BUILTIN_EXCHANGES, TRACE_EXCHANGE, Binding, ExchangeDeclaration
from warren.actors.engines.declared.matching import TopicMatcher, topic_words
from warren.actors.engines.declared.routing import CACHED_QUEUES, CACHED_ROUTES, RoutingTable, carbon_copies
from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, NotFoundError
from warren.testing import TestNode


class Node:
    """A vhost with short names for what the tests do to it."""

    def __init__(self, *queues: str) -> None:
        self.definitions = Definitions()
        for name in queues:
            self.queue(name)

    @property
    def table(self) -> RoutingTable:
        return self.definitions.vhost("/").routing

    def queue(self, name: str, **kind: Any) -> None:
        self.definitions.declare_queue(QueueDeclaration(vhost="/", name=name, **kind))

    def exchange(self, name: str, kind: str = "direct", *, alternate: str | None = None, **more: Any) -> None:
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        self.definitions.declare_exchange(
            ExchangeDeclaration(vhost="/", name=name, type=kind, arguments=arguments, **more)  # type: ignore[arg-type]
        )

    def binding(
        self, source: str, destination: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> Binding:
        """``destination`` with a > in front is an exchange."""
        return Binding(
            vhost="/",
            source=source,
            destination=destination.removeprefix(">"),
            destination_type="exchange" if destination.startswith(">") else "queue",
            routing_key=key,
            arguments=arguments or {},
        )

    def bind(self, *binding: Any) -> bool:
        return self.definitions.bind(self.binding(*binding))

    def unbind(self, *binding: Any) -> None:
        self.definitions.unbind(self.binding(*binding))


# ── one exchange ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_default_exchange_leads_to_the_queue_of_that_name() -> None:
    node = Node("a", "b")
    assert node.table.route("", "a") == ("a",)
    assert node.table.route("", "c") == ()
    node.queue("c")
    assert node.table.route("", "c") == ("c",)
    node.definitions.vhost("/").delete_queue("c")
    assert node.table.route("", "c") == ()


def test_a_vhost_has_the_builtin_exchanges_from_the_start() -> None:
    node = Node("q")
    for name in BUILTIN_EXCHANGES.keys() - {TRACE_EXCHANGE}:  # which is internal
        assert node.table.route(name, "k") == ()
        node.bind(name, "q", "k")
        assert node.table.route(name, "k") == ("q",)


def test_an_unknown_exchange_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="no exchange 'nowhere' in vhost '/'"):
        Node().table.route("nowhere", "k")


def test_a_queue_bound_twice_is_named_once_until_both_bindings_are_gone() -> None:
    node = Node("q")
    node.bind("amq.direct", "q", "k")
    assert node.bind("amq.direct", "q", "k", {"a": 1})
    assert not node.bind("amq.direct", "q", "k", {"a": 1})
    assert node.table.route("amq.direct", "k") == ("q",)
    node.unbind("amq.direct", "q", "k")
    assert node.table.route("amq.direct", "k") == ("q",)
    node.unbind("amq.direct", "q", "k", {"a": 1})
    assert node.table.route("amq.direct", "k") == ()


def test_bindings_are_told_apart_by_the_types_of_their_arguments() -> None:
    node = Node("q")
    for value in (1, 1.0, True, "1", [1], {"1": 1}, None):
        assert node.bind("amq.headers", "q", "", {"k": value})
    assert len(node.definitions.vhost("/").bindings()) == 7


TOPICS: list[tuple[str, list[str], list[str]]] = [
    ("*.error", ["db.error"], ["error", "db.x.error", "db.errors", "db"]),
    ("#", ["", "a", "a.b.c", "..", "#", "*"], []),
    ("", [""], ["a", "."]),
    ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b.a", "ab"]),
    ("#.a", ["a", "b.a", "a.a"], ["a.b", ""]),
    ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c"]),
    ("#.#", ["", "a", "a.b"], []),
    ("*.#", ["a", "a.b"], [""]),
    ("#.*", ["a", "a.b"], [""]),
    ("*", ["a", "#", "*"], ["", "a.b"]),
    ("a..b", ["a..b"], ["a.b", "a.x.b"]),
    ("a.*.b", ["a..b", "a.x.b"], ["a.b"]),
    ("A", ["A"], ["a"]),
    ("a*", ["a*"], ["ab"]),
]
"""Patterns, the keys that they take, and keys that they leave."""


@pytest.mark.parametrize(("pattern", "taken", "left"), TOPICS)
def test_topic_patterns(pattern: str, taken: list[str], left: list[str]) -> None:
    node = Node("q")
    node.bind("amq.topic", "q", pattern)
    assert [key for key in taken + left if node.table.route("amq.topic", key)] == taken


def test_a_pattern_of_many_hashes_takes_no_longer_than_its_words() -> None:
    """Tried one choice after the other this would not end before the universe does."""
    node = Node("q")
    node.bind("amq.topic", "q", ".".join(["#.a"] * 40))
    assert node.table.route("amq.topic", ".".join("a" * 120)) == ("q",)
    assert node.table.route("amq.topic", ".".join("a" * 120 + "b")) == ()


def test_topic_bindings_come_in_the_order_in_which_they_were_made() -> None:
    node = Node("d", "c", "b", "a")
    for queue, key in (("d", "#"), ("c", "x.y"), ("b", "x.*"), ("a", "*.y")):
        node.bind("amq.topic", queue, key)
    assert node.table.route("amq.topic", "x.y") == ("d", "c", "b", "a")


def takes(pattern: list[str], words: list[str]) -> bool:
    """The model: what AMQP says of ``*`` and ``#``, tried one way after the other."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return takes(pattern[1:], words) or (bool(words) and takes(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and takes(pattern[1:], words[1:])


KEYS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)


@given(patterns=st.lists(KEYS, min_size=1, max_size=8), keys=st.lists(KEYS, min_size=1, max_size=8), data=st.data())
def test_topics_agree_with_the_model_while_bindings_come_and_go(
    patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    node = Node(*(f"q{number}" for number in range(len(patterns))))
    for number, pattern in enumerate(patterns):
        node.bind("amq.topic", f"q{number}", pattern)
    left = dict(enumerate(patterns))
    while True:
        for key in keys:
            expected = [f"q{n}" for n, pattern in left.items() if takes(topic_words(pattern), topic_words(key))]
            assert list(node.table.route("amq.topic", key)) == expected
        node.definitions.check_invariants()
        if not left:
            break
        gone = data.draw(st.sampled_from(sorted(left)))
        node.unbind("amq.topic", f"q{gone}", left.pop(gone))


def test_a_trie_keeps_no_branch_of_a_binding_that_is_gone() -> None:
    matcher = TopicMatcher()
    node = Node("q")
    bindings = [node.binding("amq.topic", "q", key) for key in ("a.b.c", "a.b", "a.#.c", "")]
    for number, binding in enumerate(bindings):
        matcher.add(binding, (number, True, "q"))  # type: ignore[arg-type]
    for binding in bindings:
        matcher.remove(binding)
    assert not matcher._root.children
    assert not matcher._root.leaf


PDF = {"format": "pdf", "pages": 3, "x-by": "me"}


HEADERS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, PDF, True),
    ({"x-match": "any"}, PDF, False),
    ({"format": "pdf", "pages": 3}, PDF, True),
    ({"format": "pdf", "pages": 4}, PDF, False),
    ({"format": "pdf", "pages": 3}, {"format": "pdf"}, False),
    ({"format": "pdf"}, {}, False),
    ({"x-match": "any", "format": "pdf", "pages": 4}, PDF, True),
    ({"x-match": "any", "format": "png", "pages": 4}, PDF, False),
    ({"x-match": "all", "x-by": "you"}, PDF, True),
    ({"x-match": "all-with-x", "x-by": "you"}, PDF, False),
    ({"x-match": "all-with-x", "x-by": "me", "format": "pdf"}, PDF, True),
    ({"x-match": "any", "x-by": "me"}, PDF, False),
    ({"x-match": "any-with-x", "x-by": "me"}, PDF, True),
    ({"x-match": "any-with-x"}, PDF | {"x-match": "any-with-x"}, False),
    ({"format": None}, PDF, True),
    ({"size": None}, PDF, False),
    ({"n": 1}, {"n": 1.0}, True),
    ({"n": 1}, {"n": True}, False),
    ({"n": True}, {"n": 1}, False),
    ({"n": True}, {"n": True}, True),
    ({"n": 1}, {"n": "1"}, False),
    ({"n": 1}, {"n": Decimal(1)}, False),
    ({"n": "é"}, {"n": "é".encode()}, True),
    ({"n": b"text"}, {"n": "text"}, True),
    ({"n": datetime(2020, 1, 1, tzinfo=UTC)}, {"n": 1577836800}, True),
    ({"n": 1577836800}, {"n": datetime(2020, 1, 1, tzinfo=UTC)}, True),
    ({"n": [1, {"a": True}]}, {"n": (1, {"a": True})}, True),
    ({"n": [1, {"a": True}]}, {"n": [1, {"a": 1}]}, False),
    ({"n": [1]}, {"n": [1, 2]}, False),
    ({"n": {"a": 1}}, {"n": {"a": 1, "b": 2}}, False),
]
"""Arguments of a binding, headers of a message, and whether it is taken."""


@pytest.mark.parametrize(("arguments", "headers", "taken"), HEADERS)
def test_headers(arguments: dict[str, Any], headers: dict[str, Any], taken: bool) -> None:
    node = Node("q")
    node.bind("amq.headers", "q", "key", arguments)
    assert node.table.route("amq.headers", "other key", headers) == (("q",) if taken else ())


def test_a_message_without_headers_goes_where_nothing_is_asked() -> None:
    node = Node("a", "b")
    node.bind("amq.headers", "a")
    node.bind("amq.headers", "b", "", {"k": 1})
    assert node.table.route("amq.headers", "") == ("a",)
    assert node.table.route("amq.headers", "", {"k": 1}) == ("a", "b")
    assert node.table.route("amq.headers", "") == ("a",)


@pytest.mark.parametrize("mode", ["most", "ALL", "", 1, None, True])
def test_an_unknown_x_match_is_refused(mode: object) -> None:
    node = Node("q")
    with pytest.raises(ArgumentsError, match="x-match"):
        node.bind("amq.headers", "q", "", {"x-match": mode})
    assert node.bind("amq.direct", "q", "", {"x-match": mode})  # where it means nothing


# ── several exchanges ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_exchanges_in_a_circle_are_passed_once() -> None:
    node = Node("a", "b")
    for name in ("x", "y", "z"):
        node.exchange(name, "fanout")
    for source, destination in (("x", ">y"), ("y", ">z"), ("z", ">x"), ("x", ">x"), ("z", "a"), ("x", "b"), ("y", "a")):
        node.bind(source, destination)
    assert node.table.route("x", "") == ("b", "a")
    assert node.table.route("z", "") == ("a", "b")


def test_an_alternate_is_asked_for_each_exchange_on_the_way() -> None:
    node = Node("rest")
    node.exchange("first", "fanout", alternate="never")
    node.exchange("second", "direct", alternate="unrouted")
    node.exchange("unrouted", "fanout")
    node.exchange("never", "fanout")
    node.bind("first", ">second")
    node.bind("unrouted", "rest")
    node.bind("never", "rest")
    assert node.table.route("first", "k") == ("rest",)
    node.unbind("unrouted", "rest")
    assert node.table.route("first", "k") == ()  # "second" was a destination


@pytest.mark.parametrize("alternate", ["missing", "x", ""])
def test_an_alternate_that_leads_nowhere_loses_the_message(alternate: str) -> None:
    """Missing, the exchange itself, or the default exchange: that one has no bindings, and a broker says so too."""
    node = Node("k")
    node.exchange("x", alternate=alternate)
    assert node.table.route("x", "k") == ()


def test_an_internal_exchange_takes_from_exchanges_and_from_the_node_only() -> None:
    node = Node("q")
    node.exchange("inner", "fanout", internal=True)
    node.exchange("outer", "fanout")
    node.bind("outer", ">inner")
    node.bind("inner", "q")
    assert node.table.route("outer", "") == ("q",)
    for _ in range(2):  # no cache gets in between
        assert node.table.route("inner", "", from_node=True) == ("q",)
        with pytest.raises(AccessRefusedError, match="internal exchange 'inner'"):
            node.table.route("inner", "")


def test_carbon_copies_are_further_keys() -> None:
    node = Node("a", "b", "c")
    headers = {"CC": ["b", 7], "BCC": ["c", "a"]}
    keys = ("a", *carbon_copies(headers))
    assert keys == ("a", "b", "c", "a")
    assert node.table.route_all("", keys, headers) == ("a", "b", "c")
    assert carbon_copies({}) == ()
    with pytest.raises(ArgumentsError, match="CC"):
        carbon_copies({"CC": "b"})


# ── the cache, and other threads ──────────────────────────────────────────────────────────────────────────────────────


def test_a_message_with_several_keys_has_them_all_in_each_exchange_on_the_way() -> None:
    node = Node("q", "behind", "rest")
    node.exchange("unrouted", "fanout")
    node.exchange("first", "topic", alternate="unrouted")
    node.exchange("second", "topic")
    node.bind("first", ">second", "#.d")
    node.bind("second", "behind", "a.#")
    node.bind("unrouted", "rest")
    assert node.table.route_all("first", ("b.d", "a")) == ("behind",), "by one key there, by the other one from there"
    assert node.table.route_all("first", ("b", "c")) == ("rest",)
    assert node.table.route_all("first", ("b.d",)) == ()
    assert node.table.route("first", "a.d") == ("behind",)


def test_the_cache_is_bounded() -> None:
    node = Node("q", *(f"q{number}" for number in range(CACHED_QUEUES)))
    node.bind("amq.topic", "q", "#")
    for number in range(CACHED_ROUTES + 10):
        assert node.table.route("amq.topic", str(number)) == ("q",)
    assert 0 < len(node.table._cache) <= CACHED_ROUTES
    for number in range(CACHED_QUEUES):
        node.bind("amq.topic", f"q{number}", "#")
    assert len(node.table.route("amq.topic", "k")) == CACHED_QUEUES + 1
    assert not node.table._cache


EXCHANGES = st.sampled_from(["d", "f", "t", "h"])
DESTINATIONS = st.sampled_from(["a", "b", "c", ">d", ">f", ">t", ">h"])
TYPES = {"d": "direct", "f": "fanout", "t": "topic", "h": "headers"}
KEYS = st.sampled_from(["", "x", "x.y", "#", "x.*"])
BINDINGS: st.SearchStrategy[Any] = st.tuples(EXCHANGES, DESTINATIONS, KEYS, st.just({}))
BINDINGS |= st.tuples(st.just("h"), DESTINATIONS, st.just(""), st.sampled_from([{"k": 1}, {"k": 2, "x-match": "any"}]))
STEPS = st.one_of(
    st.tuples(st.sampled_from(["bind", "bind", "unbind"]), BINDINGS),
    st.tuples(st.sampled_from(["queue", "drop queue"]), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["exchange", "drop exchange"]), EXCHANGES),
)


class Model:
    """Lists of what is there; every message goes through all of them."""

    def __init__(self, alternates: dict[str, str]) -> None:
        self.alternates = alternates
        self.there: set[str] = set()
        self.bindings: list[tuple[str, str, str, dict[str, Any]]] = []

    def drop(self, name: str) -> None:
        self.there.discard(name)
        self.bindings = [b for b in self.bindings if name not in (b[1], ">" + b[0])]

    def matches(self, binding: tuple[str, str, str, dict[str, Any]], key: str, headers: Mapping[str, Any]) -> bool:
        exchange, _, pattern, arguments = binding
        if exchange == "d":
            return pattern == key
        if exchange == "t":
            return takes(topic_words(pattern), topic_words(key))
        return exchange == "f" or not arguments or headers.get("k") == arguments["k"]

    def route(self, start: str, key: str, headers: Mapping[str, Any]) -> set[str]:
        queues, seen, waiting = set(), {start}, [start]
        for exchange in waiting:
            found = [b[1] for b in self.bindings if b[0] == exchange and self.matches(b, key, headers)]
            if not found and exchange in self.alternates:
                found = [">" + self.alternates[exchange]]
            for destination in found:
                if not destination.startswith(">"):
                    queues.add(destination)
                elif destination in self.there and destination[1:] not in seen:
                    seen.add(destination[1:])
                    waiting.append(destination[1:])
        return queues


@given(steps=st.lists(STEPS, max_size=40), alternates=st.dictionaries(EXCHANGES, EXCHANGES, max_size=2))
def test_routing_agrees_with_the_model_whatever_comes_and_goes(
    steps: list[tuple[str, Any]], alternates: dict[str, str]
) -> None:
    node, model = Node("a"), Model(alternates)
    model.there.add("a")

    def declare(name: str) -> None:
        node.exchange(name, TYPES[name], alternate=alternates.get(name))
        model.there.add(">" + name)

    for name in TYPES:
        declare(name)
    for verb, what in steps:
        match verb:
            case "bind" if {">" + what[0], what[1]} <= model.there:
                assert node.bind(*what) == (what not in model.bindings)
                model.bindings += [what] if what not in model.bindings else []
            case "bind":
                with pytest.raises(NotFoundError):
                    node.bind(*what)
            case "unbind":
                node.unbind(*what)
                model.bindings = [binding for binding in model.bindings if binding != what]
            case "queue":
                node.queue(what)
                model.there.add(what)
            case "drop queue":
                node.definitions.vhost("/").delete_queue(what)
                model.drop(what)
            case "exchange":
                declare(what)
            case _:
                node.definitions.vhost("/").delete_exchange(what)
                model.drop(">" + what)
        node.definitions.check_invariants()
        for exchange in TYPES:
            for key, headers in (("x", {}), ("x.y", {"k": 1}), ("", {"k": 2})):
                if ">" + exchange in model.there:
                    routed = node.table.route(exchange, key, headers)
                    assert len(routed) == len(set(routed))
                    assert set(routed) == model.route(exchange, key, headers)
                else:
                    with pytest.raises(NotFoundError):
                        node.table.route(exchange, key, headers)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "arguments"), [("direct", {}), ("fanout", {}), ("topic", {}), ("headers", {"k": 1})])
def test_readers_in_other_threads_see_what_stays_while_the_rest_changes(kind: str, arguments: dict[str, Any]) -> None:
    node = Node("stays", *(f"q{number}" for number in range(20)))
    node.bind(f"amq.{kind}", "stays", "a.b", arguments)
    table, stop, wrong = node.table, threading.Event(), list[object]()

    def read() -> None:
        try:
            while not stop.is_set():
                for key in ("a.b", "a.b", "a.c"):
                    routed = table.route(f"amq.{kind}", key, {"k": 1})
                    if ("stays" in routed) != (key == "a.b" or kind in ("fanout", "headers")):
                        wrong.append(routed)
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(300):
            change = node.bind if turn % 2 == 0 else node.unbind
            for number in range(20):
                change(f"amq.{kind}", f"q{number}", ("a.b", "a.*", "#", "a.b.c")[number % 4], arguments)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong
    assert table.route(f"amq.{kind}", "a.b", {"k": 1}) == ("stays",)


@pytest.mark.broker
def test_a_broker_takes_and_leaves_the_same(broker: Broker) -> None:
    """The tables above, said to RabbitMQ: one queue for each, and what comes back was left."""
    broker.start()
    wrong = []
    with broker.channel() as channel:
        returned: list[str] = []
        channel.add_on_return_callback(lambda _, method, *__: returned.append(method.routing_key))
        channel.tx_select()  # a commit waits until all of its messages are where they go, or are on their way back

        def is_taken(exchange: str, key: str, headers: dict[str, Any] | None = None) -> bool:
            returned.clear()
            channel.basic_publish(exchange, key, b"", BasicProperties(headers=headers), mandatory=True)
            channel.tx_commit()
            channel.connection.process_data_events(time_limit=0)
            return not returned

        queue = channel.queue_declare("q").method.queue
        for pattern, taken, left in TOPICS:
            channel.queue_bind(queue, "amq.topic", pattern)
            if [key for key in taken + left if is_taken("amq.topic", key)] != taken:
                wrong.append(pattern)
            channel.queue_unbind(queue, "amq.topic", pattern)
        for arguments, headers, taken_too in HEADERS:
            if any(isinstance(value, float | tuple) for value in headers.values()):
                continue  # the client has no bytes for them
            channel.queue_bind(queue, "amq.headers", "", arguments)
            if is_taken("amq.headers", "", headers) != taken_too:
                wrong.append(f"{arguments} {headers}")
            channel.queue_unbind(queue, "amq.headers", "", arguments)
    assert not wrong


def test_the_first_message_that_an_alternate_exchange_loses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    node = Node("q")
    node.exchange("missing alternate", alternate="nowhere")
    node.exchange("unbound alternate", alternate="missing alternate")
    node.exchange("sound", alternate="amq.fanout")
    node.bind("amq.fanout", "q")
    for key in ("a", "b"):
        for name in ("missing alternate", "unbound alternate", "sound"):
            node.table.route(name, key)
    [dropped] = [record.getMessage() for record in caplog.records]
    assert dropped == (
        "exchange 'missing alternate' in vhost '/': a message is dropped: exchange 'nowhere' does not exist; "
        "the next ones are not logged"
    )


def test_the_first_message_lost_by_what_is_declared_anew_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    definitions = Definitions()
    vhost = definitions.vhost("/")
    exchange, queue = ExchangeDeclaration(vhost="/", name="e"), QueueDeclaration(vhost="/", name="q")
    for _ in range(2):
        definitions.declare_exchange(exchange)
        definitions.declare_queue(queue)
        for subject in (exchange, queue) * 2:
            vhost.missing_targets.note_drop(subject, "nowhere", "key")
        definitions.vhost("/").delete_exchange("e")
        definitions.vhost("/").delete_queue("q")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [str(exchange), str(queue)] * 2


def test_a_missing_alternate_exchange_is_logged_when_it_is_declared_or_imported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arguments = {"alternate-exchange": "missing"}
    with TestNode() as node:
        node.exchange("orders", "direct", arguments=arguments)
        node.exchange("orders", "direct", arguments=arguments)
        node.exchange("fine", "direct", arguments={"alternate-exchange": "amq.fanout"})
        imported = {"name": "imported", "vhost": "/", "type": "direct", "durable": True, "arguments": arguments}
        node.import_definitions({"exchanges": [imported]})
    told = "messages without a destination go to exchange 'missing', which does not exist"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"exchange '{name}' in vhost '/': {told}" for name in ("orders", "imported")
    ]
