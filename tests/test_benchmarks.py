"""The benchmarks run at tiny size, and say everything that they are to say. How fast anything is, is not asked here."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks import memory_limit, plot, report, serving, sharing
from benchmarks import serving_works as works
from benchmarks.__main__ import measure
from benchmarks.bodies import bodies_of_sizes
from benchmarks.figures import Bar, Figure, Results, Spread, ratios
from benchmarks.long_run.watching import LongRun
from benchmarks.plot import draw, draw_topics
from benchmarks.scenarios import FETCH, PLANS, PUBLISH, PublishAndFetch
from benchmarks.tape import Player, RecordingFileSystem
from benchmarks.tasks import task_messages
from warren.queue_index.properties import decode_properties

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("benchmarks")]  # what they share is measured once


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = str(tmp_path_factory.mktemp("bench"))
    with Progress(console=Console(quiet=True)) as progress:
        return measure(directory, messages=20_000, scale=0.0, repeats=1, progress=progress)


def test_every_figure_is_there(results: Results) -> None:
    titles = [figure.title for figure in results.figures]
    assert len(set(titles)) == len(titles)
    for plan in PLANS:
        assert f"{PUBLISH}: {plan.title}" in titles
        assert f"{FETCH}: {plan.title}" in titles
        assert f"{FETCH}, beside publish: {plan.title}" in titles
    starts = "memory grown by", "filled", "drained", "export"
    for start in (*starts, "memory of the"):
        assert any(title.startswith(start) for title in titles), start


def test_the_bars_are_those_that_were_set(results: Results) -> None:
    assert [(figure.group, figure.bar) for figure in results.figures if figure.bar is not None] == [
        ("128 B, paged out", Bar("at least", 0.5)),
        ("128 B, paged out", Bar("at least", 0.4)),
        ("backlog", Bar("at most", 64.0, of="value")),
        ("quorum", Bar("at least", 50.0, of="value")),
        ("quorum", Bar("at most", 256.0, of="value")),
        ("topic: 128 B", Bar("at least", 0.4)),
        ("topic: 128 B", Bar("at least", 0.3)),
        ("topic: index", Bar("at least", 300_000, of="value")),
        ("queues", Bar("at most", 10.0, of="value")),
    ]


def test_every_bar_is_judged_and_every_counterpart_is_beside_its_figure(results: Results) -> None:
    for figure in results.figures:
        assert (figure.reached is None) == (figure.bar is None)
        assert (figure.ratio is None) == (figure.counterpart is None)
        spreads = [spread for spread in (figure.ours, figure.counterpart, figure.ratio) if spread is not None]
        for spread in spreads:
            assert 0 <= spread.low <= spread.median <= spread.high or figure.unit == "MB"


def test_what_is_written_has_a_bare_counterpart_and_what_is_not_has_none(results: Results) -> None:
    for figure in results.figures:
        if figure.title.startswith(f"{PUBLISH}:"):
            assert (figure.counterpart is None) == ("transient" in figure.title)


def test_memory_is_seen_from_empty_to_full_to_empty(results: Results) -> None:
    memory = results.memory
    columns = (memory.q1, memory.q2, memory.delta, memory.q3, memory.q4)
    lengths = [sum(column) for column in zip(*columns, strict=True)]
    assert len(lengths) == len(memory.seconds) == len(memory.growth_mb)
    assert (lengths[0], max(lengths), lengths[-1]) == (0, 20_000, 0)
    assert max(memory.delta) > 0
    assert memory.seconds == sorted(memory.seconds)
    assert memory.seconds[0] < memory.filled_at_s < memory.seconds[-1]


def test_results_go_into_json_a_table_a_page_and_a_picture(results: Results, tmp_path: Path) -> None:
    plain = json.loads(json.dumps(results.to_json()))
    assert {"date", "quick", "machine", "figures", "memory"} == set(plain)
    assert {"cores", "memory_gb", "system", "python", "numpy"} == set(plain["machine"])
    assert len(plain["figures"]) == len(results.figures)
    assert report.table(results.figures).row_count == len(results.figures)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}old\n{report.END}\nafter\n", encoding="utf-8")
    report.write_into(page, report.markdown(results))
    report.write_into(page, report.markdown(results))  # again: what was written is replaced
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    titles = [f"{figure.title} ({figure.note})" if figure.note else figure.title for figure in results.figures]
    assert all(text.count(f"| {title} |") == 1 for title in titles)
    assert "older" not in text
    assert Results.from_json(plain) == results
    for number, drawing in enumerate((draw, draw_topics)):
        picture = tmp_path / f"picture-{number}.png"
        drawing(results, picture)
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_kept_results_are_the_table_and_the_pictures_of_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure's name stands in the benchmark, in the kept results and on the page: it is the same one."""
    page = report.PERFORMANCE.read_text(encoding="utf-8")
    for name in report.PARTS:
        table = page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
        assert report.part_markdown(report.kept(name)).strip() == table.strip()
    latest = report.kept("latest")
    titles = {figure.title for figure in latest.figures}
    assert "resident memory with 10,000 queues: filled, hibernated" in titles
    monkeypatch.setattr(plot, "DOCS", tmp_path)
    plot.main()
    names = {"benchmarks.png", "benchmarks-topics.png", "benchmarks-spark.png", "soak.png", "long-run.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


@pytest.mark.parametrize("size", [128, 5000], ids=["embedded", "in the store"])
def test_the_bare_counterpart_leaves_the_very_same_files(size: int, tmp_path: Path) -> None:
    ours, bare = tmp_path / "ours", tmp_path / "bare"
    scenario = PublishAndFetch(bodies_of_sizes([size] * 3000), target_ram_count=500)
    recorder = RecordingFileSystem(str(ours))
    scenario.open(recorder, str(ours))
    player = Player(str(bare))
    player.play(recorder.take())
    for _, phase in scenario.phases():
        assert phase() == 3000
        tape = recorder.take()
        assert tape.bytes_written > 0
        player.play(tape)
        assert not differences(ours, bare)
    player.close()
    scenario.close()


def differences(ours: Path, bare: Path) -> list[str]:
    """Files that are not the same on both sides, but for the lock, which is not played."""
    names = {str(path.relative_to(side)) for side in (ours, bare) for path in side.rglob("*") if path.is_file()}
    names.discard("warren.lock")
    same, _, _ = filecmp.cmpfiles(ours, bare, names, shallow=False)
    return sorted(names - set(same))


def test_ratios_are_taken_pair_by_pair() -> None:
    assert ratios([1.0, 10.0, 9.0], [2.0, 40.0, 10.0]) == Spread(0.5, 0.25, 0.9)


@pytest.mark.parametrize(
    ("bar", "reached"),
    [
        (Bar("at least", 0.5), True),
        (Bar("at least", 0.51), False),
        (Bar("at most", 0.5), True),
        (Bar("at most", 0.49), False),
        (Bar("at least", 8.0, of="value"), True),
        (Bar("at least", 9.0, of="value"), False),
        (Bar("at most", 12.0, of="value"), True),
        (Bar("at most", 11.0, of="value"), False),
        (None, None),
    ],
)
def test_a_ratio_is_judged_by_its_median_and_a_value_by_its_worst(bar: Bar | None, reached: bool | None) -> None:
    figure = Figure(group="", title="", unit="MB", ours=Spread(10.0, 8.0, 12.0), ratio=Spread(0.5, 0.1, 0.9), bar=bar)
    assert figure.reached is reached


def test_a_case_that_presses_on_stays_near_the_memory_limit_and_its_page_says_so(tmp_path: Path) -> None:
    outcome = memory_limit.run("batches", str(tmp_path / "node"), 1.0)
    assert outcome.published_mb > 0
    assert 0 < outcome.times_limit <= memory_limit.MOST
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- limit -->\nan older table\n<!-- /limit -->\nafter\n", encoding="utf-8")
    text = memory_limit.markdown({"batches": outcome}, 1.0)
    report.write_into(page, text, begin=memory_limit.BEGIN, end=memory_limit.END)
    assert f"| {outcome.times_limit:.2f} × |" in page.read_text(encoding="utf-8")
    assert "older" not in page.read_text(encoding="utf-8")


def test_the_server_is_measured_by_a_client_that_gets_what_it_published(tmp_path: Path) -> None:
    server = serving.Warren(tmp_path / "node")
    try:
        rates = works.throughput(12, 2000, 2)(server) | works.one_connection(works.tasks, 2000)(server)
        rates |= works.at_once(works.different_lengths, 2000, 2, confirms=True, acks=True)(server)
        rates |= {"ten queues": works.ten_queues(1000)(server)["confirmed"]} | works.latency(50, 2)(server)
        memory = works.idle_connections(5)(server) | works.backlog(2000, works.tasks)(server)
    finally:
        server.close()
    assert min(rates.values()) > 0
    assert set(rates) == {
        "publish", "acks", "auto-ack", "published", "confirmed", "consumed", "rate", "ten queues", "p50", "p99"
    }  # fmt: skip
    assert set(memory) == {"connection", "grown", "started"}


def test_messages_like_a_task_queue_s_differ_and_are_the_same_in_every_run() -> None:
    messages = task_messages(300, transient=0.1)
    assert messages == task_messages(300, transient=0.1)
    assert len({message.properties for message in messages}) == len({message.body for message in messages}) == 300
    headers = [decode_properties(message.properties).headers or {} for message in messages]
    assert {"id", "task", "root_id", "argsrepr", "timelimit"} <= headers[0].keys()
    assert 0 < sum(decode_properties(message.properties).delivery_mode == 1 for message in messages) < 60


def test_a_guest_is_measured_beside_its_host_and_an_echo() -> None:
    figures = sharing.measure(0.0, 1).figures
    assert [figure.title for figure in figures] == [title for title, _ in sharing.TITLES.values()]
    assert all(figure.ours.low > 0 and figure.ratio is not None and figure.ratio.low > 0 for figure in figures)


@pytest.mark.slow
def test_a_long_run_in_short_misses_nothing(tmp_path: Path) -> None:
    """Two programs that share a directory and take over from each other, and a server with its clients."""
    with LongRun(tmp_path, 12.0, takeover_count=4) as run:
        run.run(lambda _: None)
        result = run.result()
    assert (result["missing"], result["failures"]) == (0, [])
    assert [how for _, how in result["takeovers"]] == ["closed", "killed", "closed", "killed"]
    assert result["confirmed"] > 1000
    assert {"steady", "amqp"} <= {who for sample in result["samples"] for who in sample["waits"]}
    plot.draw_long_run(result, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
