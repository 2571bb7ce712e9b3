#!/usr/bin/env python3
"""Runs the programs of scripts/advice/programs.toml within memory limits, and keeps what each did.

    scripts/limit-truth.py run RESULTS PEAKS [--only NAME]...    what is not yet in the folder RESULTS
    scripts/limit-truth.py report RESULTS                        a Markdown table of it

PEAKS is the folder with the results of scripts/validate-advice.py: the median of a program's peak of anonymous memory
under thp=never says its limits, 75 % and 50 % of it. Programs with less than 40 MB are left out. Each runs --runs times
(5) within each limit, under thp=never, with zram (lz4) behind it of four times the peak. The limits take turns. What is
late twice is not tried again.

RESULTS/NAME.PERCENT.RUN.json is one run: what `measure --json` wrote, and

    program, percent, run, peak (bytes), kernel, date
    outcome      "done"; "killed" for memory; "late": it took ten times its time; "failed" with another exit status

Started again, the script does the rest. RESULTS/data keeps inputs, RESULTS/scratch is the programs' folder.
It needs root, and: cargo build --release -p quire-measure --example measure
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PERCENTS = [75, 50]
SETTING = "thp=never"
LEAST_PEAK = 40_000_000
# From here on a count of major faults is compared with a prediction.
MANY_FAULTS = 1000
# A program may take so many times as long as without a limit, and at least some seconds.
LONGER, SHORTEST = 10, 60


def load_advice():
    """The script with the campaign of the settings, which knows how to prepare a program."""
    spec = importlib.util.spec_from_file_location("advice", ROOT / "scripts/validate-advice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


advice = load_advice()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("action", choices=["run", "report"])
    arguments.add_argument("results", type=pathlib.Path)
    arguments.add_argument("peaks", nargs="?", type=pathlib.Path)
    arguments.add_argument("--only", action="append", metavar="NAME")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--measure", type=pathlib.Path, help="target/release/examples/measure")
    arguments = arguments.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    arguments.measure = (arguments.measure or target / "examples/measure").resolve()
    arguments.results, arguments.quire = arguments.results.resolve(), None
    if arguments.action == "report":
        return report(arguments.results)
    if arguments.peaks is None:
        sys.exit("name the folder with the results of validate-advice.py")
    if os.geteuid() != 0:
        sys.exit("memory limits can be set by root only")
    # Its end takes limits and swap away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    programs = tomllib.loads((advice.SOURCES / "programs.toml").read_text())
    limited = [Limited(n, p, arguments) for n, p in programs.items() if n in (arguments.only or programs)]
    limited = [program for program in limited if program.peak >= LEAST_PEAK]
    # A round of all before the next one, so that an early look has something of each.
    for number in range(1, arguments.runs + 1):
        for program in limited:
            try:
                program.round(number)
            except advice.Failure as failure:
                print(f"{program.name}: {failure}", flush=True)


class Limited(advice.Campaign):
    """A program, and its limits."""

    def __init__(self, name, program, arguments):
        super().__init__(name, program, arguments)
        _, measured = advice.files(arguments.peaks, name)
        runs = advice.read_measured(measured).get(SETTING, [])
        # The group is charged for all processes, and for a page that two of them share once.
        self.peak = round(statistics.median(run["peak_anonymous_once"] for run in runs)) if runs else 0
        self.wall = statistics.median(run["wall"] for run in runs) if runs else 0
        self.prepared = False

    def round(self, number):
        for percent in PERCENTS:
            file = self.arguments.results / f"{self.name}.{percent}.{number}.json"
            if file.exists() or self.is_late(percent):
                continue
            self.prepare()
            run = {"program": self.name, "percent": percent, "run": number, "peak": self.peak}
            run |= {"kernel": platform.release(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
            run |= self.run_within(self.peak * percent // 100)
            advice.write(file, json.dumps(run) + "\n")
            faults = run.get("major_faults", "no")
            print(f"{self.name} {percent} % #{number}: {run['outcome']}, {faults} major faults", flush=True)

    def is_late(self, percent):
        files = self.arguments.results.glob(f"{self.name}.{percent}.*.json")
        return sum(json.loads(file.read_text())["outcome"] == "late" for file in files) >= 2

    def prepare(self):
        if self.prepared:
            return
        missing = advice.missing_packages(self.program)
        if missing:
            raise advice.Failure(f"apt-get install {' '.join(missing)}")
        self.data.mkdir(parents=True, exist_ok=True)
        if "prepare" in self.program:
            self.call(["sh", "-ec", self.program["prepare"]], self.data)
        self.prepared = True

    def run_within(self, limit):
        """A run's figures and its outcome. One that was ended has no figures."""
        output = self.data / f"{self.name}.limited"
        output.unlink(missing_ok=True)
        sets = [word for pair in advice.words_of(SETTING) for word in ("--set", pair)]
        seconds = max(SHORTEST, math.ceil(LONGER * self.wall))
        within = ["--limit", limit, "--swap", f"zram:{4 * self.peak}", "--timeout", seconds, "--json", output]
        command = [str(word) for word in (self.arguments.measure, *sets, *within, *self.command)]
        try:
            self.call(command, self.fresh(), busy=3000)
        except advice.Failure as failure:
            if "ran longer" not in str(failure):
                raise
            outcome = "killed" if "killed for memory" in str(failure) else "late"
            return {"outcome": outcome, "seconds": seconds, "limit": {"bytes": limit}}
        run = json.loads(output.read_text())
        if run["limit"]["oom_kills"]:
            return run | {"outcome": "killed"}
        return run | {"outcome": "done" if run["exit"] == 0 else "failed"}


