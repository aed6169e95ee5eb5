"""A node's settings: their forms, what is refused and with what text, and the file that can hold them."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warren
import warren.aio
from warren import Config
from warren.actors.engines.alarms import MemRelative
from warren.actors.engines.node_settings import NodeSettings, RestartLimit, default_threads
from warren.actors.engines.settings_file import load_settings, topic_settings
from warren.config import SettingKeywords
from warren.storage.errors import SettingsError
from warren.storage.settings import RABBITMQ_3_10, Settings
from warren.storage.topic_settings import TopicSettings

PROJECT = Path(__file__).parent.parent
PATH = "/etc/warren.toml"
KEYS = [field.name for field in attrs.fields(NodeSettings)]


def load(text: str) -> tuple[NodeSettings, Settings]:
    return load_settings(text.encode(), PATH, Settings())[:2]


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_defaults_are_rabbitmqs() -> None:
    """As a broker without any configuration answered (its defaults.json); the rest are its source's constants."""
    settings = NodeSettings()
    assert settings.vm_memory_calculation_strategy == "rss"
    assert settings.vm_memory_high_watermark == 0.4
    assert settings.vm_memory_high_watermark_paging_ratio == 0.5
    assert settings.memory_monitor_interval == 2500
    assert settings.disk_free_limit == 50_000_000
    assert settings.credit_flow_default_credit == (400, 200)
    assert settings.queue_ram_report_interval_ms == 5000
    assert settings.hibernate_after_ms == 1000
    assert settings.sync_interval_ms == 200


@pytest.mark.parametrize(("cpu_count", "threads"), [(None, 2), (1, 2), (2, 3), (3, 4), (64, 4)])
def test_threads_follow_the_cores_up_to_four(cpu_count: int | None, threads: int) -> None:
    assert default_threads(cpu_count) == threads


