"""The paper's page: figures to lines, bars and curves; one table measured anew; the same figures, the same page."""

from __future__ import annotations

import datetime

import pytest

from bench import paper
from bench.measure import Rounds, Spread
from bench.paper import write
from bench.paper.arithmetic import Proportions
from bench.paper.chart import Bar, Curve, bars, curves, levels
from bench.paper.measured import Document, Figure, Measured, load, measured, save
from bench.paper.page import lines, number, page, section
from bench.paper.rates import Rates, accepted, mean_ratio
from bench.paper.table import Entry, Line, Picture, Table, Unit
from bench.paper.tables import TABLES
from bench.prompts import turned
from bench.report import Report
from shoal.errors import UsageError

DAY = datetime.date(2026, 11, 30)
REPLY = {"seconds": 2.0, "answers": [[1, 2, 3, 4]], "drafts": {"model": [5, 4]}, "proposed": {"model": 8}}


def small(measure=None) -> Table:
    return Table(
        name="small",
        title="A small table",
        source="table tab",
        text="One against the other.",
        entries=(
            Entry.of_rates("two | one", "two", "one", paper=30.0, paper_over=20.0, accepted=0.707),
            Entry("a trim", "trim_ms", Unit.MS, 48.0),
        ),
        differs=("The machine.",),
        measure=measure,
        picture=Picture("small", "K", (Line("all", {5: "two over one", 3: "trim_ms", 7: "two over one"}),)),
    )


FIGURES = {
    "two over one": Figure(value=1.25, low=1.2, high=1.304),
    "tokens_per_s.two": Figure(value=12.5),
    "accepted.two": Figure(value=0.5),
}


def kept(figures=FIGURES, quick=False) -> Measured:
    return Measured(day=DAY, quick=quick, cpu="Z80", cores=2, openvino="1.2-3", figures=figures, notes=["a note"])


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (1.254, Unit.RATIO, "1.25 ×"),
        (12.54, Unit.RATIO, "12.5 ×"),
        (0.0071, Unit.SHARE, "0.7 %"),
        (1.0213, Unit.SHARE, "102 %"),
        (513024.0, Unit.BYTES, "513,024 bytes"),
        (3.6e-5, Unit.PLAIN, "4e-05"),
        (8.0, Unit.BYTES, "8 bytes"),
        (0.0, Unit.COUNT, "0"),
        (0.0, Unit.PLAIN, "0.00"),
        (-0.0002, Unit.SHARE, "-2e-02 %"),
    ],
)
def test_figures_are_written_with_the_digits_that_count(value, unit, written):
    assert number(value, unit) == written


def test_lines_hold_what_was_measured_beside_the_papers_figures():
    assert lines(small(), FIGURES).splitlines() == [
        "|  | here | lowest – highest | paper | tok/s | paper, tok/s | accepted | paper, accepted |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        r"| two \| one | **1.25 ×** | 1.20 × – 1.30 × | 1.50 × | 12.5 | 30.0 | 50.0 % | 70.7 % |",
        "| a trim | – | – | 48.0 ms | – | – | – | – |",
    ]


def test_columns_without_anything_are_left_out():
    table = Table("t", "T", "s", "x", (Entry("a trim", "trim_ms", Unit.MS, 48.0),), (), None)
    assert lines(table, {"trim_ms": Figure(value=2.5)}).splitlines() == [
        "|  | here | lowest – highest | paper |",
        "| --- | ---: | ---: | ---: |",
        "| a trim | **2.50 ms** | – | 48.0 ms |",
    ]


def test_a_section_says_what_differs_and_when_it_was_measured():
    text = section(small(), kept())
    assert text.startswith("## small: A small table\n\nOne against the other. In the paper: table tab.\n\n|")
    assert "![small](pictures/paper-small.svg)" in text
    assert "What differs:\n\n- The machine." in text
    assert text.endswith("Measured on 2026-11-30 on 2 cores (Z80), OpenVINO 1.2: a note.")


def test_a_quick_figure_says_that_it_is_none():
    assert "**With `--quick`: shows that it runs, not a figure.**" in section(small(), kept(quick=True))


def test_a_table_that_was_never_measured_says_so():
    assert page({"small": small()}, Document()).count("Not measured yet.") == 1


def test_bars_are_the_ratios_that_were_measured():
    assert bars(small(), FIGURES) == [Bar("two | one", 1.25, 1.2, 1.304, 1.5)]
    assert bars(small(), {}) == []


def test_curves_have_the_points_that_there_are_in_order():
    table = small()
    assert curves(table, table.picture, FIGURES) == [
        Curve("all", ((5, 1.25), (7, 1.25)), ((3, 48.0), (5, 1.5), (7, 1.5))),
    ]


def test_a_curve_of_the_papers_that_two_lines_share_stands_once():
    points = {5: "two over one"}
    first, second = curves(small(), Picture("small", "K", (Line("one", points), Line("other", points))), FIGURES)
    assert first.paper == ((5, 1.5),)
    assert second == Curve("other", ((5, 1.25),), ())


def test_levels_are_those_that_were_measured():
    picture = Picture("small", levels={"two": "two over one", "trim": "trim_ms"})
    assert levels(picture, FIGURES) == {"two": 1.25}


def test_a_papers_ratio_is_that_of_its_rates():
    entry = Entry.of_rates("label", "two", "one", paper=43.97, paper_over=16.33)
    assert entry.key == "two over one"
    assert entry.paper == pytest.approx(2.69, abs=0.005)
    assert Entry.of_rates("label", "two", "one").paper is None


def test_accepted_is_the_share_of_all_that_were_sent():
    other = {"drafts": {"model": [4, 3], "suffix": [2, 1]}, "proposed": {"model": 6, "suffix": 2}}
    assert accepted([REPLY, other]) == Spread.of([0.5, 0.5])
    assert accepted([{"drafts": {}, "proposed": {}}, {}]) is None


