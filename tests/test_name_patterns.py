"""Patterns of permissions and policies: RabbitMQ's expressions, each within a bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.actors.engines.declared import name_patterns
from warren.actors.engines.declared.name_patterns import (
    NamePattern,
    UnsupportedPatternError,
    _Automaton,
    _parsed,
    _Part,
)
from warren.actors.engines.declared.permissions import Permissions
from warren.actors.engines.declared.policies import Policy
from warren.actors.engines.errors import ArgumentsError


def found(pattern: str, name: str) -> bool:
    return NamePattern(pattern).matches(name)


EXPLODING = [
    "^(a+)+$",
    "^(a|aa)+$",
    "^(a|a?)+$",
    "a*a*a*a*a*b",
    "(a?){28}a{28}!",
    "a?" * 60 + "a" * 60 + "!",
    ".*.*.*.*=",
    "^(?=(a*)*!)",
    "^(?!(a|aa)+c$)(?=.*b)",
    "(?:(?!.*(a|aa)+!).)*!",
    "(.*){9}!",
]


@pytest.mark.parametrize("pattern", EXPLODING)
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    name = "a" * 254 + "c"
    assert not found(pattern, name)
    assert not Permissions(pattern, "", "").allow("configure", name)
    policy = Policy(kind="policy", vhost="/", name="p", pattern=pattern, definition={"max-length": 1})
    assert not policy.matches("queue", name)


def test_each_state_of_an_expression_with_look_around_is_passed_once_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    monkeypatch.setattr(_Part, "_holds", lambda self, *about: passed.append(about) or True)
    automaton = _Automaton(_parsed("(?:(?!.*(a|aa)+!).)*!"))
    automaton.search(b"a" * 255)
    assert len(passed) <= 256 * automaton._count


@pytest.mark.parametrize("pattern", ["(a*)*\\1", "(x|y)(a+)+\\1", "(?:a|b)++(a|aa)+", "(?>a+)b"])
def test_what_needs_backtracking_is_refused(pattern: str) -> None:
    with pytest.raises(ArgumentsError, match=r"no regular expression: .*back references, possessive and atomic groups"):
        Permissions(pattern, "", "")


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{99}){99}|b)*",
        "(?:(?:a|aa|aaa){1,30}b?){10}!",
        "(?=a{999}b{9})",
        "(){999999999}",
        "((){1000}){1000}",
        "(){0,999999999}",
    ],
)
def test_an_expression_that_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(ArgumentsError, match="too large: more than 1000 states"):
        Permissions(pattern, "", "")


@pytest.mark.parametrize("part", ["a", "a|", "(?=a)", "[a]"])
def test_an_expression_that_is_too_long_is_refused_before_it_is_parsed(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_patterns, "_translated", None)
    with pytest.raises(UnsupportedPatternError, match="too large: more than 1000 states"):
        NamePattern(part * 4001)


def test_look_around_is_refused_where_only_re2_matches() -> None:
    with pytest.raises(re.error, match="look-around and back references are not supported here"):
        NamePattern("^(?!amq)", look_around=False)
    with pytest.raises(re.error, match="missing \\)"):
        NamePattern("(a", look_around=False)
    assert NamePattern("^Jobs$", look_around=False, any_case=True).matches("jOBS")


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
        ("^a$", "a\n", True),
        ("^a$", "a\nb", False),
        ("(?m)^a$", "b\na\nc", True),
        ("^a\\sb$", "a\vb", True),
        ("^[^\\S]$", "\v", True),
        ("(?i)^É$", "É", True),
        ("(?x) ^a # one\n b$", "ab", True),
        ("^(?!amq\\.).*", "amq.direct", False),
        ("^(?!amq\\.).*", "jobs", True),
        ("^((?!dead).)*$", "jobs.dead.1", False),
        ("^((?!dead).)*$", "jobs.deaf.1", True),
        (".*(?<!_dead)$", "jobs_dead", False),
        ("^jobs\\.(?!temp|(?=x)xy)", "jobs.xz", True),
        ("^jobs\\.(?!temp|(?=x)xy)", "jobs.xy", False),
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
    try:
        expected = re.search(pattern.encode(), name.encode()) is not None
    except re.error:  # a lookbehind without a fixed width
        return
    assert _Automaton(_parsed(pattern)).search(name.encode()) == expected
    if "\n" not in name:
        assert found(pattern, name) == expected
