#!/usr/bin/env python3
"""Holds figures of `quire advise` against Linux for the programs of scripts/cases, and the memory limits that it names.

    scripts/validate-cases.py run RESULTS [--limits]    what is not yet in the folder RESULTS
    scripts/validate-cases.py report RESULTS            Markdown tables of it

Each program is recorded three times, predicted, and run --runs times (5) under each setting in turns, in a memory
cgroup that limits nothing. With --limits it is recorded three times more, under a pressure of a quarter of its peak, and
then run ten times within the limit that `quire advise` names for cgroups of version 1, with the swap that it names, and
ten times within 80 % of that.

RESULTS/recordings, RESULTS/NAME.predicted.jsonl and NAME.limits.jsonl (what `quire advise --json` printed),
NAME.measured.jsonl and NAME.limited.jsonl (a line a run) hold what is done: started again, the script does the rest.
It needs root and the release builds of quire and of the example `measure` of quire-measure.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "scripts/cases"
SETTINGS = ["thp=never", "thp=always", "mthp=64K"]
RECORDINGS = 3
# A prediction is right if it is so near to the median, as a share or in bytes, or inside the range of the runs.
NEAR, NEAR_BYTES = 0.03, 64 << 10
# A limit that limits nothing.
UNLIMITED = "256G"
LIMITED_RUNS, LESS = 10, 80
# What `quire advise` calls enough: stalled for no larger share of the time. What is paid once is its most likely cost;
# its most is so many times that (20 us for a page that goes out instead of 12).
STALLED, ONCE_MOST = 0.02, 20 / 12
# Linux adds changes of a cgroup's counters when there are so many pages for a processor.
BATCH = 64 * 4096 * os.cpu_count()


def load_advice():
    """The script with the campaign of the settings, which knows how to prepare, record and measure a program."""
    spec = importlib.util.spec_from_file_location("advice", ROOT / "scripts/validate-advice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


advice = load_advice()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("action", choices=["run", "report"])
    arguments.add_argument("results", type=pathlib.Path)
    arguments.add_argument("--only", action="append", metavar="NAME")
    arguments.add_argument("--limits", action="store_true", help="run within the limits that are named")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--quire", type=pathlib.Path, help="target/release/quire")
    arguments.add_argument("--measure", type=pathlib.Path, help="target/release/examples/measure")
    arguments = arguments.parse_args()
    programs = tomllib.loads((SOURCES / "programs.toml").read_text())
    for name in set(arguments.only or []) - set(programs):
        sys.exit(f"there is no program {name}")
    names = arguments.only or list(programs)
    if arguments.action == "report":
        return report(arguments.results, names)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    arguments.quire = (arguments.quire or target / "quire").resolve()
    arguments.measure = (arguments.measure or target / "examples/measure").resolve()
    arguments.recordings, arguments.again = RECORDINGS, False
    # Its end puts the host's settings back, and takes limits and swap away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        advice.check_host(arguments)
        failed = [name for name in names if not is_done(Case(name, programs[name], arguments))]
    except KeyboardInterrupt:
        sys.exit("interrupted; started again it goes on where it stopped")
    if failed:
        sys.exit(f"not done: {', '.join(failed)}")


def is_done(case):
    """Runs a case. The others go on when one fails."""
    try:
        case.work()
    except (advice.Failure, subprocess.TimeoutExpired) as failure:
        print(f"{case.name}: {failure}", file=sys.stderr, flush=True)
        return False
    return True


def progress(text):
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


class Case(advice.Campaign):
    """One program."""

    def __init__(self, name, program, arguments):
        super().__init__(name, program, arguments)
        self.environment["SRC"] = str(SOURCES)
        results = arguments.results.resolve()
        self.limits, self.limited = results / f"{name}.limits.jsonl", results / f"{name}.limited.jsonl"
        self.pressed = [results / f"recordings/{name}.pressure{number}.qtr" for number in range(RECORDINGS)]

    def work(self):
        self.prepare()
        self.predict_settings()
        for number in range(self.runs):
            for setting in SETTINGS:
                if len(advice.read_measured(self.measured).get(setting, [])) <= number:
                    self.measure_under(setting)
        if self.arguments.limits:
            self.predict_limits()
            limit, swap = enough(self.limits)
            for percent in (100, LESS) if limit else ():
                for _ in range(len(limited_runs(self.limited, percent)), LIMITED_RUNS):
                    self.run_within(percent, limit * percent // 100, swap)

    def predict_settings(self):
        if self.predicted.exists():
            return
        progress(f"{self.name}: recorded")
        self.record(self.recordings, [])
        advice.write(self.predicted, self.advise(self.recordings))

    def predict_limits(self):
        if self.limits.exists():
            return
        progress(f"{self.name}: recorded under pressure")
        rows, _ = read(self.predicted)
        peak = next(row["peak_anonymous"] for row in rows.values() if row["present"])
        self.record(self.pressed, ["--pressure", str(round(peak) // 4)])
        advice.write(self.limits, self.advise(self.recordings + self.pressed))

    def record(self, recordings, words):
        recordings[0].parent.mkdir(exist_ok=True)
        missing = [recording for recording in recordings if not recording.exists()]
        if not missing:
            return
        with advice.hold(self.arguments.measure, advice.words_of(advice.SETTINGS[0]) + self.pace):
            for recording in missing:
                words = words or ["--no-reuse"]
                record = [self.arguments.quire, "record", *words, "-o", recording, "--", *self.command]
                self.call(record, self.fresh(), busy=3000)

    def advise(self, recordings):
        return self.call([self.arguments.quire, "advise", "--json", *recordings], self.fresh())

    def measure_under(self, setting):
        progress(f"{self.name}: {setting}")
        run = self.run_measured(setting, ["--limit", UNLIMITED, "--timeout", "120"])
        if run["exit"] != 0:
            raise advice.Failure(f"it ended with {run['exit']} under {setting}")
        append(self.measured, {"setting": setting} | run)

    def run_measured(self, setting, words):
        output = self.data / f"{self.name}.run"
        output.unlink(missing_ok=True)
        sets = [word for pair in advice.words_of(setting) + self.pace for word in ("--set", pair)]
        self.call([self.arguments.measure, *sets, *words, "--json", output, *self.command], self.fresh(), busy=3000)
        return json.loads(output.read_text())

    def run_within(self, percent, limit, swap):
        """A run that is ended for memory, or since it takes ten times as long, has no figures."""
        progress(f"{self.name}: {percent} % of the limit")
        _, verdict = read(self.limits)
        seconds = max(60, round(10 * verdict["seconds"]))
        words = ["--limit", str(limit), "--swap", swap, "--timeout", str(seconds)]
        before = stalled_us()
        try:
            run = self.run_measured(advice.SETTINGS[0], words)
            killed = run["limit"]["oom_kills"] > 0 or run["exit"] != 0
            found = {key: run[key] for key in ("wall", "major_faults")}
            found["outcome"] = "killed" if killed else "done"
        except advice.Failure as failure:
            if "ran longer" not in str(failure):
                raise
            found = {"outcome": "killed" if "killed for memory" in str(failure) else "late"}
        found |= {"percent": percent, "limit": limit, "stalled": (stalled_us() - before) / 1e6}
        append(self.limited, found)


def stalled_us():
    """How long tasks of this host waited for memory, in microseconds."""
    text = pathlib.Path("/proc/pressure/memory").read_text()
    return int(text.splitlines()[0].rpartition("total=")[2])


def append(file, run):
    run = {"kernel": platform.release(), "date": time.strftime("%Y-%m-%d", time.gmtime())} | run
    with open(file, "a") as lines:
        lines.write(json.dumps(run) + "\n")


def read(file):
    """The rows of settings by their names, and the verdict."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rows = {line["setting"]: line for line in lines if "present" in line}
    return rows, next(line for line in lines if "verdict" in line)


