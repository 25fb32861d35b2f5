"""bench/model/before_after.py: turns, ratios and what it says of made-up times."""

import sys
from pathlib import Path

sys.path[:0] = map(str, (Path(__file__).parents[2] / "bench").iterdir())
import before_after  # noqa: E402
from report import Where  # noqa: E402

PROBLEM = "fwd:f16:b1h1d32:64:w7"


class Tree:
    """Takes these times, one after the other, and then the last one."""

    def __init__(self, name, asked, *times):
        self.name, self.asked, self.times = name, asked, list(times)

    def ask(self, command):
        assert command == f"time {PROBLEM}"
        self.asked.append(self.name)
        if not self.times:
            return {"failed": command, "why": "no memory"}
        ns = self.times.pop(0) if len(self.times) > 1 else self.times[0]
        return {"candidates": [[f"cuda.{self.name}", "stages=1", 90, ns, 7 if ns else 0]]}


def race(before, after):
    asked = []
    clocks = {"before": Tree("before", asked, *before), "after": Tree("after", asked, *after)}
    return before_after.race(PROBLEM, clocks), asked


def test_trees_take_turns():
    found, asked = race([100], [98])
    assert asked == ["before", "after", "after", "before", "before", "after"]
    assert found["ratio"] == 100 / 98 and found["chosen"] == {"before": "cuda.before stages=1", "after": "cuda.after stages=1"}


def test_more_turns_decide_what_differs():
    found, asked = race([100], [150, 150, 100])  # two turns were disturbed
    assert found["ratio"] == 1 and len(asked) == 18
    assert race([100], [120])[0]["ratio"] == 100 / 120
    assert len(race([120], [100])[1]) == 18  # gains are doubted as losses are


def test_problems_without_a_time_are_named():
    assert race([], [1])[0] == {"absent": "before: no memory"}
    assert race([1], [0])[0] == {"absent": "after: the choice could not be timed"}


def test_report(tmp_path):
    chosen, ns = {"before": "cuda.a", "after": "cuda.b"}, {"before": [8000.0], "after": [10000.0]}
    lines = [{"problem": PROBLEM, "ratio": 0.8, "chosen": chosen, "ns": ns}]
    lines += [{"problem": "bwd:f16:b1h1d32:8x8:w3x3", "ratio": 1.25}, {"problem": "bwd:f16:b1h1d32:64:w9", "absent": "why"}]
    before_after.write_report(lines, Where("made-up GPU", "1.2", "abc123"), tmp_path)
    text = (tmp_path / "before_after.md").read_text()
    assert "made-up GPU; driver 1.2; commit abc123" in text
    assert "| 1-D | 1 | 0.800 | 0.800 | 0.800 |" in text and "| all | 2 | 1.000 | 0.800 | 1.250 |" in text
    assert f"| `{PROBLEM}` | 0.80 | `cuda.a` | 8.0 | `cuda.b` | 10.0 |" in text and "- `bwd:f16:b1h1d32:64:w9`: why" in text
    before_after.write_report(lines[1:2], Where("made-up GPU", "1.2", "abc123"), tmp_path)
    assert "No problem has a ratio below 0.9." in (tmp_path / "before_after.md").read_text()
