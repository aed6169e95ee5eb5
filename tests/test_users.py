"""Users, their passwords and what they may do."""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
from typing import Any

import pytest

from warren.actors.engines.declared.permissions import permissions_of, topic_permissions_of
from warren.actors.engines.declared.users import Users
from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, NotFoundError, PreconditionFailedError


@pytest.fixture
def users() -> Users:
    numbers = itertools.count(1)
    return Users(lambda count: bytes([next(numbers)]) * count)


def test_a_password_is_kept_as_salt_and_hash(users: Users) -> None:
    kept = users.add("alice", b"secret").password_hash
    assert kept == b"\1\1\1\1" + hashlib.sha256(b"\1\1\1\1secret").digest()
    assert users.authenticate("alice", b"secret").name == "alice"
    assert repr(kept) not in repr(users["alice"])


@pytest.mark.parametrize(("name", "password"), [("alice", b"Secret"), ("alice", b""), ("bob", b"secret"), ("", b"")])
def test_a_refusal_does_not_tell_whether_there_is_such_a_user(users: Users, name: str, password: bytes) -> None:
    users.add("alice", b"secret")
    with pytest.raises(AccessRefusedError) as refused:
        users.authenticate(name, password)
    assert str(refused.value) == f"user '{name}' - invalid credentials"


def test_a_user_without_a_password_cannot_log_in(users: Users) -> None:
    users.add("alice", b"secret")
    users.change_password("alice", None)
    for password in (b"", b"secret"):
        with pytest.raises(AccessRefusedError):
            users.authenticate("alice", password)
    users.change_password("alice", b"new")
    assert users.authenticate("alice", b"new")


def test_users_come_and_go_by_name(users: Users) -> None:
    users.add("bob", b"b", ["management"])
    users.add("alice", b"a")
    users.set_tags("alice", ["administrator"])
    assert [(user.name, user.tags) for user in users] == [("alice", ("administrator",)), ("bob", ("management",))]
    with pytest.raises(PreconditionFailedError, match="user 'bob' exists already"):
        users.add("bob", b"other")
    with pytest.raises(ArgumentsError, match="cannot be empty"):
        users.add("", b"")
    users.set_permissions("bob", "/", "", "", "")
    users.delete("bob")
    assert not users.may_use("bob", "/")
    for change in (users.delete, lambda name: users.set_tags(name, [])):
        with pytest.raises(NotFoundError, match="no user 'bob'"):
            change("bob")


def test_patterns_are_searched_for_and_an_empty_one_matches_nothing(users: Users) -> None:
    users.add("bob", b"")
    users.set_permissions("bob", "shop", configure="^bob-", write="^(amq\\.default|orders)$", read="")
    users.check("bob", "shop", "queue", "bob-1", "configure")
    users.check("bob", "shop", "exchange", "", "write")
    users.check("bob", "shop", "exchange", "orders", "write")
    with pytest.raises(AccessRefusedError, match=r"^access to queue 'q-bob-1' in vhost 'shop' refused for user 'bob'$"):
        users.check("bob", "shop", "queue", "q-bob-1", "configure")
    with pytest.raises(AccessRefusedError, match="'bob-1'"):
        users.check("bob", "shop", "queue", "bob-1", "read")
    with pytest.raises(AccessRefusedError, match=r"exchange 'amq\.default'"):
        users.check("bob", "/", "exchange", "", "write")
    assert (users.may_use("bob", "shop"), users.may_use("bob", "/")) == (True, False)
    users.clear_permissions("bob", "shop")
    assert not users.may_use("bob", "shop")


def test_topic_permissions_hold_where_there_are_any(users: Users) -> None:
    users.add("b.b", b"")
    users.check_topic("b.b", "/", "amq.topic", "anything", "write")
    users.set_topic_permissions("b.b", "/", "amq.topic", write="^{username}-{vhost}-", read=".*")
    users.check_topic("b.b", "/", "amq.topic", "b.b-/-x", "write")
    users.check_topic("b.b", "/", "other", "anything", "write")
    with pytest.raises(
        AccessRefusedError,
        match=r"^access to topic 'bxb-/-x' in exchange 'amq\.topic' in vhost '/' refused for user 'b\.b'$",
    ):
        users.check_topic("b.b", "/", "amq.topic", "bxb-/-x", "write")
    users.clear_topic_permissions("b.b", "/")
    users.check_topic("b.b", "/", "amq.topic", "anything", "write")


def test_a_vhost_that_goes_takes_its_permissions_along(users: Users) -> None:
    users.add("bob", b"")
    for vhost in ("a", "b"):
        users.set_permissions("bob", vhost, ".*", ".*", ".*")
        users.set_topic_permissions("bob", vhost, "amq.topic", ".*", ".*")
    users.forget_vhost("a")
    assert list(users.permissions("bob")) == ["b"]
    assert [one["vhost"] for one in users.to_json()["topic_permissions"]] == ["b"]


def put_all(users: Users, parts: dict[str, list[Any]]) -> None:
    for item in parts.get("users", []):
        users.put(users.from_json(item))
    for item in parts.get("permissions", []):
        users.grant(item["user"], item["vhost"], permissions_of(item))
    for item in parts.get("topic_permissions", []):
        users.grant_topics(item["user"], item["vhost"], item["exchange"], topic_permissions_of(item))


