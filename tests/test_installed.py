"""What is installed: the wheel beside a user's own modules, and the same wheel out of the source distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow

LEFT_OUT = shutil.ignore_patterns(".*", "tests", "benchmarks", "__pycache__", "build", "dist", "*.egg-info")

BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"

PROGRAM = """
import sys

import actors, queue, storage          # the user's own

import warren
from warren.errors import NotFoundError

assert {storage.NAME, actors.NAME, queue.NAME} == {"a user's storage", "a user's actors", "a user's queue"}
assert warren.__file__.startswith(sys.argv[1]), warren.__file__

with warren.open("data") as node:
    orders = node.queue("orders")
    orders.publish(b"one").wait()
    try:
        node.queue("missing", passive=True)
    except NotFoundError:
        pass
    events = node.topic("events")
    events.append(b"created", key="order-1").wait()
    with orders.get() as delivery:
        print(delivery.body, [record.body for record in events.find(key="order-1")])
"""


def build(what: str, source: Path, out: Path) -> Path:
    """A distribution, built by the backend that pip asks."""
    out.mkdir()
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(out)]
    ran = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    [built] = out.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without its tests, for building leaves files."""
    copy = tmp_path_factory.mktemp("installed") / "checkout"
    shutil.copytree(PROJECT, copy, symlinks=True, ignore=LEFT_OUT)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """The wheel of the checkout."""
    return build("wheel", checkout, checkout.parent / "wheel")


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """A folder that the wheel is installed into; what it needs is taken from the tests' environment."""
    folder = wheel.parent.parent / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*command, "--no-deps", "--target", str(folder), str(wheel)], check=True)
    return folder


def run(site: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the installed wheel, in a user's directory."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("script", ["main.py", "queue_index.py", "msg_store.py"])
def test_a_users_modules_may_be_called_as_our_rooms_are(script: str, site: Path, tmp_path: Path) -> None:
    for name in ("storage", "actors", "queue"):
        (tmp_path / f"{name}.py").write_text(f'NAME = "a user\'s {name}"\n', encoding="utf-8")
    (tmp_path / script).write_text(PROGRAM, encoding="utf-8")
    ran = run(site, tmp_path, script, str(site))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("b'one' [b'created']\n", "", 0)


def test_only_warren_is_installed(site: Path) -> None:
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"warren", "bin"}
    assert not (site / "warren" / "demo").exists()
    assert (site / "warren" / "py.typed").is_file()


def test_the_installed_commands_run(site: Path, tmp_path: Path) -> None:
    ran = run(site, tmp_path, "-m", "warren", "demo")
    assert ran.returncode == 0, ran.stderr
    assert "135 messages of 8 queues" in ran.stdout
    ran = run(site, tmp_path, str(site / "bin" / "warren"), "--version")
    assert ran.stdout.startswith("warren ")


def test_the_source_distribution_builds_into_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", checkout, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    again = build("wheel", unpacked, tmp_path / "wheel")
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
