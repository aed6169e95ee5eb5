"""Which files of the CommitLog go, and when: a decision, and nothing else.

A file is *old* when it was last written ``fileReservedTime`` hours ago. Old files go in the hours that ``deleteWhen``
names, and at any hour on a disk that is used beyond ``diskMaxUsedSpaceRatio``. On one that is nearly full, files that
are not old go too, if ``cleanFileForciblyEnable`` says so. The oldest go first, none after one that stays, a few at a
time, and never the last.

The caller may *hold* files (:data:`Hold`): files that are kept stay, whatever age or disk say; files that are let go
are deleted, whatever age and hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from warren.storage.topic_settings import TopicSettings

NEARLY_FULL_PERCENT: Final = 85.0
MOST_AT_A_TIME: Final = 10
"""Limits what one check deletes on a full disk before the next check."""
_HOUR_MS: Final = 3_600_000

Hold = Literal["kept", "let go", "not held"]


def expired_files(
    files: Sequence[tuple[int, int]],
    settings: TopicSettings,
    now_ms: int,
    hour: int,
    disk_used_percent: float,
    *,
    hold: Callable[[int], Hold] = lambda _: "not held",
) -> list[int]:
    """Bases of the files that go, of ``files``: base and time of the last write of each, oldest first.

    ``hold``: returns whether the file with that base is held.
    """
    is_time = (
        hour in map(int, settings.delete_when.split(";")) or disk_used_percent > settings.disk_max_used_space_ratio
    )
    forcibly = settings.clean_file_forcibly_enable and disk_used_percent > NEARLY_FULL_PERCENT
    reserved_ms = settings.file_reserved_time * _HOUR_MS
    expired: list[int] = []
    for base, modified_ms in files[:-1][:MOST_AT_A_TIME]:
        held = hold(base)
        is_due = is_time and (forcibly or now_ms >= modified_ms + reserved_ms)
        if held == "kept" or (held == "not held" and not is_due):
            break
        expired.append(base)
    return expired
