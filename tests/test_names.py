"""Names with any characters, every way in: each is taken and comes back, or is one clear error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import pika
import pytest

import warren
from tests.support import cli_tools
from tests.support.management_tools import Api
from tests.support.names import AIO_WAYS, NAMES, WAYS
from tests.support.server_tools import served
from warren import management
from warren.errors import MessageError, WarrenError
from warren.values import messages

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What does something to a terminal, or is no text; but for tabs and newlines."""


REFUSED_BY_URL = {"empty": 405, "dots": 405, "256 bytes": 400, "256 bytes of 128 characters": 400}
UNSAFE_IN_JSON = re.compile("[\x00-\x1f\ud800-\udfff]")
"""Of what JSON says by an escape."""


@pytest.fixture(params=["alone", "guest"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[warren.Node]:
    if request.param == "alone":
        with warren.open(tmp_path / "node", sync="os") as one:
            yield one
        return
    with warren.open(tmp_path / "node", sync="os", share=True), warren.open(tmp_path / "node", share=True) as one:
        assert one.is_guest
        yield one


def taken(
    node: warren.Node, way: str, ways: Mapping[str, Callable[[warren.Node, str], object]] = WAYS
) -> dict[str, str]:
    """The names that a way takes; every other one is an error of ours."""
    found = {}
    for what, name in NAMES.items():
        try:
            ways[way](node, name)
        except WarrenError:
            continue
        found[what] = name
    return found


@pytest.mark.slow
def test_each_name_is_taken_or_is_a_clear_error_and_comes_back(node: warren.Node, tmp_path: Path) -> None:
    assert node.queue("kept").name
    found = {way: taken(node, way) for way in WAYS}
    node.queue("kept").publish(b"and goes on").wait()
    ordinary = NAMES.keys() - {"empty", "256 bytes", "256 bytes of 128 characters"}
    for way in ("queue", "exchange", "binding", "routing key", "message_id"):
        assert found[way].keys() - {"empty"} == ordinary - {"half of a surrogate pair"}, way
    assert found["vhost"].keys() == ordinary - {"half of a surrogate pair", "a byte that is no UTF-8"}
    assert found["topic"].keys() == found["group"].keys() == {"percent"}
    node.close()
    if (tmp_path / "node" / "warren.sock").exists():
        return  # the host has it still
    with warren.open(tmp_path / "node") as again:
        assert not again.failed_queues
        assert {one.name for one in again.queues()} >= set(found["queue"].values()) - {""}
        assert set(again.vhosts()) >= set(found["vhost"].values())
        assert {one["name"] for one in again.users()} >= set(found["user"].values())
        assert {one.body for one in again.queue("a\nb").browse()} == {b"x"}


@pytest.mark.slow
def test_asyncio_takes_the_names_that_threads_can_use(node: warren.Node) -> None:
    assert node.queue("kept").name
    for way in AIO_WAYS:
        assert taken(node, way, AIO_WAYS) == taken(node, way), way
    names = {one.name for one in node.queues()}
    assert {NAMES[what] for what in ("newline", "NUL", "escape", "HTML", "a byte that is no UTF-8")} <= names
    node.queue("kept").publish(b"and goes on").wait()


@pytest.mark.slow
def test_the_web_page_s_api_takes_every_name_and_says_it_as_json_that_no_browser_reads_as_html(tmp_path: Path) -> None:
    """A name that is no UTF-8 has a question mark there, as a program that reads JSON can have no such text."""
    with (
        warren.open(tmp_path / "node", sync="os") as node,
        management.serve(node, port=0) as server,
        Api(server.url) as api,
    ):
        for what, name in NAMES.items():
            if what == "half of a surrogate pair":
                continue  # no URL can say it
            part = quote(name, safe="", errors="surrogateescape")
            status = api.ask("PUT", f"/queues/%2F/{part}", {}).status
            assert status == REFUSED_BY_URL.get(what, 201), what
            if status == 201:
                assert api.get(f"/queues/%2F/{part}")["name"] == name.replace("\udcff", "?"), what
                assert name in {one.name for one in node.queues()}
        listed = httpx.get(f"{server.url}/api/queues", auth=("guest", "guest"))
        assert listed.headers["content-type"].startswith("application/json")
        assert not UNSAFE_IN_JSON.search(listed.text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["queues"],
        ["inspect"],
        ["verify"],
        ["export", "--out", "-"],
        ["definitions"],
        *(["ctl", f"list_{what}"] for what in ("queues", "exchanges", "bindings", "users", "policies", "vhosts")),
    ],
    ids=" ".join,
)
def test_no_name_does_anything_to_a_terminal(every_name: Path, command: list[str]) -> None:
    head, *rest = command
    result = cli_tools.warren(head, every_name, *rest)
    assert result.exit_code == 0, result.output
    unsafe = UNSAFE.findall(result.output)
    if head in ("export", "definitions"):  # JSON, for programs: what turns the direction is data there
        unsafe = [one for one in unsafe if one < "\u2000"]
    assert not unsafe


@pytest.fixture(scope="module")
def every_name(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "node"
    with warren.open(path, sync="os") as node:
        node.queue("kept")
        for way in ("queue", "exchange", "vhost", "user", "policy", "binding", "routing key", "header", "message_id"):
            taken(node, way)
    return path


# ── what was found so ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_guest_goes_on_after_what_fits_into_no_frame(tmp_path: Path) -> None:
    """The next question had the wrong answer, or none."""
    with warren.open(tmp_path, sync="os", share=True), warren.open(tmp_path, share=True) as guest:
        queue = guest.queue("q")
        for way in ("vhost", "unique", "new password", "routing key", "group of a transaction"):
            with pytest.raises(WarrenError):
                WAYS[way](guest, NAMES["half of a surrogate pair"])
            queue.publish(b"x").wait(10)
            assert guest.queue("q").name == "q"
        assert len(queue) == 5


def test_a_guest_is_told_of_a_queue_whose_name_is_no_utf8(tmp_path: Path) -> None:
    """The list of all queues did not fit into the answer, and with one such queue a guest saw none."""
    name = NAMES["a byte that is no UTF-8"]
    with warren.open(tmp_path, sync="os", share=True) as host, warren.open(tmp_path, share=True) as guest:
        host.queue(name).publish(b"x").wait()
        host.queue("other")
        assert {one.name for one in guest.queues()} == {name, "other"}
        guest.bind(name, guest.exchange("e", "topic"), name)
        guest.exchange("e").publish(b"y", name).wait()
        assert [one.body for one in host.queue(name).browse()] == [b"x", b"y"]


def test_a_guest_declares_what_a_host_does(tmp_path: Path) -> None:
    """pamqp refuses names that AMQP allows."""
    with warren.open(tmp_path, sync="os", share=True) as host, warren.open(tmp_path, share=True) as guest:
        for name in ("a\nb", "a%b", "n" * 255):
            guest.bind(guest.queue(name), guest.exchange(name, "direct"), name)
            guest.exchange(name).publish(b"x", name).wait()
            assert [message.body for message in host.queue(name).browse()] == [b"x"]
            guest.delete_queue(name)
            guest.delete_exchange(name)


def test_a_routing_key_that_no_delivery_has_room_for_is_refused(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        node.queue("q")
        node.bind("q", node.exchange("e", "fanout"))
        node.exchange("e").publish(b"x", "n" * 255).wait()
        with pytest.raises(MessageError, match="more than 255 bytes"):
            node.exchange("e").publish(b"x", "n" * 256)


def test_a_stored_message_that_fits_into_no_delivery_does_not_keep_a_consumer_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, sync="os") as one:
        one.node.queue("q")
        one.node.bind("q", one.node.exchange("e", "fanout"))
        with monkeypatch.context() as patch:
            patch.setattr(messages, "MAX_SHORT_STRING_BYTES", 1 << 20)  # as an earlier version took it
            one.node.exchange("e").publish(b"x", "n" * 256).wait()
        refused = pytest.raises(pika.exceptions.ChannelClosedByBroker, match="routing_key does not fit")
        with one.channel() as channel, refused:  # pika has it with the answer, or next
            channel.basic_consume("q", lambda *_: None)
            channel.start_consuming()
        assert len(one.node.queue("q")) == 1
