"""Numbers for people: counts, bytes, times and rates in as few characters as a column has."""

from __future__ import annotations


def short(number: float) -> str:
    """A count in at most six characters: 99,999 · 123k · 4.56M."""
    if number < 100_000:
        return f"{round(number):,}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if number < 999.5 * size:
            scaled = number / size
            return f"{scaled:.{0 if scaled >= 99.95 or unit == 'k' else 1 if scaled >= 9.995 else 2}f}{unit}"
    return f"{number:.0e}"


def size(amount: float | None) -> str:
    """Bytes: 999 B · 1.2 kB · 34 MB; "·" if they are not counted."""
    if amount is None:
        return "·"
    value, unit = float(amount), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.{1 if value < 9.95 and unit != 'B' else 0}f} {unit}"


def duration(seconds: float) -> str:
    """The two largest units: 3 h 12 min."""
    whole = int(seconds)
    for name, unit, lower, below in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // below} {lower}"
    return f"{whole} s"


def rate(per_second: float | None, nothing: str = "·") -> str:
    """Messages a second; "–" if not known yet."""
    if per_second is None:
        return "–"
    return nothing if per_second == 0 else f"{per_second:.1f}" if per_second < 10 else short(per_second)
