"""bench/report/performance.py: the page is that of the stored runs, what it makes of made-up ones, and a run cut short."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = map(str, (ROOT / "bench").iterdir())
import performance  # noqa: E402
import performance_report  # noqa: E402

GPU = {"kind": "cuda", "device": "made-up GPU", "driver": "1.2", "commit": "abc123", "date": "2026-01-02", "system": "-"}
CASE = "bf16:b1h16d128:65536:w4096"


def large(fwd_ms, **more):
    rows = [{"problem": f"fwd:{CASE}", "solver": "s", "ms": fwd_ms, "ideal": 16.0, "peers_ms": {"cuDNN": 60.0}}]
    return {**GPU, **more, "tables": {"large_windows": {"command": "c", "rows": rows}}}


def page(folder, template, *runs):
    for number, run in enumerate(runs):
        (folder / f"{number}.json").write_text(json.dumps(run))
    return performance_report.fill(template, performance_report.read_runs(folder))


def test_page_is_of_the_stored_runs():
    templates = {ROOT / "docs" / name.removesuffix(".in"): ROOT / "bench" / "report" / name for name in performance.TEMPLATES}
    assert performance_report.write(performance.RESULTS, templates, ROOT / "README.md", check=True) == 0


def test_tables_of_the_readme_are_written_where_they_stand(tmp_path):
    readme, template, output = (tmp_path / name for name in ("README.md", "page.in", "page.md"))
    run = large(4.0)
    rows = run["tables"]["large_windows"]["rows"]
    rows.append({**rows[0], "problem": f"bwd:{CASE}", "ms": 10.0})
    (tmp_path / "run.json").write_text(json.dumps(run))
    template.write_text("nothing")
    readme.write_text("before\n<!-- {{short large_windows}} -->\nold\n<!-- end -->\nafter\n")
    assert performance_report.write(tmp_path, {output: template}, readme, check=True) == 1
    assert performance_report.write(tmp_path, {output: template}, readme, check=False) == 0
    assert performance_report.write(tmp_path, {output: template}, readme, check=True) == 0
    before, _, head, _, row, _, after = filter(None, readme.read_text().splitlines())
    assert head.startswith("| problem") and row == f"| `{CASE}` | 4 ms | 15 | 10 ms | 6 | 16 |" and (before, after) == ("before", "after")


def test_newest_run_counts_and_missed_goals_are_bold(tmp_path):
    template = "{{ratio large_windows fwd}}\n{{table large_windows}}\n{{source large_windows}}\n{{table decoders}}"
    text = page(tmp_path, template, large(5.0, date="2026-01-03"), large(4.0))
    assert "12 to 12" in text and f"| `{CASE}` | 5 | **12** | 60 |" in text and "abc123, 2026-01-03" in text
    assert "No run has this table yet." in text
    assert f"| `{CASE}` | 4 | 15 | 60 |" in page(tmp_path, template, large(4.0))  # overwrites the first run


def test_every_cpu_has_its_newest_run(tmp_path):
    def run(device, ms, date):
        row = {"problem": "fwd:f32:b1h4d64:64x64:w21x21", "solver": "s", "configuration": "avx512, 1 thread"}
        table = {"command": "c", "rows": [{**row, "ms": ms, "share_of_peak": ms / 10}]}
        return {**GPU, "kind": "cpu", "device": device, "driver": "none", "date": date, "tables": {"cpu_suite": table}}

    runs = [run("A, avx512, 1 thread", 5.0, "1"), run("A, avx512, 2 threads", 7.0, "2"), run("B, avx512", 6.0, "0")]
    text = page(tmp_path, "{{table cpu_suite}} {{share cpu_suite fwd}}", *runs)
    assert "| 7 | 70 % |" in text and "| 6 | 60 % |" in text and "| 5 |" not in text and text.endswith("70 to 70")


def test_faults_are_named(tmp_path):
    with pytest.raises(performance_report.Fault, match="0.json: not a run"):
        page(tmp_path, "", {"kind": "cuda"})
    with pytest.raises(performance_report.Fault, match="0.json: there is no table tabel"):
        page(tmp_path, "", {**GPU, "tables": {"tabel": {}}})
    with pytest.raises(performance_report.Fault, match="the template asks for {{table tabel}}"):
        page(tmp_path, "{{table tabel}}", large(1.0))


def test_study_rows():
    def line(text, contender, ns):
        return {"problem": text, "contender": contender, "median_ns": ns, "solver": f"cuda.{contender}"}

    times = {"fused": 100, "gemm": 150, "naive": 300}
    problems = ("fwd:f16:b1h1d32:64:w7", "fwd:f16:b1h1d32:64:w3")
    rows = list(performance.study_rows([line(text, *item) for text in problems for item in times.items()]))
    found = {(row["one"], row["other"], row.get("windows"), row["rank"]): row for row in rows if "one" in row}
    assert found["fused", "gemm", None, 1]["average"] == pytest.approx(50)
    assert found["gemm", "naive", None, 0]["count"] == 2 and found["gemm", "naive", "7 to 63", 0]["count"] == 1
    slow = [line(problems[0], "fused", 200), line(problems[0], "naive", 100)]
    assert [row["other"] for row in performance.study_rows(slow) if "one" not in row] == ["naive"]


def test_programs_that_end_badly_are_named():
    table = performance.from_program("t", 1, [sys.executable, "-c", "print('{\"a\": 1.2345678}'); 1 / 0"])
    failed = "ZeroDivisionError: division by zero"
    assert table.fill(60) == {"command": table.command, "rows": [{"a": 1.2346}], "failed": failed}
    table = performance.from_program("t", 1, [sys.executable, "-c", "import time; time.sleep(60)"])
    assert "ended after 1 s" in table.fill(1).get("failed", "")


def test_run_cut_short(tmp_path):
    output = tmp_path / "run.json"
    command = [sys.executable, str(ROOT / "bench/report/performance.py"), "run", "--device", "cpu", "--tables", "cpu_suite"]
    command += ["--budget", "1", "--commit", "abc", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    run = json.loads(output.read_text())
    table = run["tables"]["cpu_suite"]
    assert done.returncode == 1 and "rows missing" in table["failed"], done.stderr
    assert run["commit"] == "abc" and table["rows"][0]["problem"] == "fwd:f32:b4h4d32:56x56:w7x7"
    assert 0 < table["rows"][0]["share_of_peak"] <= 1 and table["rows"][0]["ms"] > 0
    assert "not whole" in page(tmp_path, "{{table cpu_suite}}")


def test_the_fastest_round_counts_beside_the_largest_peak():
    sample = {"problem": "p", "solver": "s", "description": "CPU, avx2, 1 thread", "share_of_copy": 0.5}
    slow = {**sample, "median_ns": 4e6, "flops_per_s": 1e9}
    fast = {**sample, "median_ns": 2e6, "flops_per_s": 2e9}
    row = performance.best_row([slow, fast], 4e9)
    assert row["ms"] == 2 and row["share_of_peak"] == 0.5 and row["memory_ms"] == 1 and row["rounds"] == 2
    assert row["configuration"] == "avx2, 1 thread"
