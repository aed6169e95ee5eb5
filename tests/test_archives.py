"""Archives of every kind, from a file, through stdin and over ssh: what is in them is read, what is hostile refused."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import random
import shlex
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import GOLDEN, PROJECT
from tests.support.shovel_tools import complaint, shovel
from warren.salvage.archives import over_ssh
from warren.salvage.archives.archive import unpack
from warren.salvage.archives.over_ssh import RemoteDirectory
from warren.storage.errors import DataError, StorageError

SOUND = GOLDEN / "02-crash-small-mixed.tar.gz"
ROCKETMQ = GOLDEN / "rocketmq" / "basic-clean.tar.gz"


def zip_of(tar: bytes) -> bytes:
    """The same members as a .zip, as Info-ZIP writes it: times in UTC after the names."""
    found = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as source, zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source:
            info = zipfile.ZipInfo(member.name + ("/" if member.isdir() else ""))
            info.extra = b"UT\5\0\1" + int(member.mtime).to_bytes(4, "little")
            info.external_attr = ((stat.S_IFDIR if member.isdir() else stat.S_IFREG) | 0o644) << 16
            content = source.extractfile(member) if member.isfile() else None
            target.writestr(info, b"" if content is None else content.read(), zipfile.ZIP_DEFLATED)
    return found.getvalue()


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "tar": lambda tar: tar,
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
    "tar.zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the command does
    "zip": zip_of,
}


@pytest.fixture(scope="module")
def sound() -> bytes:
    return gzip.decompress(SOUND.read_bytes())


@pytest.fixture(scope="module")
def expected() -> bytes:
    return warren("export", SOUND).stdout_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_from_a_file_whatever_it_is_called(
    kind: str, sound: bytes, expected: bytes, tmp_path: Path
) -> None:
    for name in (f"backup.{kind}", "backup"):
        (tmp_path / name).write_bytes(KINDS[kind](sound))
        result = warren("export", tmp_path / name)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout_bytes == expected
    assert warren("inspect", tmp_path / name, "--json").exit_code == 0
    assert warren("verify", tmp_path / name).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_from_a_pipe(kind: str, sound: bytes, expected: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(KINDS[kind](sound))
    program = f"cat {shlex.quote(str(tmp_path / 'archive'))} | {shlex.quote(sys.executable)} -m warren.cli export -"
    ran = subprocess.run(["sh", "-c", program], capture_output=True, check=False, cwd=PROJECT)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_topics_come_out_of_every_kind_with_the_times_of_their_files(kind: str, tmp_path: Path) -> None:
    tar = gzip.decompress(ROCKETMQ.read_bytes())
    (tmp_path / "archive").write_bytes(KINDS[kind](tar))
    assert warren("topic", "scan", tmp_path / "archive").stdout_bytes == warren("topic", "scan", ROCKETMQ).stdout_bytes
    (tmp_path / "room").mkdir()
    unpack(str(tmp_path / "archive"), str(tmp_path / "room"))
    with tarfile.open(fileobj=io.BytesIO(tar)) as source:
        times = {member.name: int(member.mtime) for member in source if member.isfile()}
    assert times == {name: int((tmp_path / "room" / name).stat().st_mtime) for name in times}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_cut_off_or_changed_is_one_line(kind: str, seed: int, sound: bytes, tmp_path: Path) -> None:
    chance, data = random.Random(seed), bytearray(KINDS[kind](sound))
    if seed % 2:
        del data[chance.randrange(len(data) - 1100) :]  # a tar ends in zeros; some may go
    elif kind == "tar":
        data[chance.randrange(148, 156)] ^= 1  # only its headers have sums
    else:
        data[chance.randrange(20, len(data) - 1000)] ^= 1
    (tmp_path / "archive").write_bytes(data)
    result = warren("export", tmp_path / "archive")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"warren: {tmp_path}/archive: ")


def test_a_tar_that_ends_between_two_members_is_cut_off(sound: bytes, tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(sound)) as source:
        offsets = [member.offset for member in source]
    (tmp_path / "archive").write_bytes(sound[: offsets[len(offsets) // 2]])
    assert "unexpected end of data" in warren("export", tmp_path / "archive").stderr


def test_streams_behind_each_other_are_one(sound: bytes, expected: bytes, tmp_path: Path) -> None:
    half = len(sound) // 2
    for kind in ("tar.gz", "tar.bz2", "tar.xz", "tar.zst"):
        compress = KINDS[kind]
        padding = b"\0" * 8 if kind == "tar.xz" else b""
        (tmp_path / "archive").write_bytes(compress(sound[:half]) + padding + compress(sound[half:]))
        assert warren("export", tmp_path / "archive").stdout_bytes == expected


# ── hostile ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def zipped(*members: tuple[str, bytes], mode: int = 0, encrypted: bool = False) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            target.writestr(info, content, zipfile.ZIP_DEFLATED)
    data = bytearray(found.getvalue())
    if encrypted:
        data[6] |= 1
        data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def longer_than_it_says() -> bytes:
    data = bytearray(zipped(("vhosts/x", b"x" * 1000)))
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")
    return bytes(data)


def with_an_endless_pax_record() -> bytes:
    """A tar with an extended header whose record says that it is longer than any memory."""
    record = b"%d path=vhosts/x\n" % (1 << 70)
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    return header.tobuf() + record.ljust(512, b"\0") + tarfile.TarInfo("vhosts/x").tobuf() + bytes(1024)


def tar_gz(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


GZIPPED = SOUND.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "broken"),
        (b"no archive", "not a .tar.gz"),
        (gzip.compress(b"no tar" * 1000), "not a .tar.gz"),
        (GZIPPED[: len(GZIPPED) // 2], "broken"),
        (GZIPPED[:-9] + bytes([GZIPPED[-9] ^ 1]) + GZIPPED[-8:], "broken"),
        (GZIPPED[:-6] + bytes([GZIPPED[-6] ^ 1]) + GZIPPED[-5:], "broken"),
        (tar_gz((member("../vhosts/x"), b"x")), "leave the directory"),
        (tar_gz((member("/tmp/vhosts/x"), b"x")), "leave the directory"),
        (tar_gz((member("vhosts/../../x"), b"x")), "leave the directory"),
        (tar_gz((member("vhosts", tarfile.SYMTYPE, "/etc"), b"")), "neither a file nor a directory"),
        (tar_gz((member("vhosts", tarfile.LNKTYPE, "/etc/passwd"), b"")), "neither a file nor a directory"),
        (tar_gz((member("vhosts", tarfile.FIFOTYPE), b"")), "neither a file nor a directory"),
        (tar_gz((member("x" * 20), b""), (member("y/" * 50_000), b"")), "a header of"),
        (tar_gz((member("a file"), b"x"), (member("a file/vhosts"), b"x")), "cannot be unpacked"),
        (tar_gz((member("a file"), b"x")), "is no RabbitMQ data directory"),
        (with_an_endless_pax_record(), "or a broken one: Python int too large"),
        (zipped(("../x", b"x")), "leave the directory"),
        (zipped(("/tmp/x", b"x")), "leave the directory"),
        (zipped(("a/../../x", b"x")), "leave the directory"),
        (zipped(("..\\x", b"x")), "leave the directory"),
        (zipped(("link", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777), "neither a file nor a directory"),
        (zipped(("pipe", b""), mode=stat.S_IFIFO | 0o666), "neither a file nor a directory"),
        (zipped(("device", b""), mode=stat.S_IFCHR | 0o666), "neither a file nor a directory"),
        (zipped(("secret", b"x" * 20), encrypted=True), "encrypted"),
        (longer_than_it_says(), "broken"),
        (zipped(("a file", b"x"), ("a file/x", b"x")), "cannot be unpacked"),
        (zipped(("a file", b"x")), "is no RabbitMQ data directory"),
        (b"PK\3\4 and nothing", "not a .zip, or a broken one"),
        (b"\x28\xb5\x2f\xfd and nothing", "not a .tar.zst, or a broken one"),
        (b"\xfd7zXZ\0 and nothing", "not a .tar.xz, or a broken one"),
        (b"BZh and nothing at all", "not a .tar.bz2, or a broken one"),
        (b"\x1f\x8b and nothing", "not a .tar.gz, or a broken one"),
        (lzma.compress(b"no tar" * 1000), "not a .tar.xz, or a broken one"),
        (lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]), "usage limit"),
    ],
    ids=itertools.count(),  # not the bytes: a header holds the time, and every process would name the test otherwise
)
def test_a_hostile_archive_is_one_line_and_nothing_is_written(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    for command in ("inspect", "export", "verify"):
        result = warren(command, path)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert result.stderr.startswith("warren: ")
        assert reason in result.stderr
    assert os.listdir(tmp_path) == ["bad"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_grows_too_large_is_given_up(kind: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo("vhosts/zeros")
        member.size = 10 << 20
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    (tmp_path / "bomb").write_bytes(KINDS[kind](made.getvalue()))
    (tmp_path / "room").mkdir()
    with pytest.raises(DataError, match="more than there is room for"):
        unpack(str(tmp_path / "bomb"), str(tmp_path / "room"), max_bytes=1 << 20)
    assert sum(path.stat().st_size for path in (tmp_path / "room").rglob("zeros")) <= 1 << 20
    with pytest.raises(DataError, match="too many members"):
        unpack(str(tmp_path / "bomb"), str(tmp_path / "room"), max_members=0)


class Endless(io.RawIOBase):
    """The same bytes again and again."""

    def __init__(self, data: bytes) -> None:
        self.data, self.count = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        self.count += size
        return (self.data * (size // len(self.data) + 1))[:size]


@pytest.mark.parametrize("data", [bytes(512), gzip.compress(bytes(1 << 20)), b"PK\3\4", b"x"], ids=itertools.count())
def test_an_endless_stream_ends(data: bytes, tmp_path: Path) -> None:
    endless = Endless(data)
    with pytest.raises((DataError, StorageError)):
        unpack("stdin", str(tmp_path), source=endless, max_bytes=8 << 20)  # type: ignore[arg-type]
    assert endless.count < 1 << 30


@pytest.mark.slow
def test_without_zstandard_it_is_said_in_one_line(sound: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.zst").write_bytes(zstandard.compress(sound))
    program = "import sys; sys.modules['zstandard'] = None; from warren.cli import main; main()"
    command: list[str | Path] = [sys.executable, "-c", program, "export", tmp_path / "archive.tar.zst"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert 'needs the package zstandard: pip install "warrenmq[zstd]"' in ran.stderr


# ── over ssh ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FAKE_SSH = """#!/bin/sh
# what ssh does with its arguments: the last ones, with blanks between, are for a shell
printf '%s\\n' "$@" > "$SSH_SAID"
while [ "$1" != "--" ]; do shift; done
shift 2
exec sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called ssh that does here what it should do on another machine; return the file with its arguments."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(FAKE_SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_SAID", str(tmp_path / "said"))
    return tmp_path / "said"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A directory whose name a shell would not leave alone."""
    place = tmp_path / "it's $HOME; touch x"
    place.mkdir()
    unpack(str(SOUND), str(place))
    return place


def test_a_directory_of_another_machine(ssh: Path, remote: Path, expected: bytes, tmp_path: Path) -> None:
    url = f"ssh://me@host.example:2222{str(remote).replace(' ', '%20')}"
    result = warren("export", url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout_bytes == expected
    command = f"tar -C {shlex.quote(str(remote))} -cf - ."
    assert ssh.read_text().splitlines() == ["-p", "2222", "--", "me@host.example", command]
    assert not (PROJECT / "x").exists()
    assert warren("inspect", url).exit_code == 0
    done = shovel(url, tmp_path / "copy")
    assert done["messages"] == len(expected.splitlines())
    assert shovel(url, tmp_path / "copy")["messages"] == 0  # how far it has come was written down


@pytest.mark.slow
def test_a_tar_that_ssh_brings_through_stdin(remote: Path, expected: bytes) -> None:
    program = f"tar -C {shlex.quote(str(remote))} -cf - . | {shlex.quote(sys.executable)} -m warren.cli export -"
    ran = subprocess.run(["sh", "-c", program], capture_output=True, check=False, cwd=PROJECT)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, b"", expected)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("#!/bin/sh\necho 'ssh: Could not resolve hostname host' >&2\nexit 255\n", "Could not resolve hostname host"),
        ("#!/bin/sh\nexit 3\n", "ssh ended with 3"),
        ("#!/bin/sh\nhead -c 10000 /dev/zero; exit 2\n", "ssh ended with 2"),
        ("#!/bin/sh\ntar -C /no/such/place -cf - .\n", "/no/such/place"),
        (f"#!/bin/sh\ngzip -dc {SOUND}; echo 'tar: file changed as we read it' >&2; exit 1\n", "changed as we read it"),
        (f"#!/bin/sh\ngzip -dc {SOUND} | head -c 20000\n", "unexpected end of data"),
    ],
    ids=itertools.count(),
)
def test_what_goes_wrong_there_is_one_line(ssh: Path, tmp_path: Path, program: str, reason: str) -> None:
    (tmp_path / "bin" / "ssh").write_text(program)
    result = warren("export", "ssh://host/some/place")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith("warren: ssh://host/some/place: ")
    assert reason in result.stderr


def test_without_ssh_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = warren("export", "ssh://host/some/place")
    assert (result.exit_code, "ssh cannot be run: No such file" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=x/path",
        "ssh://host;x/path",
        "ssh://-x@host/path",
        "ssh://host",
        "ssh://host/",
        "ssh:///path",
        "ssh://host:port/path",
        "ssh://host:99999/path",
        "ssh://host/pa%00th",
        "ssh://host/path?query",
        "ssh://me:secret@host/path",
        "ssh://ho st/path",
        "ssh://[x/path",
    ],
)
def test_a_url_that_cannot_be_is_refused_before_anything_runs(url: str, ssh: Path) -> None:
    with pytest.raises(StorageError, match="ssh://") as caught:
        RemoteDirectory.of(url)
    assert "secret" not in str(caught.value)
    result = warren("export", url)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert not ssh.exists()


def test_urls_that_can_be() -> None:
    assert RemoteDirectory.of("ssh://host/a/b").command() == ["ssh", "--", "host", "tar -C /a/b -cf - ."]
    assert RemoteDirectory.of("ssh://[::1]:22/a%20b").command() == [
        "ssh",
        "-p",
        "22",
        "--",
        "::1",
        "tar -C '/a b' -cf - .",
    ]
    assert RemoteDirectory.of("ssh://a.b@10.0.0.1/-x").command()[-2:] == ["a.b@10.0.0.1", "tar -C /-x -cf - ."]


def test_who_stops_reading_ends_what_runs(ssh: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\nexec cat /dev/zero\n")
    with pytest.raises(KeyboardInterrupt), over_ssh.streamed("ssh://host/path") as stream:  # noqa: PT012
        assert stream.read(10) == bytes(10)
        raise KeyboardInterrupt


def test_a_shovel_wants_to_know_one_archive_through_stdin_from_another(tmp_path: Path) -> None:
    assert "give --state FILE" in complaint("-", tmp_path / "node")
    assert "can only be copied from" in complaint("-", tmp_path / "node", "--move")