@pytest.mark.parametrize(
    ("key", "given_value", "value"),
    [
        ("vm_memory_high_watermark", 0.7, 0.7),
        ("vm_memory_high_watermark", 1.0, 1.0),
        ("vm_memory_high_watermark", 0, 0),
        ("vm_memory_high_watermark", 2_000_000, 2_000_000),
        ("vm_memory_high_watermark", "2GB", 2_000_000_000),
        ("vm_memory_high_watermark", "512MiB", 512 << 20),
        ("vm_memory_high_watermark", "1024", 1024),
        ("vm_memory_high_watermark", {"relative": 1}, 1.0),
        ("vm_memory_high_watermark", {"absolute": "1k"}, 1024),
        ("vm_memory_high_watermark_paging_ratio", 0, 0.0),
        ("total_memory_available_override_value", "8G", 8 << 30),
        ("total_memory_available_override_value", None, None),
        ("disk_free_limit", 0, 0),
        ("disk_free_limit", "1GB", 10**9),
        ("disk_free_limit", {"mem_relative": 1.5}, MemRelative(1.5)),
        ("disk_free_limit", {"relative": 2}, MemRelative(2.0)),
        ("disk_free_limit", {"absolute": "5MB"}, 5_000_000),
        ("disk_free_limit", MemRelative(1.0), MemRelative(1.0)),
        ("credit_flow_default_credit", [10, 10], (10, 10)),
        ("credit_flow_default_credit", {"initial": 9, "more_after": 3}, (9, 3)),
        ("restart_limit", (0, 1), RestartLimit(0, 1.0)),
        ("restart_limit", {"max_restarts": 3, "within_s": 0.5}, RestartLimit(3, 0.5)),
        ("sync_interval_ms", 0, 0),
        ("sync", "always", "always"),
    ],
)
def test_a_value_is_brought_into_its_one_form(key: str, given_value: Any, value: Any) -> None:
    got = getattr(NodeSettings(**{key: given_value}), key)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("vm_memory_calculation_strategy", "erlang", "must be one of 'rss', 'allocated', not 'erlang'"),
        ("vm_memory_high_watermark", 1.01, "must be 0.0 … 1.0 of the total memory"),
        ("vm_memory_high_watermark", float("nan"), "must be a number, not nan"),
        ("vm_memory_high_watermark", {"relative": 2}, "must be 0.0 … 1.0 of the total memory"),
        ("vm_memory_high_watermark", {"absolute": 1}, "must not be 1, which is one byte"),
        ("vm_memory_high_watermark", 1, "must not be 1, which is one byte"),
        ("vm_memory_high_watermark", -1, "must be at least 0 bytes"),
        ("vm_memory_high_watermark", "0.4", "must be a number of bytes, or one with a unit such as '2GB'"),
        ("vm_memory_high_watermark", True, "must be a number of bytes"),
        ("vm_memory_high_watermark", {"relative": 0.4, "absolute": 1}, "must hold one of relative, absolute"),
        ("vm_memory_high_watermark", {"relative": "0.4"}, "must be a number, not '0.4'"),
        ("vm_memory_high_watermark", {"absolute": 0.4}, "must be a number of bytes"),
        ("vm_memory_high_watermark_paging_ratio", 1.0, "must be at least 0.0 and below 1.0, not 1.0"),
        ("vm_memory_high_watermark_paging_ratio", "half", "must be a number"),
        ("total_memory_available_override_value", 0, "must be at least 1, not 0"),
        ("total_memory_available_override_value", "2 GB", "must be a number of bytes"),
        ("memory_monitor_interval", 0, "must be at least 1, not 0"),
        ("memory_monitor_interval", 2.5, "must be a whole number, not 2.5"),
        ("disk_free_limit", "50mB", "must be a number of bytes"),
        ("disk_free_limit", {}, "must hold one of mem_relative, relative, absolute"),
        ("disk_free_limit", {"mem_relative": 10**400}, "must be a number"),
        ("disk_free_limit", 1.5, "must be a number of bytes"),
        ("disk_free_limit", {"mem_relative": -1.0}, "must be 0.0 … 1000000.0 times the memory, not -1.0"),
        ("credit_flow_default_credit", (0, 0), "must be at least 1, not 0"),
        ("credit_flow_default_credit", (10, 11), "must not give back more than it starts with"),
        ("credit_flow_default_credit", "ab", "must be (initial, more_after)"),
        ("credit_flow_default_credit", (1, 2, 3), "must be (initial, more_after)"),
        ("queue_ram_report_interval_ms", 0, "must be at least 1"),
        ("hibernate_after_ms", True, "must be a whole number, not True"),
        ("sync_interval_ms", -1, "must be at least 0, not -1"),
        ("threads", 0, "must be at least 1, not 0"),
        ("threads", 10**9, "must be at most 1024, not 1000000000"),
        ("restart_limit", (1, 0), "must be within more than 0 seconds"),
        ("restart_limit", (-1, 1), "must be at least 0, not -1"),
        ("restart_limit", {"max_restarts": 1}, "must be (max_restarts, within_s)"),
        ("sync", "never", "must be one of 'os', 'group', 'always', not 'never'"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_key_and_reason(key: str, value: Any, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"^{key} {re.escape(reason)}"):
        NodeSettings(**{key: value})


@given(
    st.sampled_from(KEYS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["relative", "absolute", "x"]), inner)
        ),
    ),
)
def test_whatever_it_is_given_it_takes_or_refuses(key: str, value: Any) -> None:
    try:
        settings = NodeSettings(**{key: value})
    except SettingsError as error:
        assert str(error).startswith(f"{key} must")  # noqa: PT017 — both ways are right
    else:
        assert attrs.evolve(settings) == settings  # its own form is one that it takes
        assert hash(settings) == hash(attrs.evolve(settings))


# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_settings_of_topics_that_are_none_by_default_can_be_given_so() -> None:
    given_none: dict[str, Any] = {"flush_disk_type": None, "store_path_root_dir": None, "store_path_commit_log": None}
    base = TopicSettings(flush_disk_type="ASYNC_FLUSH", store_path_commit_log="/log")
    assert topic_settings(given_none, base) == TopicSettings()
    assert Config.of(**given_none).topics == TopicSettings()


