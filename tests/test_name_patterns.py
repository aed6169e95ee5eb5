"""Patterns of permissions and policies: RabbitMQ's expressions, and none that takes for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.actors.engines.errors import ArgumentsError
from warren.actors.engines.name_patterns import NamePattern, _Ways, in_pythons_words, parser
from warren.actors.engines.permissions import Permissions
from warren.actors.engines.policies import Policy


def found(pattern: str, name: str) -> bool:
    return NamePattern(pattern).matches(name)


EXPLODING = [
    "^(a+)+$",
    "^(a|aa)+$",
    "^(a|a?)+$",
    "a*a*a*a*a*b",
    "(a?){28}a{28}!",
    ".*.*.*.*=",
    "^(?=(a*)*!)",
    "(.*){9}!",
]


@pytest.mark.parametrize("pattern", EXPLODING)
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    name = "a" * 254 + "c"
    assert not found(pattern, name)
    assert not Permissions(pattern, "", "").allow("configure", name)
    policy = Policy(kind="policy", vhost="/", name="p", pattern=pattern, definition={"max-length": 1})  # type: ignore[call-arg]
    assert not policy.matches("queue", name)


@pytest.mark.parametrize("pattern", ["(a*)*\\1", "(x|y)(a+)+\\1", "(?:a|b)++(a|aa)+", "((a{99}){99}|b)*"])
def test_what_might_and_cannot_be_gone_through_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(ArgumentsError, match=r"no regular expression: .*(for ever|too large)"):
        Permissions(pattern, "", "")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("^[[:alpha:]]+$", "abc", True),
        ("^[[:alpha:]]+$", "ab1", False),
        ("^[^[:digit:]x]$", "y", True),
        ("^[^[:digit:]x]$", "7", False),
        ("^a{,3}$", "aa", False),
        ("^a{,3}$", "a{,3}", True),
        ("^a{1,3}$", "aa", True),
        ("a\\z", "a\n", False),
        ("a\\Z", "a\n", True),
        ("^\\Qa.b\\E$", "a.b", True),
        ("^\\Qa.b\\E$", "axb", False),
        ("(?<one>a)b", "ab", True),
        ("(?<=a)b", "ab", True),
        ("(?<!a)b", "ab", False),
        ("^a\\hb$", "a\tb", True),
        ("^[]a]+$", "]a", True),
        ("^[^]a]$", "]", False),
        ("^[[a]$", "[", True),
        ("^[\\]a]$", "]", True),
        ("é", "é", True),
        ("^\\w\\W$", "é", True),
        ("^[\\w][^\\w]$", "é", True),
        ("^[[:upper:]]", "é", True),
        ("^.$", "é", False),
    ],
)
def test_patterns_are_those_of_pcre(pattern: str, name: str, matches: bool) -> None:
    assert found(pattern, name) == matches


def test_a_class_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentsError, match=r"unknown class name \[:letters:\]"):
        Permissions("[[:letters:]]", "", "")


LEAVES = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a\\n]", "^", "$", "\\b", "\\A", "\\Z", "(?<=a)", "(?<!ab)", "\\w", "\\S"]
)
PATTERNS = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.tuples(part, part).map("".join),
        st.tuples(part, part).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(part, st.sampled_from(["*", "+", "?", "{0,2}", "{2}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        part.map(lambda one: f"(?={one})"),
        part.map(lambda one: f"(?!{one})"),
        part.map(lambda one: f"(?i:{one})"),
        part.map(lambda one: f"(?ms:{one}$)"),
    ),
    max_leaves=6,
)


@given(pattern=PATTERNS, name=st.text("abA \n", max_size=6))
@settings(deadline=None)
def test_all_ways_at_once_find_what_re_finds(pattern: str, name: str) -> None:
    words = in_pythons_words(pattern).encode()
    try:
        expected = re.search(words, name.encode()) is not None
    except re.error:  # a look behind without a width
        return
    assert _Ways(parser.parse(words)).lead_through(name.encode()) == expected
