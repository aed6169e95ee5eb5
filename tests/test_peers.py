"""The harness that measures warren beside its peers: it finds wrong answers, mixes no promises, and says what it found.

How fast anything is, is not asked here.
"""

from __future__ import annotations

import json
import shutil
from collections import deque
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import report
from benchmarks.figures import Spread
from benchmarks.peers import page, pictures, procedures
from benchmarks.peers.child import Task, perform
from benchmarks.peers.contestants import PEERS, peer_class
from benchmarks.peers.growth import GROWTHS, find_work
from benchmarks.peers.outcome import OUT, Outcome, Ran, WorkResult, behind, spark_figures
from benchmarks.peers.peer import Letter, Load, Peer, Place, Promise, Queue, Token
from benchmarks.peers.procedures import Run, WrongError
from benchmarks.peers.running import Runner
from benchmarks.peers.watch import Watch
from benchmarks.peers.works import WORKS, WORKS_BY_NAME, Work

SERVERS = ("redis", "rabbitmq")
HERE = [name for name in PEERS if name not in SERVERS]


def kind_of(name: str) -> type[Peer]:
    try:
        return peer_class(name)
    except ImportError as error:
        pytest.skip(str(error))


def opened(name: str, directory: Path, promise: Promise = Promise.WRITTEN, server: str = "") -> Peer:
    kind = kind_of(name)
    promised = kind.promise_for(promise)
    assert promised is not None
    return kind(Place(directory / "store", promised, server), Load())


def there_and_back(queue: Queue) -> None:
    """All methods of a queue that every peer has: first in, first out."""
    bodies = [b"%04d" % number for number in range(20)]
    queue.put(bodies[0])
    queue.put_many(bodies[1:])
    queue.settle()
    taken = queue.take()
    assert taken is not None
    queue.ack(taken[0])
    tokens, some = queue.take_many(9)
    queue.ack_many(tokens)
    found = [taken[1], *some]
    while len(found) < 20:
        tokens, some = queue.take_many(30)
        assert some
        queue.ack_many(tokens)
        found += some
    assert found == bodies
    assert queue.take() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("promise", [Promise.WRITTEN, Promise.FSYNCED])
def test_a_peer_gives_back_what_it_was_given(name: str, promise: Promise, tmp_path: Path) -> None:
    if kind_of(name).promise_for(promise) is None:
        pytest.skip("promises less")
    peer = opened(name, tmp_path, promise)
    there_and_back(peer.queue("one"))
    peer.close()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_redis_gives_back_what_it_was_given(tmp_path: Path) -> None:
    with kind_of("redis").server(tmp_path / "server") as server:
        peer = opened("redis", tmp_path, server=server)
        there_and_back(peer.queue("one"))
        queue = peer.queue("letters")
        letters = [Letter(b"%d" % number, {"a": "b"}, f"id-{number}") for number in range(3)]
        queue.send(letters[0])
        queue.send_many(letters[1:])
        assert queue.receive_many(10)[1] == letters
        topic = peer.topic("topic")
        topic.append_many([b"one", b"two"], ["k-1", "k-2"])
        assert (topic.find("k-2"), topic.read(10), topic.read(10)) == (b"two", [b"one", b"two"], [])
        peer.close()


@pytest.mark.broker
def test_rabbitmq_gives_back_what_it_was_given(tmp_path: Path) -> None:
    with kind_of("rabbitmq").server(tmp_path / "server") as server:
        for promise in (Promise.VOLATILE, Promise.FSYNCED):
            peer = opened("rabbitmq", tmp_path, promise, server)
            there_and_back(peer.queue("one"))
            peer.close()


