"""The terminal: 80 columns, no number cut, plain where it is not a terminal."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from rich.console import Console

from equipoise.report import print_tables
from equipoise.report.numbers import half_width, percent, ratio
from equipoise.report.views import tied
from equipoise.study import Comparison, verdicts
from equipoise.study.statistics import over_seeds


def printed(comparison: Comparison, width: int = 80, **options: object) -> str:
    out = io.StringIO()
    print_tables(comparison, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue()


ALL = ["usual", "single", "brief", "grouped", "timed"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [80, 120])
def test_every_line_fits_and_no_number_is_cut(name: str, width: int, request: pytest.FixtureRequest) -> None:
    comparison: Comparison = request.getfixturevalue(name)
    text = printed(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b" not in text
    for cell in comparison.cells:
        assert percent(cell.excess.mean) in text


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [30, 40, 45, 50, 55, 59, 60])
def test_narrow_terminals_fold_labels_and_leave_columns_out(
    name: str, width: int, request: pytest.FixtureRequest
) -> None:
    comparison: Comparison = request.getfixturevalue(name)
    text = printed(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    tables = text[: text.index("excess: cost over ideal")]
    for cell in comparison.cells:
        assert re.search(rf"(^|\s){re.escape(percent(cell.excess.mean))}[*]?(\s|$)", tables)
        for word in cell.policy.label.split():  # whole words, in the tables themselves
            assert re.search(rf"(^|\s){re.escape(word)},?(\s|$)", tables)
    if width < 60 and name != "grouped":
        assert re.search(r"no room for .*bubble", " ".join(text.split()))


def test_what_matters_least_goes_first(usual: Comparison) -> None:
    shown = [
        {name for name in ("±", "balance", "context", "batch", "bubble") if name in printed(usual, w)[:400]}
        for w in range(80, 29, -5)
    ]
    for more, less in pairwise(shown):
        assert less <= more
    assert shown[0] == {"±", "balance", "context", "batch", "bubble"}
    assert shown[(80 - 60) // 5] >= {"±", "balance", "context"}
    assert shown[(80 - 40) // 5] >= {"±"}


def test_every_number_of_groups_is_shown_on_a_narrow_terminal(grouped: Comparison) -> None:
    text = " ".join(printed(grouped, 40).split())
    for cell in grouped.cells:
        assert percent(cell.excess.mean) in text
    assert "by least_tokens" in text


def test_a_row_holds_the_numbers_of_its_cell(usual: Comparison) -> None:
    lines = printed(usual).splitlines()
    for setting in usual.settings():
        for cell in usual.of(setting):
            numbers = [
                percent(cell.excess.mean),
                half_width(cell.excess),
                percent(cell.mean("balance"), 1),
                ratio(cell.mean("max_over_mean_batch")),
                ratio(cell.mean("max_over_mean_context")),
                percent(cell.mean("bubble_share"), 1),
            ]
            mark = "*" if cell is usual.best(setting) else "~" if tied(usual, cell) else ""
            assert any(line.split() == [*mark, *cell.policy.label.split(), *numbers] for line in lines)


def test_the_half_width_is_that_of_the_uncut_interval() -> None:
    interval = over_seeds([0.025, 0.035])
    assert interval.low < 0
    assert half_width(interval.never_below(0.0)) == half_width(interval) == "6.35"


def test_marks_are_explained_and_verdicts_printed(usual: Comparison) -> None:
    text = " ".join(printed(usual).split())
    assert "* least excess" in text
    assert "~ not told apart from it" in text
    for sentence in verdicts(usual):
        assert " ".join(sentence.partition(": ")[2].split()) in text


def test_one_policy_gets_no_mark(single: Comparison) -> None:
    assert "*" not in printed(single)
    assert "blocks of one run" in printed(single)


def test_no_interval_is_said(brief: Comparison) -> None:
    text = printed(brief)
    assert "n/a" in text
    assert "nan" not in text


def test_the_group_table_holds_every_cell(grouped: Comparison) -> None:
    lines = printed(grouped).splitlines()
    start = next(i for i, line in enumerate(lines) if "by number of groups" in line)
    table = [re.sub(r"\*", "", line).split() for line in lines[start + 1 : start + 8]]
    assert ["policy", "group", "by", "1", "2", "4"] in table
    for policy in grouped.plan.policies:
        for way in ("least_batch", "least_tokens"):
            cells = [
                next(
                    c
                    for c in grouped.cells
                    if c.policy is policy
                    and c.setting.pool.groups == n
                    and (n == 1 or c.setting.group_policy == way)
                )
                for n in (1, 2, 4)
            ]
            numbers = [way, *(percent(c.excess.mean) for c in cells)]
            assert any(row[-4:] == numbers for row in table)


def test_latencies_stand_in_the_row_where_there_is_room(timed: Comparison) -> None:
    assert printed(timed, 80).count("policy  ") == 2
    assert printed(timed, 120).count("policy  ") == 1
    tpot = timed.cells[0].percentiles("tpot_ms")
    assert tpot is not None
    for width in (80, 120):
        assert re.search(rf"\s{tpot['p50']:.1f}\s", printed(timed, width)) or tpot["p50"] < 10


def test_colour_only_where_it_is_wanted(usual: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")  # a dumb one gets no colour, whatever is forced
    assert "\x1b[1m" in printed(usual, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", printed(usual, force_terminal=True))


def test_a_terminal_without_unicode(usual: Comparison) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_tables(usual, Console(file=out, width=80))
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "+/-" in text
    assert max(map(len, text.splitlines())) <= 80