def report(results):
    runs = {}
    for file in sorted(results.glob("*.json")):
        run = json.loads(file.read_text())
        runs.setdefault((run["program"], -run["percent"]), []).append(run)
    print("Memory in MB (10^6 bytes). Faults and compressed sizes: median (range) of the runs that ended well; the spread is")
    print("the range by the median. Kernel and files: medians of the samples after the limit was reached.\n")
    print("| program | limit | runs | major faults | spread | hits | kernel | files | swapped, at most | compressed |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    many = {}
    for (name, percent), of_limit in runs.items():
        done = [run for run in of_limit if run["outcome"] == "done"]
        outcomes = [run["outcome"] for run in of_limit]
        count = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
        limit = f"{-percent} %: {of_limit[0]['limit']['bytes'] / 1e6:.1f}"
        if not done:
            print(f"| {name} | {limit} | {count} | | | | | | | |")
            continue
        faults = advice.Figure([run["major_faults"] for run in done])
        if faults.median > MANY_FAULTS:
            many.setdefault(-percent, []).append((name, faults))
        spread = f"{(faults.max - faults.min) / faults.median:.1%}" if faults.median else ""
        hits = statistics.median(run["limit"]["hits"] for run in done)
        charges = [run["limit"]["limited"] for run in done if run["limit"]["limited"]]
        kernel, files = (charged(charges, key) for key in ("kernel", "file"))
        pools = [run["limit"]["swap"]["fullest"] for run in done if run["limit"]["swap"]["fullest"]]
        original, compressed = (advice.span(advice.Figure([p[key] for p in pools]), advice.mega) for key in ("original", "compressed"))
        cells = [name, limit, count, advice.span(faults, "{:.0f}".format), spread, f"{hits:.0f}", kernel, files, original, compressed]
        print("| " + " | ".join(cells) + " |")
    print()
    for percent, found in many.items():
        spreads = [(faults.max - faults.min) / faults.median for _, faults in found]
        print(f"More than {MANY_FAULTS} major faults at {percent} %: {len(found)} programs ({', '.join(name for name, _ in found)});")
        print(f"their spread is {statistics.median(spreads):.1%} in the median, {max(spreads):.1%} at most.\n")


def charged(charges, key):
    return advice.mega(statistics.median(charge[key] for charge in charges)) if charges else ""


if __name__ == "__main__":
    main()
