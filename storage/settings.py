"""The engine's settings, under RabbitMQ's own names.

Defaults are the numbers of the notes that the project started from (16384-entry segments, a journal of 65536, io
batches of 2048); :data:`RABBITMQ_3_10` holds that version's numbers and habits, so that an engine under this profile
answers as a RabbitMQ 3.10.8 does, call by call and byte by byte.

Here too are the checks of single settings, for all classes that hold settings: each raises :class:`SettingsError` with
the setting's name and what it must be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from warren.storage.errors import SettingsError, shown

REL_SEQ_BITS = 14
"""A segment record numbers its message in 14 bits: a segment cannot hold more than 16384."""


Check: TypeAlias = "Callable[[object, attrs.Attribute[Any], Any], None]"
"""A validator for ``attrs.field``."""


def whole(name: str, value: object, least: int) -> int:
    """``value``, a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{name} must be a whole number, not {shown(value)}")
    if value < least:
        raise SettingsError(f"{name} must be at least {least}, not {value}")
    return value


def at_least(least: int) -> Check:
    """A whole number of at least ``least``."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        whole(attribute.name, value, least)

    return check


def between(least: int, most: int) -> Check:
    """A whole number from ``least`` to ``most``."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if whole(attribute.name, value, least) > most:
            raise SettingsError(f"{attribute.name} must be at most {most}, not {shown(value)}")

    return check


def one_of(*choices: str) -> Check:
    """Check that a value is one of ``choices``."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in choices:
            raise SettingsError(f"{attribute.name} must be one of {', '.join(map(repr, choices))}, not {shown(value)}")

    return check


def yes_or_no(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{attribute.name} must be True or False, not {shown(value)}")


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of an engine. Sizes in bytes, counts in messages or actions, times in seconds."""

    segment_entry_count: int = attrs.field(default=16384)
    """Messages a segment file holds; an existing vhost's own ``.config`` goes before it."""

    queue_index_max_journal_entries: int = attrs.field(default=65536, validator=at_least(1))
    """More unflushed actions than this flush the journal into the segments."""

    queue_index_embed_msgs_below: int = attrs.field(default=4096)
    """Payload and encoded properties together below this: the message lives in the index, not in the store."""

    msg_store_io_batch_size: int = attrs.field(default=2048)
    """Betas are pushed to delta only where at least this many are too many."""

    msg_store_credit_disc_bound: tuple[int, int] = attrs.field(default=(4000, 800))
    """Credit a queue has towards a store: what it starts with, and how much is given back at a time."""

    msg_store_file_size_limit: int = attrs.field(default=16_777_216, validator=at_least(1))
    """A store file that has reached this is closed and the next one opened."""

    msg_store_garbage_fraction: float = 0.5
    """Garbage above this share of the files lets two of them be combined."""

    queue_explicit_gc_run_operation_threshold: int = 0
    """Publishing and requeueing calls that pass before one reduces memory use; 0: every one does."""

    reduce_after_every_operation: bool = True
    """Fetch, ack and drop reduce memory use too."""

    deliver_with_publish: bool = False
    """The deliver record is written with the publish (3.10), not when the message is delivered."""

    previous_ram_counts: bool = True
    """ram_duration averages with the counts of the report before (3.10 leaves them at 0)."""

    target_ram_count_max: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    """Messages that a queue keeps in RAM at most, however much memory there is; ``None``: as the memory allows."""

    delta_read_max: int | None = None
    """Messages that one load from delta reads at most; ``None``: all to the segment's end."""

    delta_read_ahead: int = 0
    """Messages that delta loads ahead of the fetch that needs them: Q3 is refilled once it holds no more than this."""

    delta_read_min: int = attrs.field(default=64, validator=at_least(1))
    """Messages that one load from delta may bring into RAM whatever the target, with ``page_inside_segments``: so
    many that are too many are left until the target falls."""

    page_inside_segments: bool = True
    """Delta may begin inside a segment: what is too much in RAM goes, down to Q3's oldest message. (3.10 leaves there
    what is left of the head's segment.)"""

    page_embedded_acks: bool = True
    """Pending acks whose payload is in the index are paged like others (3.10 keeps them in RAM)."""

    rate_average_half_life_s: float = 5.0
    rate_calculation_threshold: int = 100
    """Messages in and out after which the rates are recalculated without waiting for a report."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.segment_entry_count <= 1 << REL_SEQ_BITS:
            raise SettingsError(f"segment_entry_count must be 1 … {1 << REL_SEQ_BITS}, not {self.segment_entry_count}")
        initial, more_after = self.msg_store_credit_disc_bound
        if not 0 < more_after <= initial:
            raise SettingsError(
                "msg_store_credit_disc_bound must be (initial, more_after) with 0 < more_after <= initial, "
                f"not {(initial, more_after)}"
            )


RABBITMQ_3_10 = Settings(
    segment_entry_count=2048,
    queue_index_max_journal_entries=32768,
    msg_store_io_batch_size=4096,
    queue_explicit_gc_run_operation_threshold=1000,
    reduce_after_every_operation=False,
    deliver_with_publish=True,
    previous_ram_counts=False,
    delta_read_max=2048,
    page_inside_segments=False,
    page_embedded_acks=False,
)
"""The profile ``rabbitmq-3.10``."""

PROFILES = {"default": Settings(), "rabbitmq-3.10": RABBITMQ_3_10}