def test_what_is_written_of_users_is_read_again(users: Users) -> None:
    users.add("alice", b"secret", ["administrator", "custom"])
    users.set_limits("alice", {"max-connections": 3, "max-channels": -1})
    users.set_permissions("alice", "/", ".*", "^a", "")
    users.set_topic_permissions("alice", "/", "amq.topic", "^x", ".*")
    other = Users(bytes)
    put_all(other, users.to_json())
    assert other.to_json() == users.to_json()
    assert other.authenticate("alice", b"secret").tags == ("administrator", "custom")
    assert other["alice"].limits == {"max-connections": 3, "max-channels": -1}


def test_users_of_other_ages_are_read(users: Users) -> None:
    md5 = base64.b64encode(b"salt" + hashlib.md5(b"saltold").digest()).decode()
    sha512 = base64.b64encode(b"salt" + hashlib.sha512(b"saltlong").digest()).decode()
    put_all(
        users,
        {
            "users": [
                {"name": "plain", "password": "text", "tags": "administrator, management"},
                {"name": "old", "password_hash": md5, "hashing_algorithm": "rabbit_password_hashing_md5", "tags": ""},
                {"name": "long", "password_hash": sha512, "hashing_algorithm": "rabbit_password_hashing_sha512"},
                {"name": "none", "password_hash": "", "limits": []},
            ]
        },
    )
    assert users.authenticate("plain", b"text").tags == ("administrator", "management")
    assert users.authenticate("old", b"old").tags == ()
    assert users.authenticate("long", b"long")
    with pytest.raises(AccessRefusedError):
        users.authenticate("none", b"")


def test_an_empty_password_is_never_right(users: Users) -> None:
    users.add("open", b"")
    with pytest.raises(AccessRefusedError):
        users.authenticate("open", b"")


PERMISSIONS = {"user": "kept", "vhost": "/", "configure": "", "write": "", "read": ""}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"users": [{}]}, "a user without a name"),
        ({"users": ["bob"]}, "a user without a name"),
        ({"users": [{"name": ""}]}, "cannot be empty"),
        ({"users": [{"name": "\udc80"}]}, "surrogates"),
        ({"users": [{"name": "b", "password_hash": "?"}]}, "user 'b': password_hash is not base64"),
        ({"users": [{"name": "b", "hashing_algorithm": "rot13"}]}, "user 'b': hashing_algorithm 'rot13' is not one of"),
        ({"users": [{"name": "b", "tags": [1]}]}, "user 'b': tags are a list of strings"),
        ({"users": [{"name": "b", "limits": [1]}]}, "user 'b': limits are an object"),
        (
            {"users": [{"name": "b", "limits": {"max-queues": 1}}]},
            "limit 'max-queues' is not one of max-connections, max",
        ),
        ({"users": [{"name": "b", "limits": {"max-channels": "1"}}]}, "max-channels is a number, not '1'"),
        ({"permissions": [PERMISSIONS | {"user": "x"}]}, "no user 'x'"),
        ({"permissions": [{"user": "kept", "vhost": "/", "configure": ""}]}, "permissions of 'kept' without 'write'"),
        ({"permissions": [PERMISSIONS | {"configure": "("}]}, r"no regular expression: '\('"),
        ({"permissions": [PERMISSIONS | {"read": None}]}, "a pattern is a text"),
        ({"permissions": [PERMISSIONS | {"read": "^[[:letter:]]+$"}]}, r"unknown class name \[:letter:\]"),
        ({"topic_permissions": [PERMISSIONS | {"exchange": "x", "write": "x" * 1001}]}, "a pattern is a text"),
    ],
)
def test_what_no_user_and_no_permission_can_be_changes_nothing(
    users: Users, parts: dict[str, list[Any]], why: str
) -> None:
    users.add("kept", b"")
    before = users.to_json()
    with pytest.raises((ArgumentsError, NotFoundError), match=why):
        put_all(users, parts)
    assert users.to_json() == before


def test_answers_are_of_the_permissions_of_the_moment(users: Users) -> None:
    """Asked by several threads while they change: what was allowed before a change is not after it."""
    users.add("bob", b"")
    users.set_permissions("bob", "/", ".*", ".*", ".*")
    ended = threading.Event()
    wrong: list[str] = []

    def ask() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            try:
                users.check("bob", "/", "queue", f"q{number % 10_000}", "read")
                users.check_topic("bob", "/", "amq.topic", f"k{number % 10_000}", "write")
            except AccessRefusedError:
                pass
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        for pattern, allowed in (("^x", False), ("^q", True)):
            users.set_permissions("bob", "/", "", "", pattern)
            users.set_topic_permissions("bob", "/", "amq.topic", pattern, "")
            for number in range(5):
                if allowed:
                    users.check("bob", "/", "queue", f"q{number}", "read")
                else:
                    with pytest.raises(AccessRefusedError):
                        users.check("bob", "/", "queue", f"q{number}", "read")
        users.to_json()
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
