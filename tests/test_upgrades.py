"""Directories that earlier warrens have written are opened, read and worked on by this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_tools import warren as run
from tests.support.release_directory import (
    BIG,
    RELEASES,
    STATES,
    SUFFIX,
    UNIQUE_KEY,
    Contents,
    files_of,
    looked_at,
    made,
    opened,
    read_archive,
)
from tests.support.runtime_tools import DATA, HandNode
from tests.support.tried import Count, Tried
from warren.storage.data_version import FILE_NAME, FORMAT, WARREN_VERSION, read_version

ARCHIVES = sorted(RELEASES.glob(f"*{SUFFIX}"))
NAMES = [archive.name.removesuffix(SUFFIX) for archive in ARCHIVES]
EACH = [
    pytest.param((name, state), marks=[] if name == WARREN_VERSION else pytest.mark.slow, id=f"{name} {state}")
    for name in NAMES
    for state in STATES
]


@pytest.fixture(scope="module")
def archives() -> dict[str, tuple[Contents, dict[str, Any]]]:
    return {archive.name.removesuffix(SUFFIX): read_archive(archive) for archive in ARCHIVES}


Archives = dict[str, tuple[Contents, dict[str, Any]]]


@pytest.mark.slow
def test_the_present_version_has_an_archive_which_is_what_this_code_writes(archives: Archives) -> None:
    """Fails where the code writes something else than when the archive was made."""
    remedy = (
        "what is written has changed: where an earlier warren could not go on with it, or would get it wrong, raise "
        "FORMAT in storage/data_version.py (docs/upgrading.md says how); then run "
        "`python -m tests.support.release_directory`"
    )
    contents, manifest = archives[WARREN_VERSION]
    now, now_says = made()
    for state in now:
        assert now[state].keys() == contents[state].keys(), f"{state}: {remedy}"
        other = [path for path, data in now[state].items() if data != contents[state][path]]
        assert not other, f"{state}: {other}: {remedy}"
    assert now_says == manifest, remedy


def test_everything_that_is_in_a_data_directory_is_a_feature_that_is_said(archives: Archives) -> None:
    """A new kind of file must be named among ``FEATURES``, which an older warren checks."""
    contents, _ = archives[WARREN_VERSION]
    known = {
        "msg_stores": "a broker's",
        "topics": "topics",
        "warren.definitions.json": "definitions",
        "warren.definitions.log": "definitions",
        "warren.delayed": "delayed",
        "warren.queues": "keys",
        FILE_NAME: "a broker's",
    }
    found = {path.removeprefix(f"{DATA}/").partition("/")[0] for paths in contents.values() for path in paths}
    assert found == set(known)
    version = read_version(files_of(contents["closed"]), DATA)
    assert version is not None
    assert version.numbers == FORMAT
    assert {feature for feature in known.values() if feature != "a broker's"} <= set(version.features)


def _within(found: Any, kept: Any, where: str = "") -> None:
    """All that was kept is found; a later warren may say more of it."""
    if isinstance(kept, dict):
        for key, value in kept.items():
            assert key in found, f"{where}: no {key}"
            _within(found[key], value, f"{where}/{key}")
    elif isinstance(kept, list) and where.startswith("/definitions/"):
        now = [json.loads(one) for one in found]
        for one in map(json.loads, kept):
            assert any(one.items() <= other.items() for other in now), f"{where}: {one} among {now}"
    else:
        assert found == kept, where


@pytest.fixture(params=EACH)
def directory(request: pytest.FixtureRequest, archives: Archives) -> Iterator[tuple[HandNode, dict[str, Any], Any]]:
    """A node in a directory of an earlier warren, its manifest, and what should be inside."""
    name, state = request.param
    contents, manifest = archives[name]
    scene = opened(files_of(contents[state]), manifest)
    scene.run()
    yield scene, manifest, manifest["inside"][state]
    scene.node.close()


def bodies(scene: HandNode) -> dict[tuple[str, str], list[bytes]]:
    return {
        (vhost, queue.name): [message.body for message in queue.browse()]
        for vhost in scene.node.vhosts()
        for queue in scene.node.vhost(vhost).queues()
        if queue.name != "stream"
    }


def work(scene: HandNode) -> dict[tuple[str, str], list[bytes]]:
    """Take the first message of every queue, and append one at its end. Return what is there then."""
    wanted = bodies(scene)
    for (vhost, name), there in wanted.items():
        queue = scene.node.vhost(vhost).queue(name, passive=True)
        wanted_first = there[0] if there else None
        delivery = queue.get()
        assert (delivery is None) == (not there)
        if delivery is not None:
            there.remove(delivery.body)
            if name != "jobs":  # whose first one waits
                assert delivery.body == wanted_first
            delivery.ack()
        queue.publish_many([b"new", BIG]).wait()
        scene.run()
        there += [b"new", BIG]
    return wanted


@pytest.mark.slow
def test_what_an_earlier_warren_wrote_is_all_there_and_goes_on(
    directory: tuple[HandNode, dict[str, Any], Any], tried: Count
) -> None:
    scene, manifest, inside = directory
    version = read_version(scene.files, DATA)
    assert version is not None
    assert version.numbers == FORMAT
    _within(looked_at(scene.node, manifest["steps"]), inside)
    before = work(scene)
    scene.node.close()
    again = opened(scene.files, manifest, 2)
    again.run()
    assert bodies(again) == before
    if "topics" in manifest["steps"]:
        _read_topic(again, inside, first=True)
    last = opened(again.kill(), manifest, 3)
    last.run()
    assert bodies(last) == before
    if "topics" in manifest["steps"]:
        _read_topic(last, inside, first=False)
    last.node.close()
    tried(Tried.UPGRADES, 1)


def _read_topic(scene: HandNode, inside: Any, *, first: bool) -> None:
    """A group resumes at its position."""
    topic = scene.node.topic("events")
    if first:
        left = sum(inside["topic"]["lags"]["billing"].values())
        assert len(list(topic.read("billing"))) == left > 0
        topic.append(b"appended", key="order-99").wait()
        audit = [record.body for record in topic.read("audit")]
        assert len(audit) == sum(inside["topic"]["lags"]["audit"].values()) + 1
        assert b"appended" in audit
    assert {record.body for record in topic.find("order-99")} == {b"appended"}
    assert [record.body for record in topic.find("order-3")] == [b"e3"]


@pytest.mark.slow
def test_what_waits_in_an_earlier_warrens_directory_comes_in_its_time(
    directory: tuple[HandNode, dict[str, Any], Any],
) -> None:
    scene, manifest, _ = directory
    node, steps = scene.node, manifest["steps"]
    if "users" in steps:
        assert node.authenticate("bob", "secret")["name"] == "bob"
    if "delayed" in steps:
        scene.advance(40)
        assert [message.body for message in node.queue("reminders").browse()] == [b"now", b"in a minute"]
        scene.advance(21)
        assert [message.body for message in node.queue("reminders").browse()] == [b"now", b"in a minute", BIG]
    if "retries" in steps:
        jobs = node.queue("jobs", passive=True)
        scene.advance(30)
        assert jobs.stats()["messages_retrying"] == 0
        counts = {delivery.body: delivery.delivery_count for delivery in (jobs.get(), jobs.get()) if delivery}
        assert counts == {b"fails": 2, b"waits": 1}
    if "unique" in steps:
        confirm = node.queue("once", passive=True).publish(b"once more", unique=UNIQUE_KEY)
        confirm.wait()
        assert confirm.duplicate
        free = node.queue("once", passive=True).publish(b"done again", unique="done")
        free.wait()
        assert not free.duplicate


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_earlier_warrens_directory_is_read_by_the_commands(name: str, archives: Archives, tmp_path: Path) -> None:
    contents, manifest = archives[name]
    for path, data in contents["closed"].items():
        target = tmp_path / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    place = tmp_path / DATA.removeprefix("/")
    before = sorted(str(path) for path in place.rglob("*"))
    found = run("verify", place)
    assert (found.exit_code, found.stderr) == (0, ""), found.stdout
    kept = manifest["inside"]["closed"]["queues"]["/"]["plain"]
    exported = run("export", place, "--queue", "plain", "--vhost", "/").stdout.splitlines()
    assert len(exported) == len(kept) > 0
    assert sorted(str(path) for path in place.rglob("*")) == before