NOT_PREPARED = [work.name for work in WORKS if work.prepare is None and work.peers != ("plain", "bare")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_PREPARED)
@pytest.mark.parametrize("peer", ["warren", "sqlite"])
def test_a_work_measures_all_its_values(name: str, peer: str, tmp_path: Path) -> None:
    work = WORKS_BY_NAME[name]
    promise = kind_of(peer).promise_for(work.promise)
    if promise is None:
        pytest.skip("promises something else")
    found = perform(
        Task(
            work=name,
            peer=peer,
            act="do",
            promise=promise,
            messages=max(16, work.least),
            directory=str(tmp_path / "store"),
        )
    )
    assert set(work.values) - set(found) <= ({"consume"} if peer == "sqlite" else set())
    assert all(value > 0 for name, value in found.items() if name != "memory")


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{growth.name} {growth.points[1]}" for growth in GROWTHS])
def test_a_point_of_a_growth_measures_all_its_values(name: str, tmp_path: Path) -> None:
    work = find_work(name)
    found = perform(
        Task(work=name, peer="warren", act="do", promise="written", messages=100, directory=str(tmp_path / "store"))
    )
    assert set(work.values) <= set(found)


# ── what is wrong is found ───────────────────────────────────────────────────────────────────────────────────────────


class Shuffling(Peer):
    """Swaps the last two messages, or forgets one."""

    title = "a peer that does it wrong"
    promises = frozenset({Promise.WRITTEN})
    forgets = False

    def queue(self, name: str) -> Queue:
        return _Shuffling(forgets=self.forgets)


class Forgetting(Shuffling):
    forgets = True


class _Shuffling(Queue):
    def __init__(self, *, forgets: bool) -> None:
        self._bodies: deque[bytes] = deque()
        self._forgets = forgets

    def put(self, body: bytes) -> None:
        if len(self._bodies) == 10 and self._forgets:
            return
        self._bodies.append(body)
        if len(self._bodies) == 10 and not self._forgets:
            self._bodies.appendleft(self._bodies.pop())

    def take(self) -> tuple[Token, bytes] | None:
        return (None, self._bodies.popleft()) if self._bodies else None


@pytest.mark.parametrize("kind", [Shuffling, Forgetting])
@pytest.mark.parametrize("do", [procedures.publish_singly, procedures.fill_and_drain, procedures.drain_singly])
def test_a_peer_that_swaps_or_forgets_messages_has_no_figures(
    kind: type[Peer], do: procedures.Procedure, tmp_path: Path
) -> None:
    with pytest.raises(WrongError, match="differ"):
        do(Run(kind, Place(tmp_path, Promise.WRITTEN), 20, Watch()))


# ── a run, and what it comes to ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Some works and a point of a growth, each peer in a process, two turns."""
    said: list[str] = []
    runner = Runner(
        directory=tmp_path_factory.mktemp("peers"), scale=0.0001, repeats=2, say=said.append, tick=lambda _: None
    )
    works = [runner.run(WORKS_BY_NAME["W2"], ("warren", "plain", "bare", "sqlite"))]
    works.append(runner.run(WORKS_BY_NAME["W6"], ("warren",)))
    grown = {point: runner.run(work, ("warren",)) for point, work in GROWTHS[0].works(1000)}
    runner.close()
    assert said == []
    return Outcome(date="2026-01-01", machine={"cores": 2}, works=works, growth={"backlog": Outcome.points(grown)})


@pytest.mark.slow
def test_every_peer_runs_in_turn_in_a_process_of_its_own(outcome: Outcome) -> None:
    batches, reopened = outcome.works
    assert list(batches.ran) == ["warren", "plain", "bare", "sqlite"]
    assert all(not ran.error for result in outcome.works for ran in result.ran.values())
    assert all(len(ran.values["publish"]) == 2 for ran in batches.ran.values())
    assert set(reopened.ran["warren"].values) == {"first message", "all counted"}
    assert [point["at"] for point in outcome.growth["backlog"]["warren"]] == [1000]