def enough(file):
    """The limit that is named for a cgroup of version 1, which is charged for no pool of zswap, and the swap as `measure`
    takes it; none if there is none."""
    named = read(file)[1]["enough_memory"]
    if not named or not named["memory_high"]:
        return None, None
    kind = named["least"]["setting"].partition("swap=")[2].partition("-")[0].replace("disk", "file")
    return named["memory_high"] - named["zswap_pool"], f"{kind}:{named['swap_size']}"


def limited_runs(file, percent):
    runs = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [run for run in runs if run["percent"] == percent]


# Report


class Figure:
    """A figure of a program under a setting: its name, what was predicted, and how a run gives it. Of processes that share
    memory, and of what is not mapped any more of large folios, which is charged until they are split, only the cgroup
    knows: `of_group`."""

    def __init__(self, name, key, once, of_group):
        self.name, self.key, self.once, self.of_group = name, key, once, of_group

    def measured(self, run):
        """The figure, and how far it may be off."""
        group = run["limit"][self.of_group]
        if self.once is None or run["processes"] > 1 or group > run[self.once] + BATCH:
            return group, BATCH
        return run[self.once], 0

    def cells(self, row, runs):
        """What was measured and predicted, the error, and whether that is within what is wanted."""
        found = [self.measured(run) for run in runs]
        truth, slack = advice.Figure([figure for figure, _ in found]), max(slack for _, slack in found)
        guess = row[self.key]
        error = guess / truth.median - 1 if truth.median else 0.0
        slack = max(slack, NEAR_BYTES)
        is_right = abs(error) <= NEAR or truth.min - slack <= guess <= truth.max + slack
        shown = f"{error:+.1%}" + ("" if is_right else " **miss**")
        return f"{advice.span(truth, advice.mega)} / {advice.mega(guess)} | {shown}", is_right