def test_a_mean_of_ratios_is_taken_round_by_round():
    rounds = Rounds({"a": [2.0, 4.0], "b": [1.0, 1.0], "c": [1.0, 3.0]})
    assert mean_ratio(rounds, [("a", "b"), ("c", "b")]) == Spread.of([1.5, 3.5])


class _Asked:
    """A worker whose answer is known, and what it was asked."""

    def __init__(self):
        self.requests = []

    def ask(self, request, deadline_s):
        self.requests.append(request)
        return REPLY


def test_rates_warm_up_with_few_tokens_and_never_repeat_a_prompt():
    worker, rates = _Asked(), Rates(24)
    rates.add("two", worker, [[5, 6]], delay_ms=50)
    rates.add("one", worker, [[5, 6]], learns=True)
    report = rates.report(small(), rates.measure(2))
    first = worker.requests[::2]
    assert [request["tokens"] for request in first] == [8, 24, 24]
    assert [request["tokens"] for request in worker.requests[1::2]] == [24, 24, 24]
    assert [request["prompts"][0] for request in first] == [turned([5, 6], turn) for turn in range(3)]
    assert all(request["delay_ms"] == 50 for request in first)
    assert report.results["two over one"] == 1.0
    assert report.results["tokens_per_s.two"] == 2.0
    assert report.results["accepted.one"] == 0.5
    assert rates.chance("two") == 0.8


def test_the_arithmetic_of_synchronous_speculation():
    free = Proportions(network=1.0, compute=0.0, slope=0.0, draft=0.0)
    assert free.gain(1.0, 4) == 5.0
    assert free.gain(0.0, 4) == 1.0
    assert free.gain(0.5, 2) == 1.75
    assert Proportions(0.0, 1.0, 0.5, 0.25).gain(1.0, 2) == pytest.approx(3 / 2.5)


def test_what_was_measured_comes_back_from_its_file(tmp_path):
    report = Report()
    report.add("x", Spread(1.0, 0.5, 2.0))
    report.add("y", 3)
    document = Document(tables={"small": measured(report, quick=True, day=DAY)})
    save(tmp_path, document)
    assert load(tmp_path) == document
    assert load(tmp_path).tables["small"].figures == {
        "x": Figure(value=1.0, low=0.5, high=2.0),
        "y": Figure(value=3.0),
    }


def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path):
    (tmp_path / "paper.json").write_text('{"tables": {"small": {"day": "today"}}}')
    with pytest.raises(UsageError, match=r"paper\.json: tables\.small\.day: "):
        load(tmp_path)


def test_unknown_tables_and_folders_are_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(UsageError, match="no table 'no' here; there are shards, rewind"):
        paper.run(True, ["no"])
    with pytest.raises(UsageError, match="is no folder"):
        paper.run(True, into=tmp_path / "nowhere")


def test_measuring_one_table_anew_leaves_the_others_alone(tmp_path, monkeypatch):
    values = iter([1.5, 2.5, 3.5])

    def measure(table, quick):
        report = Report()
        report.add("two over one", next(values))
        return report

    tables = {name: small(measure) for name in ("one", "other")}
    monkeypatch.setattr(paper, "TABLES", tables)
    monkeypatch.setattr(write, "TABLES", tables)
    monkeypatch.setattr(write, "draw", lambda *_: None)
    paper.run(False, into=tmp_path)
    whole = paper.run(False, ["one"], tmp_path)
    assert whole.results == {"one: two over one": 3.5}
    found = load(tmp_path).tables
    assert [found[name].figures["two over one"].value for name in tables] == [3.5, 2.5]
    assert "3.50 ×" in (tmp_path / "paper.md").read_text()


def test_the_same_figures_give_the_same_page_and_pictures(tmp_path):
    figures = {
        name: {entry.key: Figure(value=1.5, low=1.0, high=2.0) for entry in table.entries}
        for name, table in TABLES.items()
    }
    document = Document(tables={name: kept(table) for name, table in figures.items()})
    written = written_of(document, tmp_path / "once")
    pictures = {name: table.picture for name, table in TABLES.items() if table.picture is not None}
    files = {name: f"paper-{name}.svg" for name in pictures}
    assert set(written) == {"paper.json", "paper.md", *files.values()}
    for name in files.values():
        assert f"(pictures/{name})" in written["paper.md"].decode()
    # One picture of each kind is enough: those of a kind are drawn by the same lines.
    again = {bool(picture.lines): name for name, picture in pictures.items()}
    assert len(again) == 2, "bars and curves"
    few = Document(tables={name: document.tables[name] for name in again.values()})
    rewritten = written_of(few, tmp_path / "again")
    assert [rewritten[files[name]] for name in few.tables] == [written[files[name]] for name in few.tables]
    assert page(TABLES, document) == written["paper.md"].decode()


def written_of(document, folder):
    """Every file that is written for it, by name."""
    folder.mkdir()
    save(folder, document)
    write.write_page(folder)
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_line_has_a_figure_of_its_own_and_every_point_a_line(table):
    keys = [entry.key for entry in table.entries]
    assert len(keys) == len(set(keys))
    assert TABLES[table.name] is table
    if table.picture is not None:
        points = [key for line in table.picture.lines for key in line.points.values()]
        assert set(points) | set(table.picture.levels.values()) <= set(keys)
    assert table.differs


def test_the_page_in_the_repository_is_that_of_its_figures():
    document = load(write.DOCS)
    written = (write.DOCS / "paper.md").read_text()
    assert written == page(TABLES, document), "write it anew: python -m bench.paper"
    assert set(document.tables) <= set(TABLES)
