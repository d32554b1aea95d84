"""Measure the routing table's command line: start-up, memory, and how the cost grows with the catalog.

Needs hyperfine (https://github.com/sharkdp/hyperfine, or ``apt-get install hyperfine``). Prints the tables that
docs/benchmarks.md shows and exits 1 if a bar is missed.

Usage: python tests/benchmarks/table/run.py            with the interpreter that sndr is installed for
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from make_catalog import make_catalog

BARE = "python3 -c pass"
ROOT = Path(__file__).parents[3]


def _median_ms(command: list[str], runs: int, warmup: int = 3) -> dict[str, float]:
    """Return median, quartiles and minimum of the whole process's wall time, as hyperfine measures it."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        options = ["--shell=none", f"--warmup={warmup}", f"--runs={runs}", "--export-json", out.name]
        subprocess.run(["hyperfine", *options, shlex.join(command)], check=True, capture_output=True, cwd=ROOT)
        times = json.loads(Path(out.name).read_text())["results"][0]["times"]
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median": middle * 1000, "low": low * 1000, "high": high * 1000, "min": min(times) * 1000}


def _rss_mib(command: list[str]) -> float:
    """Return the largest resident set of one run; a fresh process measures, since the figure is of all its children."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL,"
        " stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True, cwd=ROOT)
    return float(done.stdout)


def main() -> int:
    """Run everything; return 1 if a bar is missed."""
    table = [sys.executable, "-m", "sndr.cli", "routing-table"]
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores\n")
    bare = _median_ms([sys.executable, "-c", "pass"], 40)
    print("| command | median ms (quartiles) | x bare | bar | peak RSS MiB | bar |\n|---|---|---|---|---|---|")
    print(f"| `{BARE}` | {bare['median']:.1f} ({bare['low']:.1f} to {bare['high']:.1f}) | 1 | | | |")
    is_good = True
    for option, times, rss_bar in (("--json", 14, 35.0), ("--validate", 27, None)):
        spent = _median_ms([*table, option], 40)
        ratio, rss = spent["median"] / bare["median"], _rss_mib([*table, option])
        is_good = is_good and ratio <= times and (rss_bar is None or rss <= rss_bar)
        shown = f"{spent['median']:.1f} ({spent['low']:.1f} to {spent['high']:.1f})"
        bars = f"<= {times} | {rss:.1f} | {f'<= {rss_bar:.0f}' if rss_bar else ''}"
        print(f"| `routing-table {option}` | {shown} | {ratio:.1f} | {bars} |")
    print("\n| presets | fastest s | ms a preset | peak RSS MiB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        for count in (1000, 10_000):
            make_catalog(count, Path(folder) / str(count))
            commands[count] = [*table, "--presets", str(Path(folder) / str(count))]
        # The two sizes take turns and the fastest run of each counts: what else the machine does only ever adds time.
        rounds = [
            {count: _median_ms(command, 2, warmup=0)["min"] for count, command in commands.items()} for _ in range(5)
        ]
        each = {count: min(fastest[count] for fastest in rounds) / count for count in commands}
        for count, command in commands.items():
            rss = _rss_mib(command)
            is_good = is_good and rss < 500
            print(f"| {count} | {each[count] * count / 1000:.2f} | {each[count]:.3f} | {rss:.0f} |")
    growth = each[10_000] / each[1000]
    print(f"\nTime a preset at 10,000 over 1,000: {growth:.2f} (bar <= 1.3)")
    return 0 if is_good and growth <= 1.3 else 1


if __name__ == "__main__":
    raise SystemExit(main())
