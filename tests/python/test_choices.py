"""bench/model/choices.py: which problems it draws, and what it says of made-up times."""

import argparse
import json
import lzma
import sys
from pathlib import Path

import pytest

sys.path[:0] = map(str, (Path(__file__).parents[2] / "bench").iterdir())
import choices  # noqa: E402
from report import Where  # noqa: E402

WHERE = Where("made-up GPU", "1.2", "abc123")


def line(problem, times, measured=-1):
    """The first candidate is the choice; 0: it was not timed."""
    candidates = [["cuda.fused90", f"stages={i}", 100, ns, 7 if ns else 0] for i, ns in enumerate(times)]
    return {"problem": problem, "measured": measured, "candidates": candidates}


LINES = [
    line("fwd:f16:b1h1d32:64:w7", [100, 100, 0]),
    line("bwd:f16:b1h1d32:64:w7", [109, 100], measured=1),
    line("fwd:f16:b1h1d32:8x8:w7x7", [130, 0, 100], measured=0),
    line("fwd:f16:b1h1d32:8x8x8:w7x7x7", []),
]


def test_report(tmp_path):
    choices.write_report(LINES, WHERE, tmp_path)
    text = (tmp_path / "choices.md").read_text()
    assert "made-up GPU; driver 1.2; commit abc123" in text
    by_estimate, by_measure = text.split("| choice by MEASURE")
    assert "| 1-D | 2 | 50.0 % | 50.0 % | 100.0 % | 100.0 % | +4.5 % | +9.0 % |" in by_estimate
    assert "| all | 3 | 33.3 % | 33.3 % | 66.7 % | 66.7 % | +9.0 % | +30.0 % |" in by_estimate
    assert "| all, forward | 2 | 50.0 % | 50.0 % | 50.0 % | 50.0 % | +15.0 % | +30.0 % |" in by_estimate
    assert "| all | 2 | 50.0 % | 50.0 % | 50.0 % | 50.0 % | +15.0 % | +30.0 % |" in by_measure
    assert "3-D" not in text
    assert "| fwd | f16 | cuda.fused90 | cuda.fused90 | 1 |" in text
    assert text.count("| 30 % |") == 1 and "| 9 % |" not in text  # only exceptions beyond a tenth are listed


def test_untimed_choices_do_not_count():
    assert choices.behind(line("fwd:f16:b1h1d32:64:w7", [0, 100]), 0) is None
    assert choices.behind(LINES[2], 0) == 1.3
    assert choices.behind(LINES[0], -1) is None


class OtherEstimates:
    """Among the problem's candidates it proposes stages=2, which was not timed, and stages=1, and no more stages=0."""

    def ask(self, command):
        return {"candidates": [["cuda.fused90", f"stages={i}", 50 + i, 0, 0] for i in (2, 1, 3)]}


def test_other_estimates_on_known_times(tmp_path):
    known = line("fwd:f16:b1h1d32:64:w7", [100, 90], measured=1)
    found = choices.again(known, OtherEstimates())
    # the choice comes first, without a time; stages=3 was not timed either; that stages=0 was fast is not forgotten
    assert found["candidates"] == [
        ["cuda.fused90", "stages=2", 52, 0, 0],
        ["cuda.fused90", "stages=1", 51, 90, 7],
        ["cuda.fused90", "stages=0", 100, 100, 7],
    ]
    assert choices.behind(found, 0) is None and found["measured"] == -1
    choices.write_report([found, LINES[1]], WHERE, tmp_path)
    text = (tmp_path / "choices.md").read_text()
    assert "Of 1 problems the choice has no time" in text and "| all | 1 |" in text


def test_later_times_of_a_solver_take_the_place_of_earlier_ones():
    first, other = LINES[0], {**LINES[0], "candidates": [["cuda.small", "warps=1", 80, 90, 7]], "commit": "def456"}
    later = line(LINES[0]["problem"], [95])
    (found,) = choices.supersede([first, other, later, LINES[3]])
    assert found["candidates"] == [*later["candidates"], *other["candidates"]]


class Planner:
    """Its candidates for a problem are as many as the window is wide."""

    def ask(self, command):
        problem = command.removeprefix("list ").rstrip()
        return line(problem, [0] * int(problem.rsplit(":w", 1)[1]))


def test_draw_passes_over_what_shares_little():
    options = argparse.Namespace(free=1, new=2, sample=7, only="", kinds=choices.KINDS)
    wide = [f"b1h1d64:64:w{window}" for window in (3, 9, 1, 4, 2, 1)]
    narrow = [f"b1h1d32:64:w{window}" for window in (5, 7)]
    drawn = choices.draw(wide + narrow, Planner(), options)
    # of each head dim the first in any case; 9 has too many kernels of its own; of backward passes (every second) none
    # are known
    assert [*drawn] == [f"{kind}:{text}" for kind, text in (
        (choices.KINDS[0], narrow[0]), (choices.KINDS[0], wide[0]),
        (choices.KINDS[1], wide[2]), (choices.KINDS[2], wide[3]), (choices.KINDS[3], wide[4]),
    )]  # fmt: skip


def test_kernels_of_two_launches():
    problem = "bwd:f16:b1h2d64:64:w7"
    both = {"problem": problem, "candidates": [["cuda.split90", f"dq_key_tile=1x1x64,dkv_key_tile={tile}"] for tile in ("1x1x64", "1x1x128")]}
    assert len(choices.kernels(both)) == 3


def test_dtypes_take_turns():
    kinds = choices.kinds_of("f16,bf16")
    assert kinds == ("fwd:f16", "bwd:f16", "fwd:bf16", "bwd:bf16")
    options = argparse.Namespace(free=9, new=0, sample=4, only="", kinds=kinds)
    drawn = choices.draw([f"b1h1d64:{length}:w1" for length in (8, 9, 10, 11)], Planner(), options)
    assert [problem.rsplit(":", 3)[0] for problem in drawn] == list(kinds)
    with pytest.raises(argparse.ArgumentTypeError, match="dtypes are f16, bf16, f32"):
        choices.kinds_of("f16,f64")


def test_packed_files_are_read(tmp_path):
    with lzma.open(tmp_path / "known.jsonl.xz", "wt") as file:
        file.write("".join(json.dumps(each) + "\n" for each in LINES))
    assert list(choices.read_lines(tmp_path / "known.jsonl.xz")) == LINES


def test_suites_are_files_of_problems(tmp_path):
    """With comments, in their order; one is committed for windows that are most of one axis."""
    path = tmp_path / "suite.txt"
    path.write_text("# a comment of words\nfwd:f16:b1h1d32:64:w7\n\nbwd:f16:b1h1d32:64:w7  # again\n")
    assert choices.sample(None, argparse.Namespace(problems=path)) == ["fwd:f16:b1h1d32:64:w7", "bwd:f16:b1h1d32:64:w7"]
    suite = Path(__file__).parents[2] / "bench/suites/broad-windows.txt"
    problems = choices.sample(None, argparse.Namespace(problems=suite))
    assert len(problems) == len(set(problems)) == 42
    for problem in problems:
        grid, window = ([int(n) for n in word.lstrip("w").split("x")] for word in problem.split(":")[3:5])
        shares = sorted(k / n for k, n in zip(window, grid))
        assert shares[-1] >= 0.84 and shares[0] < 0.8, problem
