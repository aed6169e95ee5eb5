"""Traces: measured rates, in a CSV or Parquet file that another tool wrote.

A row has a time, and the number of messages per second from then on (or in all, until the next row):

    time,rate                       time,messages
    0,120                           2026-03-02T09:00:00,7200
    60,150                          2026-03-02T09:01:00,9000

Times are seconds from the scenario's start, or timestamps (ISO 8601, or Parquet's), counted from the first one.
The last row is valid for the usual distance between rows; after it nothing comes. Rows are in the order of their
times, at nearly equal distances. A larger distance is a *gap*: what came in it is not known. A gap is an error unless
an option says how to fill it: ``hold`` keeps the rate before it, ``zero`` means that nothing came.

The first bytes of a file, not its name, say whether it is Parquet.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from warren.simulation.scenarios.curves import Trace, per_second
from warren.simulation.scenarios.forms import inside, line, one_of
from warren.simulation.scenarios.units import LONGEST_S, ScenarioError
from warren.storage.errors import shown

Gaps = Literal["error", "hold", "zero"]
TIME: Final = "time"
RATE: Final = "rate"
MESSAGES: Final = "messages"
MOST_ROWS: Final = 1_000_000
MOST_BYTES: Final = 256 << 20
GAP: Final = 1.5
"""Times the usual distance of two rows: more is a gap."""

_MAGIC: Final = b"PAR1"
_MOST_NAMES: Final = 8
Floats = npt.NDArray[np.float64]


def read_trace(path: Any, time_column: Any = TIME, rate_column: Any | None = None, gaps: Any = "error") -> Trace:
    """Return the trace in the file at ``path``.

    ``time_column`` and ``rate_column`` are the names of the columns. By default the rate is in a column ``rate`` or
    else ``messages``. Raises ScenarioError, with the file's name, if the file is not a trace.
    """
    with inside("path"):
        name = line(path)
    with inside("time_column"):
        time_name = line(time_column)
    with inside("rate_column"):
        rate_name = None if rate_column is None else line(rate_column)
    with inside("gaps"):
        gap_mode: Gaps = one_of(gaps, Gaps)
    with inside(f"{name}: "):
        frame = _rows(name)
        at_s = _times(_column(frame, time_name))
        in_all = rate_name is None and RATE not in frame.columns and MESSAGES in frame.columns
        values = _numbers(_column(frame, rate_name or (MESSAGES if in_all else RATE)))
        return _traced(name, at_s, values, gap_mode, in_all=in_all)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(path: str) -> pd.DataFrame:
    """Return the rows of a file. Those of a CSV are texts."""
    try:
        if not os.path.isfile(path):
            raise ScenarioError("is not a file" if os.path.exists(path) else "there is no such file")
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            is_parquet = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror or error}") from None
    if size > MOST_BYTES:
        raise ScenarioError(f"{size} bytes are too many for a trace; at most {MOST_BYTES}")
    frame = _parquet(path) if is_parquet else _csv(path)
    if len(frame) > MOST_ROWS:
        raise ScenarioError(f"{len(frame)} rows are too many for a trace; at most {MOST_ROWS}")
    if frame.empty:
        raise ScenarioError("the trace is empty: it has no row")
    return frame


def _csv(path: str) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path, dtype=str, keep_default_na=False, skipinitialspace=True, index_col=False, encoding="utf-8-sig"
            )
    except pd.errors.EmptyDataError:
        raise ScenarioError("the trace is empty: it has no line") from None
    except pd.errors.ParserWarning:
        raise ScenarioError("not CSV: a row has more values than the first has names") from None
    except UnicodeDecodeError:
        raise ScenarioError("not CSV: it is not UTF-8 text") from None
    except (ValueError, OSError, OverflowError) as error:
        raise ScenarioError(f"not CSV: {' '.join(str(error).split())}") from None
    return frame.rename(columns=lambda name: str(name).strip())


def _parquet(path: str) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            if rows > MOST_ROWS:
                raise ScenarioError(f"{rows} rows are too many for a trace; at most {MOST_ROWS}")
            return file.read().to_pandas(ignore_metadata=True)  # what pandas wrote of its own may be damaged
    except (pa.ArrowException, ValueError, LookupError, OSError, OverflowError, MemoryError) as error:
        raise ScenarioError(f"not Parquet: {' '.join(str(error).split())}") from None


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name in frame.columns:
        column = frame[name]
        if isinstance(column, pd.DataFrame):
            raise ScenarioError(f"there are {column.shape[1]} columns {shown(name)}")
        return column
    names = [shown(str(column_name)) for column_name in frame.columns[:_MOST_NAMES]]
    others = " …" if len(frame.columns) > _MOST_NAMES else ""
    expected = f"{name!r} or {MESSAGES!r}" if name == RATE else repr(name)
    raise ScenarioError(f"there is no column {expected}; its columns are {', '.join(names)}{others}")


def _numbers(column: pd.Series[Any]) -> Floats:
    """Return finite numbers. The error for anything else names the row."""
    numbers = _as_floats(column)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        _refuse(column, int(wrong[0]), "a number")
    return numbers


def _as_floats(column: pd.Series[Any]) -> Floats:
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return np.full(len(column), np.nan)
    try:
        numbers: Floats = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):
        return np.full(len(column), np.nan)
    return numbers


def _times(column: pd.Series[Any]) -> Floats:
    """Return seconds: as they are, or from the first moment on."""
    if pd.api.types.is_numeric_dtype(column) or np.isfinite(_as_floats(column.iloc[:1])).all():
        at_s = _numbers(column)
        wrong = np.flatnonzero((at_s < 0) | (at_s > LONGEST_S))
        if len(wrong):
            raise ScenarioError(
                f"row {wrong[0] + 1}: {column.name} must be 0 … {LONGEST_S:.0f} seconds from the start (or a moment "
                f"such as 2026-03-02T09:00:00), not {shown(column.iloc[wrong[0]])}"
            )
        return at_s
    try:
        moments = pd.to_datetime(column, errors="coerce", utc=True, format=_format(column))
    except (TypeError, ValueError, OverflowError):
        moments = pd.Series(pd.NaT, index=column.index)
    wrong = np.flatnonzero(moments.isna())
    if len(wrong):
        _refuse(column, int(wrong[0]), "seconds from the start, or a moment such as 2026-03-02T09:00:00")
    try:
        elapsed: Floats = (moments - moments.iloc[0]).dt.total_seconds().to_numpy(np.float64)
    except OverflowError:
        raise ScenarioError(f"{column.name}: its times are centuries apart") from None
    return elapsed


def _format(column: pd.Series[Any]) -> str | None:
    """Return the format of texts. It is ISO 8601 alone, because 03/02/2026 can be two days."""
    return None if pd.api.types.is_datetime64_any_dtype(column) else "ISO8601"


def _refuse(column: pd.Series[Any], index: int, expected: str) -> None:
    value = column.iloc[index]
    missing = value is None or value is pd.NaT or value == "" or (isinstance(value, float) and np.isnan(value))
    problem = "is missing" if missing else f"must be {expected}, not {shown(value)}"
    raise ScenarioError(f"row {index + 1}: {column.name} {problem}")


# ── the trace ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _traced(name: str, at_s: Floats, values: Floats, gaps: Gaps, *, in_all: bool) -> Trace:
    if len(at_s) < 2:
        raise ScenarioError("a trace needs at least two rows: one row does not say how long its rate lasts")
    distances = np.diff(at_s)
    wrong = np.flatnonzero(distances <= 0)
    if len(wrong):
        row = int(wrong[0])
        raise ScenarioError(
            f"row {row + 2}: its time ({at_s[row + 1]:.9g} s) is not after the row before ({at_s[row]:.9g} s)"
        )
    usual = float(np.median(distances))
    moments = np.append(at_s, at_s[-1] + usual)
    lasting = np.diff(moments)
    wide = np.flatnonzero(lasting > GAP * usual)
    if len(wide) and gaps == "error":
        row = int(wide[0])
        raise ScenarioError(
            f"row {row + 2}: a gap: there is no rate from {at_s[row] + usual:.9g} s to {at_s[row + 1]:.9g} s (rows are "
            f"{usual:.9g} s apart); gaps = 'hold' keeps the rate before it, gaps = 'zero' sets it to 0"
        )
    # Before a gap a row says what came in the usual time, not in all of the gap.
    rates = values / np.where(lasting > GAP * usual, usual, lasting) if in_all else values
    _check_rates(rates)
    if len(wide) and gaps == "zero":
        moments = np.insert(moments, wide + 1, at_s[wide] + usual)
        rates = np.insert(rates, wide + 1, 0.0)
    return Trace(name, tuple(moments.tolist()), tuple(rates.tolist()))


def _check_rates(rates: Floats) -> None:
    wrong = np.flatnonzero(~((rates >= 0.0) & (rates <= 1e9)))
    if len(wrong):
        with inside(f"row {wrong[0] + 1}: the rate"):
            per_second(float(rates[wrong[0]]))
