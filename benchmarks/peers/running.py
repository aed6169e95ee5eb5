"""Running works: peer after peer, each in a process of its own, and that again and again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs

from benchmarks.peers.child import Task
from benchmarks.peers.contestants import PEERS, peer_class
from benchmarks.peers.outcome import Ran, WorkResult
from benchmarks.peers.peer import Peer
from benchmarks.peers.works import Work

PROJECT: Final = Path(__file__).parent.parent.parent
LIMIT_S: Final = 300.0
"""A process that takes longer is killed, and the peer has no figures for this work."""

Say = Callable[[str], None]


class FailedError(RuntimeError):
    """A process did not come to its end."""


@attrs.define
class Runner:
    """A run's directory, how much of everything it does, and the servers that it has started."""

    directory: Path
    scale: float
    repeats: int | None
    """``None``: as each work says."""
    say: Say
    """Told what is not there or has failed."""
    tick: Callable[[str], None]
    """Told what comes next."""
    _stack: ExitStack = attrs.Factory(ExitStack)
    _servers: dict[str, str] = attrs.Factory(dict)
    _missing: set[str] = attrs.Factory(set)
    _numbers: int = 0

    def close(self) -> None:
        """Stop the servers."""
        self._stack.close()

    def peers_of(self, work: Work, chosen: Sequence[str] = ()) -> Iterator[tuple[str, type[Peer]]]:
        """Who takes part in a work: can all that it needs, and is there."""
        for name in PEERS:
            kind = self._kind(name)
            if kind is None or (chosen and name not in chosen) or (work.peers and name not in work.peers):
                continue
            if name in {"plain", "bare"} and not (work.bare or name in work.peers):
                continue
            if work.needs <= kind.does and kind.promise_for(work.promise) is not None:
                yield name, kind

    def _kind(self, name: str) -> type[Peer] | None:
        if name in self._missing:
            return None
        try:
            return peer_class(name)
        except ImportError as error:
            self._missing.add(name)
            self.say(f"{name} is left out: {error}")
            return None

    def _server(self, name: str, kind: type[Peer]) -> str | None:
        """The address of its server, started when first asked for; ``None``: it cannot be."""
        if name not in self._servers and name not in self._missing:
            try:
                self._servers[name] = self._stack.enter_context(kind.server(self.directory / f"server-{name}"))
            except (OSError, RuntimeError) as error:
                self._missing.add(name)
                self.say(f"{name} is left out: {error}")
        return self._servers.get(name)

    def processes(self, work: Work, chosen: Sequence[str] = ()) -> int:
        """How many runs of peers a work will take."""
        return self._repeats(work) * len(list(self.peers_of(work, chosen)))

    def _repeats(self, work: Work) -> int:
        return work.repeats if self.repeats is None else min(self.repeats, work.repeats)

    def run(self, work: Work, chosen: Sequence[str] = ()) -> WorkResult:
        """All peers, in turn, as often as is to be."""
        repeats = self._repeats(work)
        result = WorkResult(work.name, {})
        prepared: dict[str, Path] = {}
        peers = list(self.peers_of(work, chosen))
        for repeat in range(repeats):
            for name, kind in peers:
                server = self._server(name, kind)
                if server is None or ((ran := result.ran.get(name)) is not None and ran.error):
                    continue
                promise = kind.promise_for(work.promise)
                assert promise is not None
                messages = min(max(work.least, round(work.messages * self.scale)), kind.most)
                if ran is None:
                    ran = result.ran[name] = Ran(promise, messages, kind.version(), {})
                self.tick(f"{work.name}, {name}, {repeat + 1} of {repeats}")
                task = Task(
                    work=work.name, peer=name, act="do", promise=promise, messages=messages,
                    directory=str(self._fresh()), server=server,
                )  # fmt: skip
                try:
                    if work.prepare is not None:
                        if name not in prepared:
                            prepared[name] = self._fresh()
                            ran.note(self._child(attrs.evolve(task, act="prepare", directory=str(prepared[name]))))
                        shutil.copytree(prepared[name], task.directory, ignore=shutil.ignore_patterns("*.sock"))
                    ran.note(self._child(task))
                except FailedError as error:
                    ran.error = str(error)
                    self.say(f"{work.name}, {name}: {error}")
                finally:
                    self._clean(task.directory)
        for path in prepared.values():
            self._clean(str(path))
        return result

    def _fresh(self) -> Path:
        self._numbers += 1
        return self.directory / f"run-{self._numbers}"

    def _clean(self, directory: str) -> None:
        path = Path(directory)
        for left in path.parent.glob(f"{path.name}*"):
            if left.name == path.name or left.name.startswith(f"{path.name}-"):
                shutil.rmtree(left, ignore_errors=True)

    def _child(self, task: Task) -> dict[str, float]:
        """One process; one that prepares is killed when it has said its figures."""
        command = [sys.executable, "-m", "benchmarks.peers.child"]
        with subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(json.dumps(attrs.asdict(task)) + "\n")
            process.stdin.flush()
            if task.act == "prepare":
                line = process.stdout.readline()
                process.send_signal(signal.SIGKILL)
                errors = process.stderr.read()
            else:
                try:
                    line, errors = process.communicate(timeout=LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise FailedError(f"took longer than {LIMIT_S:g} s") from None
        if not line.strip():
            raise FailedError(errors.strip().splitlines()[-1] if errors.strip() else f"ended with {process.returncode}")
        found: dict[str, float] = json.loads(line.splitlines()[-1])
        return found