def test_an_empty_file_is_the_defaults() -> None:
    assert load("") == (NodeSettings(), Settings())
    assert load("[node]\n[engine]\n") == (NodeSettings(), Settings())


def test_a_file_sets_what_it_names_and_a_profile_the_rest() -> None:
    node, engine = load(
        """
        [node]
        vm_memory_high_watermark.absolute = "2GB"
        disk_free_limit = { mem_relative = 1.5 }
        restart_limit = { max_restarts = 1, within_s = 3 }
        credit_flow_default_credit = [40, 20]

        [engine]
        profile = "rabbitmq-3.10"
        delta_read_max = 10
        msg_store_credit_disc_bound = [50, 5]
        msg_store_garbage_fraction = 1
        reduce_after_every_operation = true
        """
    )
    assert node == NodeSettings(
        vm_memory_high_watermark=2_000_000_000,
        disk_free_limit=MemRelative(1.5),
        restart_limit=(1, 3),
        credit_flow_default_credit=(40, 20),
    )
    assert engine == attrs.evolve(
        RABBITMQ_3_10,
        delta_read_max=10,
        msg_store_credit_disc_bound=(50, 5),
        msg_store_garbage_fraction=1.0,
        reduce_after_every_operation=True,
    )
    assert type(engine.msg_store_garbage_fraction) is float