@pytest.mark.slow
def test_an_outcome_is_kept_shown_and_drawn(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    titles = [figure.title for figure in outcome.figures()]
    assert titles[0] == "W2, batches of 1000: publish"
    assert len(titles) == 4
    text = page.markdown(outcome)
    missed = {figure.title for figure in outcome.figures() if figure.reached is False}
    short = {
        title: title.replace(", batches of 1000", "").replace(", open after a kill, 1,000,000 waiting", "")
        for title in titles
    }
    assert all((f"| {short[title]} |" in text) == (title in missed) for title in titles)
    reached = [figure.reached for figure in (*outcome.figures(), *spark_figures())]
    assert f"{reached.count(True)} of {len(reached)} goals are reached" in text
    assert "| W2, batches of 1000: publish | " in text
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    pictures.write(outcome)
    for name in (page.PICTURE, page.GROWTH_PICTURE):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    page.show(Console(), outcome)
    assert "W6: open after a kill" in capsys.readouterr().out


def result_of(work: str, **ran: tuple[Promise, list[float]]) -> WorkResult:
    value = next(iter(WORKS_BY_NAME[work].values))
    return WorkResult(
        work, {name: Ran(promise, 10, "1", {value: list(rates)}) for name, (promise, rates) in ran.items()}
    )


def test_ratios_are_taken_turn_by_turn_and_only_among_equal_promises() -> None:
    result = result_of(
        "W1",
        warren=(Promise.WRITTEN, [10.0, 40.0, 30.0]),
        sqlite=(Promise.WRITTEN, [20.0, 40.0, 10.0]),
        redis=(Promise.WRITTEN, [20.0, 20.0, 20.0]),
        queuelib=(Promise.VOLATILE, [90.0, 90.0, 90.0]),
    )
    assert result.ratio("warren", "publish", "sqlite") == Spread(1.0, 0.5, 3.0)
    assert list(behind(result)) == []
    result.ran["redis"].values["publish"] = [50.0, 50.0, 50.0]
    assert [(value, name) for value, name, _ in behind(result)] == [("publish", "redis")]


def test_what_is_measured_in_time_is_better_where_it_is_less() -> None:
    result = result_of("W9p", warren=(Promise.WRITTEN, [100.0]), sqlite=(Promise.WRITTEN, [50.0]))
    assert [(value, name, ratio.median) for value, name, ratio in behind(result)] == [("p50", "sqlite", 2.0)]
    [p50] = Outcome(date="", machine={}, works=[result]).figures()
    assert (p50.title.partition(",")[0], p50.reached) == ("W9p", False)
    assert list(Outcome(date="", machine={}, works=[result]).not_measured()) == ["W9p: p99"]


def test_a_peer_promises_what_is_asked_for_or_nothing_and_never_more() -> None:
    assert kind_of("queuelib").promise_for(Promise.WRITTEN) is Promise.VOLATILE
    assert kind_of("queuelib").promise_for(Promise.FSYNCED) is None
    assert kind_of("sqlite").promise_for(Promise.FSYNCED) is Promise.FSYNCED
    assert kind_of("sqlite").promise_for(Promise.VOLATILE) is None


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_goals_name_values_and_peers_that_there_are(work: Work) -> None:
    for goal in work.goals:
        assert goal.value in work.values
        assert not goal.other or goal.other in work.values
        assert not goal.beside or goal.beside in PEERS


def test_the_readme_shows_values_that_works_measure() -> None:
    for name, value in page.README_ROWS.items():
        assert value in WORKS_BY_NAME[name].values
    assert set(page.README_PEERS) <= set(PEERS)


@pytest.mark.skipif(not OUT.exists(), reason="nothing was measured yet")
def test_the_kept_outcome_is_what_the_pages_say() -> None:
    kept = Outcome.kept()
    shown = report.PERFORMANCE.read_text(encoding="utf-8")
    assert page.markdown(kept).strip() == shown.partition(report.BEGIN)[2].partition(report.END)[0].strip()
    first = page.README.read_text(encoding="utf-8").partition(page.README_BEGIN)[2].partition(page.README_END)[0]
    assert page.readme(kept).strip() == first.strip()
