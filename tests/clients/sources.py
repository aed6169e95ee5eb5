"""Where the suites come from, and the environments they run in: fetched once, kept in a cache directory.

Three places, all public: a source distribution of the package index, by pip; a tag of the project's git repository, for
projects whose source distribution has no tests; what is installed on this machine, for clients that Debian packages.
A place that cannot be reached makes a suite *absent*, with the reason; it is no failure.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import attrs

FETCH_DEADLINE_S = 900.0


class AbsentError(Exception):
    """A suite cannot be had on this machine; says why."""


def cache_directory() -> Path:
    """Where fetched suites and their environments lie; they can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "warren-clients"


class Source(Protocol):
    """Where a suite's files come from."""

    @property
    def what(self) -> str:
        """For the table: what it is, and its version."""

    def fetch(self, directory: Path) -> None:
        """Lay the files into ``directory``, which is not there yet. Raises :class:`AbsentError`."""


@attrs.frozen
class Sdist:
    """A source distribution of the package index."""

    name: str
    version: str

    @property
    def what(self) -> str:
        return f"{self.name} {self.version}"

    def fetch(self, directory: Path) -> None:
        downloads = directory.with_name(f"{directory.name}-download")
        shutil.rmtree(downloads, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:")
        run((*pip, "--dest", str(downloads), f"{self.name}=={self.version}"))
        (archive,) = downloads.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(downloads / "unpacked", filter="data")
        (unpacked,) = (downloads / "unpacked").iterdir()
        unpacked.rename(directory)
        shutil.rmtree(downloads)


@attrs.frozen
class GitTag:
    """A tag of a project's repository."""

    url: str
    tag: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]

    @property
    def what(self) -> str:
        return f"{self.name} {self.tag.removeprefix('v').removeprefix(f'{self.name}-')}"

    def fetch(self, directory: Path) -> None:
        run(("git", "clone", "--quiet", "--depth", "1", "--branch", self.tag, self.url, str(directory)))


@attrs.frozen
class Installed:
    """Programs and files from Debian's packages; ``package`` says which one to install if one of them is missing."""

    package: str
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    copied: str | None = None
    """A directory among them that the suite runs in, as a copy."""

    @property
    def what(self) -> str:
        first = self.package.split()[0]
        shown = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${Version}", first], capture_output=True, text=True, check=False
        )
        return f"{first} {shown.stdout or 'not installed'}, Debian's"

    def fetch(self, directory: Path) -> None:
        missing = [name for name in self.programs if shutil.which(name) is None]
        missing += [name for name in self.files if not Path(name).exists()]
        if missing:
            raise AbsentError(f"no {', '.join(missing)} here (Debian: apt-get install {self.package})")
        if self.copied is None:
            directory.mkdir(parents=True)
        else:
            shutil.copytree(self.copied, directory)


@attrs.frozen(kw_only=True)
class Needs:
    """What a suite needs to run, beside its own files."""

    python: tuple[str, ...] | None = None
    """What pip installs into an environment of its own; ``{source}``: the suite's directory."""
    interpreter: str | None = None
    """The Python of that environment, if it cannot be this one."""
    node: tuple[str, ...] = ()
    """What npm installs beside the suite's directory."""
    programs: tuple[str, ...] = ()
    """What has to be installed on this machine."""
    beside: tuple[GitTag, ...] = ()
    """What is laid beside the suite's directory, each under its repository's name."""
    build: tuple[str, ...] = ()
    """A command that makes something of all this, once; it gets the directory that has them."""


def prepared(name: str, source: Source, needs: Needs) -> Path:
    """The directory of suite ``name``: ``source/``, and what it needs: ``venv/``, ``node_modules/``.

    Made when it is not there, or was made from something else. Raises :class:`AbsentError`.
    """
    if missing := [program for program in needs.programs if shutil.which(program) is None]:
        raise AbsentError(f"no {', '.join(missing)} here")
    further = [part for part in (needs.node, needs.interpreter, needs.beside, needs.build) if part]
    made_from = (source, needs.python, sys.version_info[:2], *further)
    recipe = hashlib.sha256(repr(made_from).encode()).hexdigest()
    directory = cache_directory() / name
    stamp = directory / "recipe"
    if stamp.exists() and stamp.read_text() == recipe:
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    source.fetch(directory / "source")
    if needs.python is not None:
        _make_environment(needs.interpreter or sys.executable, directory / "venv", directory / "source", needs.python)
    if needs.node:
        (directory / "package.json").write_text("{}")
        run(("npm", "install", "--prefix", str(directory), "--ignore-scripts", "--no-audit", "--silent", *needs.node))
    for repository in needs.beside:
        repository.fetch(directory / repository.name)
    if needs.build:
        run((*needs.build, str(directory)))
    stamp.write_text(recipe)
    return directory


def run(command: Sequence[str], runner: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> None:
    """Run a program that fetches something. Raises :class:`AbsentError` with the end of its output."""
    try:
        done = runner(command, capture_output=True, text=True, timeout=FETCH_DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbsentError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise AbsentError(f"{' '.join(command[:4])}: {said[-1] if said else done.returncode}")


def _make_environment(interpreter: str, venv: Path, source: Path, requirements: Sequence[str]) -> None:
    run((interpreter, "-m", "venv", str(venv)))
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run((*pip, *[one.replace("{source}", str(source)) for one in requirements]))