@pytest.mark.parametrize("settings", [Settings(), RABBITMQ_3_10])
def test_every_setting_of_the_engine_can_stand_in_a_file(settings: Settings) -> None:
    values = {key: value for key, value in attrs.asdict(settings).items() if value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    assert load("\n".join(["[engine]", *lines]))[1] == settings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[nodes]", "nodes is no table of a settings file; the nearest is [node]"),
        ("threads = 2", "threads stands in the table [node]"),
        ("node = 3", "node must be a table, [node], not 3"),
        ("[node]\nthread = 2", "[node] thread is no setting; the nearest is threads"),
        (
            "[node]\nvm_memory_watermark = 0.5",
            "[node] vm_memory_watermark is no setting; the nearest is vm_memory_high_watermark",
        ),
        (
            "[engine]\nsegment_entry_counts = 2",
            "[engine] segment_entry_counts is no setting; the nearest is segment_entry_count",
        ),
        ("[node]\nsegment_entry_count = 2", "[node] segment_entry_count stands in the table [engine]"),
        ("[engine]\nsync = 'os'", "[engine] sync stands in the table [node]"),
        ("[node]\nthreads = 0", "[node] threads must be at least 1, not 0"),
        ("[engine]\nsegment_entry_count = 0", "[engine] segment_entry_count must be 1 … 16384, not 0"),
        ("[engine]\nsegment_entry_count = '2'", "[engine] segment_entry_count must be a whole number, not '2'"),
        ("[engine]\nsegment_entry_count = true", "[engine] segment_entry_count must be a whole number, not True"),
        ("[engine]\ndelta_read_max = 1.5", "[engine] delta_read_max must be a whole number, not 1.5"),
        ("[engine]\ndeliver_with_publish = 1", "[engine] deliver_with_publish must be true or false, not 1"),
        ("[engine]\nrate_average_half_life_s = nan", "[engine] rate_average_half_life_s must be a number, not nan"),
        ("[engine]\nrate_average_half_life_s = 'x'", "[engine] rate_average_half_life_s must be a number, not 'x'"),
        (
            "[engine]\nmsg_store_credit_disc_bound = [1]",
            "[engine] msg_store_credit_disc_bound must be a list of 2 values",
        ),
        ("[engine]\nprofile = 'rabbitmq-4'", "[engine] profile must be one of 'default', 'rabbitmq-3.10'"),
        ("[engine]\nprofile = []", "[engine] profile must be one of 'default', 'rabbitmq-3.10'"),
        ("[node", "no TOML: Expected ']'"),
        ("[node]\nthreads = 1\nthreads = 2", "no TOML: Cannot overwrite a value"),
        ("x = " + "1" * 5_000, "no TOML: "),
        ("x = " + "[" * 50_000, "no TOML: "),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_path_key_and_reason(text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(f'{PATH}: {reason}')}"):
        load(text)


@pytest.mark.parametrize(
    "line",
    [
        "[node]\nthreads = ",
        "[node]\nsync = ",
        "[node]\nrecord = ",
        "[node]\nvm_memory_high_watermark = ",
        "[node]\nrestart_limit = ",
        "[engine]\nprofile = ",
        "[engine]\nsegment_entry_count = ",
        "[engine]\nmsg_store_credit_disc_bound = ",
        "[topics]\nbroker_ip1 = ",
        "[topics]\nmessage_delay_level = ",
        "[topics]\ndelete_when = ",
        "[topics]\nmax_index_num = ",
    ],
)
def test_an_error_is_a_line_and_not_the_file(line: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        load(f'{line}"{"x" * 9999}"')
    assert len(str(refusal.value)) < 500


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(SettingsError, match=rf"^{PATH}: no TOML: 'utf-8' codec can't decode byte 0xff"):
        load_settings(b"[node]\n# \xff", PATH, Settings())


def test_a_node_keeps_a_backlog_on_the_disk_unless_it_names_a_profile_or_says_so(tmp_path: Path) -> None:
    def engine(text: str = "", **settings: Any) -> Settings:
        (tmp_path / "warren.toml").write_text(text)
        return Config.of(tmp_path / "warren.toml", **settings).engine

    def most(text: str = "", **settings: Any) -> int | None:
        return engine(text, **settings).target_ram_count_max

    assert Config().engine == engine() == engine("[node]\nsync = 'os'\n")
    assert [engine(text).delta_read_max for text in ("", "[engine]\nprofile = 'default'\n")] == [4096, None]
    assert Config().engine.target_ram_count_max == Config.of(None).engine.target_ram_count_max == 24_576
    assert most() == most("[node]\nsync = 'os'\n[engine]\nsegment_entry_count = 2048\n") == 24_576
    assert most("[engine]\ntarget_ram_count_max = 9\n") == most(target_ram_count_max=9) == 9
    assert most("[engine]\nprofile = 'default'\n") is most("[engine]\nprofile = 'rabbitmq-3.10'\n") is None
    assert most(target_ram_count_max=None) is Config(engine=Settings()).engine.target_ram_count_max is None


@given(st.binary(max_size=40) | st.text(alphabet="[]nodegi=.\n\"'{}1", max_size=40).map(str.encode))
def test_whatever_a_file_holds_it_is_taken_or_refused(data: bytes) -> None:
    try:
        assert isinstance(load_settings(data, PATH, Settings())[0], NodeSettings)
    except SettingsError as error:
        assert str(error).startswith(f"{PATH}: ")  # noqa: PT017 — both ways are right


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_settings_page_has_every_setting_of_a_node_with_its_default() -> None:
    page = (PROJECT / "docs" / "settings.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| setting of a node \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    shown = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    said = {key: f"`{value!r}`" for key, value in attrs.asdict(NodeSettings(), recurse=False).items()}
    said |= {"threads": "cores + 1, at most `4`", "restart_limit": "`(5, 10.0)`"}
    assert shown == said
    for key in KEYS:
        assert f"**`{key}`**" in page


def test_the_keywords_that_type_checkers_know_are_the_settings() -> None:
    parts = (NodeSettings, Settings, TopicSettings)
    assert list(SettingKeywords.__annotations__) == [field.name for part in parts for field in attrs.fields(part)]
    for opening in (warren.open, warren.aio.open, Config.of):
        assert inspect.signature(opening).parameters["settings"].annotation == "Unpack[SettingKeywords]"
    assert (warren.open.__module__, warren.open.__qualname__) == ("warren.handles.node", "open")
    assert (warren.aio.open.__module__, warren.aio.open.__qualname__) == ("warren.aio.node", "open")