FIGURES = [
    Figure("peak", "peak_mapped", "peak_anonymous_once", "peak_anonymous"),
    Figure("mean", "mean_anonymous", "mean_anonymous_once", "mean_anonymous"),
    Figure("end", "end_anonymous", "end_anonymous_once", "end_anonymous"),
    Figure("in use", "peak_charge", None, "peak_in_use"),
]


def report(results, names):
    report_settings(results, names)
    report_limits(results, names)


def report_settings(results, names):
    print("## Each program under each setting\n")
    print("MB (10^6 bytes): measured, median (range), / predicted; and the error.\n")
    print("| program | setting | " + " | ".join(f"{figure.name} | error" for figure in FIGURES) + " |")
    print("|---|---|" + "---|---|" * len(FIGURES))
    right, all_pairs = dict.fromkeys(FIGURES, 0), 0
    for name in names:
        predicted, measured = advice.files(results, name)
        if not predicted.exists():
            continue
        rows, _ = read(predicted)
        for setting, runs in advice.read_measured(measured).items():
            found = [figure.cells(rows[setting], runs) for figure in FIGURES]
            print(f"| {name} | {setting} | " + " | ".join(cells for cells, _ in found) + " |")
            all_pairs += 1
            for figure, (_, is_right) in zip(FIGURES, found):
                right[figure] += is_right
    counts = ", ".join(f"{figure.name} {count}" for figure, count in right.items())
    print(f"\nWithin what is wanted, of {all_pairs}: {counts}.\n")


def report_limits(results, names):
    print("## Limits\n")
    print("| program | needs | limit | of it | promised | survived | stalled, at most | at 80 %: killed | stalled more | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        file, runs = results / f"{name}.limits.jsonl", results / f"{name}.limited.jsonl"
        if file.exists():
            print("| " + " | ".join([name, *limit_cells(file, runs)]) + " |")


def limit_cells(file, runs):
    rows, verdict = read(file)
    needed = next(row["peak_charge"] for row in rows.values() if row["present"])
    limit, _ = enough(file)
    named = verdict["enough_memory"]
    if not limit:
        return [advice.mega(needed), "none", *[""] * 6, named["unknown"] if named else "no limit is enough"]
    promised = promise(verdict)
    at, below = limited_runs(runs, 100), limited_runs(runs, LESS)
    bad = [run["outcome"] != "done" for run in below]
    late = [run["outcome"] == "done" and run["stalled"] > promised for run in below]
    survived = sum(run["outcome"] == "done" for run in at)
    most = max((run["stalled"] for run in at), default=0)
    is_right = at and below and survived == len(at) and (any(bad) or any(late))
    return [
        advice.mega(needed), advice.mega(limit), named["least"]["setting"].split(",")[0].removeprefix("limit="),
        f"{promised:.2f} s", f"{survived} of {len(at)}", f"{most:.2f} s",
        f"{sum(bad)} of {len(bad)}", f"{sum(late)} of {len(late)}", "right" if is_right else "**not so**",
    ]


def promise(verdict):
    """How long the program may be stalled within the limit, in seconds."""
    least = verdict["enough_memory"]["least"]
    return STALLED * verdict["seconds"] + ONCE_MOST * least["stall_once_ns"] / 1e9


if __name__ == "__main__":
    main()
