"""A disk that remembers: one file, served through FUSE, whose writes and flushes go into a log.

Run as a program, ``recorder POINT LOG COUNTER REFUSED`` mounts a file in the place of the file POINT, with that one's
content, prints ``ready``, and serves it until it is unmounted. One request is answered at a time, and the log has them
in that order. The loop device above waits for each, too: what stands before a flush was written when the flush was
asked for.

As long as there is a file REFUSED, writes that have its content in them fail, as those of a disk with bad sectors.

It has the file mounted for its parent, and then leaves the mounts of that one: those are unmounted, as ext4 flushes
what it has, when their last process has ended, and who serves the disk must not be that one. So it outlives a parent
that was killed until the disk is free.

It speaks the kernel's protocol itself (linux/fuse.h, version 7.31): a mounted file needs but a few of its requests.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import signal
import stat
import struct
import sys
from pathlib import Path

from tests.real_disk.kernel import detach, mount_fuse, unshare_mounts
from tests.real_disk.write_log import LogWriter

MAX_WRITE = 1 << 20
_MINOR = 31
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_KEEP_CACHE = 1 << 1
"""Reads are answered from the page cache, which writes go through."""
_VALID_S = 3600

_IN = struct.Struct("<IIQQIIIHH")
"""len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding."""
_OUT = struct.Struct("<IiQ")
"""len, error, unique."""
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
"""major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran, max_pages, …"""
_ATTRIBUTES = struct.Struct("<QII QQQ24x12x IIIIIII")
"""valid for s, ns, padding; ino, size, blocks, times, mode, nlink, uid, gid, rdev, blksize, flags."""
_OPEN_OUT = struct.Struct("<QII")
_AREA = struct.Struct("<QQI")
"""fh, offset, size: how a read and a write begin."""
_AREA_BYTES = 40


class Opcode(enum.IntEnum):
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    INTERRUPT = 36
    DESTROY = 38


class RecordedFile:
    """The file's content, and the log of its changes."""

    def __init__(self, content: bytes, log: LogWriter, refused: Path) -> None:
        self._content = mmap.mmap(-1, len(content))
        self._content[:] = content
        self._log = log
        self._refused = refused

    def answer(self, opcode: int, body: memoryview) -> bytes | memoryview:
        """What a request is answered; raises ``OSError`` with the number that the kernel is to have."""
        match opcode:
            case Opcode.INIT:
                flags = _BIG_WRITES | _MAX_PAGES
                return _INIT_OUT.pack(7, _MINOR, 1 << 17, flags, 16, 12, MAX_WRITE, 1, MAX_WRITE // 4096, 0, 0)
            case Opcode.GETATTR | Opcode.SETATTR:
                size = len(self._content)
                mode = stat.S_IFREG | 0o600
                return _ATTRIBUTES.pack(_VALID_S, 0, 0, 1, size, size // 512, mode, 1, 0, 0, 0, 4096, 0)
            case Opcode.OPEN:
                return _OPEN_OUT.pack(0, _KEEP_CACHE, 0)
            case Opcode.READ:
                _, offset, size = _AREA.unpack_from(body)
                return memoryview(self._content)[offset : offset + size]
            case Opcode.WRITE:
                _, offset, size = _AREA.unpack_from(body)
                data = body[_AREA_BYTES : _AREA_BYTES + size]
                if self._refused.exists() and self._refused.read_bytes() in bytes(data):
                    raise OSError(errno.EIO, "a bad sector")
                self._content[offset : offset + size] = data
                self._log.write(offset, data)
                return struct.pack("<II", size, 0)
            case Opcode.FSYNC:
                self._log.flush()
                return b""
            case Opcode.FLUSH | Opcode.RELEASE | Opcode.DESTROY:  # of a descriptor: it says nothing of the disk
                return b""
            case _:
                raise OSError(errno.ENOSYS, "not served")


def serve(descriptor: int, file: RecordedFile) -> None:
    """Answer the kernel until the file is unmounted."""
    buffer = bytearray(MAX_WRITE + 4096)
    while True:
        try:
            length = os.readv(descriptor, [buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT):  # a request was taken back
                continue
            raise
        _, opcode, unique, *_ = _IN.unpack_from(buffer)
        if opcode in (Opcode.FORGET, Opcode.INTERRUPT):
            continue
        try:
            code, answer = 0, file.answer(opcode, memoryview(buffer)[_IN.size : length])
        except OSError as error:
            code, answer = -(error.errno or errno.EIO), b""
        os.writev(descriptor, [_OUT.pack(_OUT.size + len(answer), code, unique), answer])


def main(point: str, log: str, counter: str, refused: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent: the disk is needed until it is unmounted
    file = RecordedFile(Path(point).read_bytes(), LogWriter(Path(log), Path(counter)), Path(refused))
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    mount_fuse(descriptor, point)
    unshare_mounts()
    detach(point)
    print("ready", flush=True)
    serve(descriptor, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
