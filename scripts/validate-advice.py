#!/usr/bin/env python3
"""Validates `quire advise`: predicts programs from recordings, runs them under the settings, and compares.

    scripts/validate-advice.py predict RESULTS                 records, and predicts: what is not yet in the folder RESULTS
    scripts/validate-advice.py run RESULTS [--minutes N]       the same, and measures; no program is begun that will not be
                                                               done in that time
    scripts/validate-advice.py report RESULTS                  a Markdown table of it, and a summary
    scripts/validate-advice.py list [RESULTS]                  the programs, and what is there of each

The programs are in scripts/advice/programs.toml, those first that say most. Each is recorded --recordings times (3) and
predicted, and then run --runs times (5) under each setting by the example `measure` of quire-measure, which changes the
settings of this host, as root, and puts them back. The settings take turns, so that what else runs on the host meets all
of them alike. In the first turn the 2 MiB faults of the program are counted, which takes time: that of the others counts.
RESULTS/recordings, RESULTS/NAME.predicted.jsonl (what `quire advise --json` printed) and RESULTS/NAME.measured.jsonl (a
line a run) hold what is done: started again, the script does the rest. `predict --again` predicts anew from the
recordings that are there. RESULTS/data keeps inputs, RESULTS/scratch is the programs' folder, RESULTS/cache has what
`quire calibrate` measured, which is run where that is missing.

It needs the release builds: cargo build --release -p quire-cli && cargo build --release -p quire-measure --example measure
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "scripts/advice"
# What is measured of each program, and settings that the verdict names besides. The first is the host's own.
SETTINGS = ["thp=madvise", "thp=never", "thp=always", "mthp=64K", "mthp=16K-1M"]
SIZES = [16, 32, 64, 128, 256, 512, 1024]
# A measured gain is worth a setting from here on: of the peak, and of the processor time.
WORTH_MEMORY, WORTH_TIME, NOTABLE = 0.05, 0.02, 0.02
MIB = 1 << 20


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("action", choices=["predict", "run", "report", "list"])
    arguments.add_argument("results", nargs="?", type=pathlib.Path)
    arguments.add_argument("--only", action="append", metavar="NAME")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--recordings", type=int, default=3)
    arguments.add_argument("--minutes", type=float, help="begin no program that will not be done by then")
    arguments.add_argument("--again", action="store_true", help="predict anew from the recordings")
    arguments.add_argument("--quire", type=pathlib.Path, help="target/release/quire")
    arguments.add_argument("--measure", type=pathlib.Path, help="target/release/examples/measure")
    arguments = arguments.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    arguments.quire = (arguments.quire or target / "quire").resolve()
    arguments.measure = (arguments.measure or target / "examples/measure").resolve()
    programs = tomllib.loads((SOURCES / "programs.toml").read_text())
    for name in set(arguments.only or []) - set(programs):
        sys.exit(f"there is no program {name}")
    programs = {name: programs[name] for name in arguments.only or programs}
    if arguments.action != "list" and arguments.results is None:
        sys.exit("name a folder for the results")
    # Its end puts the host's settings back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    actions = {"predict": predict_all, "run": run_all, "report": report, "list": show_list}
    try:
        actions[arguments.action](programs, arguments)
    except KeyboardInterrupt:
        sys.exit("interrupted; started again it goes on where it stopped")


# Runs


def check_host(arguments):
    for tool in (arguments.quire, arguments.measure):
        if not tool.exists():
            sys.exit(f"{tool} is missing; see --help")
    if os.geteuid() != 0:
        sys.exit("the settings of this host can be changed by root only")
    # Estimates of time are with this host's costs.
    os.environ["XDG_CACHE_HOME"] = str(arguments.results.resolve() / "cache")
    if not list(arguments.results.glob("cache/quire/*")):
        arguments.results.mkdir(parents=True, exist_ok=True)
        # Another measurement may have its turn.
        while (done := subprocess.run([arguments.quire, "calibrate"], capture_output=True, text=True)).returncode:
            if "another measurement" not in done.stderr:
                sys.exit(done.stderr.strip())
            time.sleep(0.2)


def predict_all(programs, arguments):
    check_host(arguments)
    each(programs, arguments, lambda campaign: campaign.predict())


def run_all(programs, arguments):
    check_host(arguments)
    end = arguments.minutes and time.monotonic() + 60 * arguments.minutes
    each(programs, arguments, lambda campaign: campaign.run(end))


def each(programs, arguments, work):
    """The others go on when one fails."""
    failed = []
    for name, program in programs.items():
        try:
            work(Campaign(name, program, arguments))
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"{name}: {failure}", flush=True)
            failed.append(name)
    if failed:
        sys.exit(f"not done: {', '.join(failed)}")


class Failure(Exception):
    """A program that could not be recorded, predicted or measured. The others go on."""


class Campaign:
    """One program."""

    def __init__(self, name, program, arguments):
        self.name, self.program, self.arguments = name, program, arguments
        results = arguments.results.resolve()
        self.data, self.scratch = results / "data", results / "scratch"
        self.recordings = [results / f"recordings/{name}.{number}.qtr" for number in range(arguments.recordings)]
        self.predicted, self.measured = files(results, name)
        self.command = ["sh", "-ec", program["run"]]
        self.environment = dict(os.environ, SRC=str(SOURCES), DATA=str(self.data))
        # Of khugepaged, for programs that are there for it.
        self.pace = [f"khugepaged/{file}={value}" for file, value in program.get("khugepaged", {}).items()]
        self.runs = program.get("runs", arguments.runs)

    def prepare(self):
        missing = missing_packages(self.program)
        if missing:
            raise Failure(f"apt-get install {' '.join(missing)}")
        self.data.mkdir(parents=True, exist_ok=True)
        if "prepare" in self.program:
            self.call(["sh", "-ec", self.program["prepare"]], self.data)

    def run(self, end=None):
        if self.predicted.exists() and not self.todo():
            return
        if end and time.monotonic() > end:
            print(f"{self.name}: no time", flush=True)
            return
        self.prepare()
        self.predict()
        todo = self.todo()
        took = self.recorded_time()
        if end and time.monotonic() + (took + 0.4) * len(todo) > end:
            print(f"{self.name}: no time for {len(todo)} runs of {took:.1f} s", flush=True)
            return
        begun = time.monotonic()
        for setting, number in todo:
            self.measure(setting, number)
        peaks = {s: statistics.median(run["peak_anonymous"] for run in runs) for s, runs in read_measured(self.measured).items()}
        print(f"{self.name}: {', '.join(f'{s} {mega(peak)} MB' for s, peak in peaks.items())} ({time.monotonic() - begun:.0f} s)", flush=True)

    def recorded_time(self):
        """About what a run takes, in seconds."""
        _, verdict = read_predicted(self.predicted)
        return verdict["seconds"]

    def todo(self):
        """The runs that are left, the settings in turns: setting and number."""
        measured = read_measured(self.measured)
        return [(s, n) for n in range(self.runs) for s in self.settings() if len(measured.get(s, [])) <= n]

    def settings(self):
        """Those of all programs or this one's own, and what the verdict says."""
        settings = self.program.get("settings", SETTINGS)
        if self.predicted.exists():
            rows, verdict = read_predicted(self.predicted)
            for claim in ("least_memory", "fewest_faults"):
                if verdict[claim] and verdict[claim]["setting"] in rows:
                    settings = settings + [verdict[claim]["setting"]]
        return [s for place, s in enumerate(settings) if s not in settings[:place] and words_of(s) is not None]

    def fresh(self):
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        return self.scratch

    def predict(self):
        if self.predicted.exists() and not self.arguments.again:
            return
        self.prepare()
        begun = time.monotonic()
        if not all(recording.exists() for recording in self.recordings):
            self.recordings[0].parent.mkdir(exist_ok=True)
            with hold(self.arguments.measure, words_of(SETTINGS[0]) + self.pace):
                for recording in self.recordings:
                    record = [self.arguments.quire, "record", "--no-reuse", "--force", "-o", recording, "--", *self.command]
                    self.call(record, self.fresh())
        recorded = time.monotonic()
        lines = self.call([self.arguments.quire, "advise", "--json", *self.recordings], self.scratch)
        if not any((line := json.loads(text)).get("present") and line["setting"] == SETTINGS[0] for text in lines.splitlines()):
            raise Failure(f"the host was not set to {SETTINGS[0]} while it was recorded")
        write(self.predicted, lines)
        print(f"{self.name}: recorded in {recorded - begun:.0f} s, predicted in {time.monotonic() - recorded:.0f} s", flush=True)

    def measure(self, setting, number):
        output = self.data / f"{self.name}.run"
        output.unlink(missing_ok=True)
        sets = [word for pair in words_of(setting) + self.pace for word in ("--set", pair)]
        options = ["--timeout", "120", "--json", output] + (["--count"] if number == 0 else [])
        self.call([self.arguments.measure, *sets, *options, *self.command], self.fresh(), busy=3000)
        run = json.loads(output.read_text())
        if run["exit"] != 0:
            raise Failure(f"it ended with {run['exit']} under {setting}")
        day = time.strftime("%Y-%m-%d", time.gmtime())
        with open(self.measured, "a") as file:
            file.write(json.dumps({"setting": setting, "kernel": platform.release(), "date": day, **run}) + "\n")

    def call(self, command, folder, busy=0, stream="stdout"):
        """Runs a command and returns what it printed to `stream`. While another measurement holds the host's settings, it waits."""
        for attempt in range(busy + 1):
            done = subprocess.run(
                command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
            )
            if done.returncode == 0:
                return getattr(done, stream)
            if "another measurement" not in done.stderr:
                break
            time.sleep(0.2)
        raise Failure(f"{pathlib.Path(command[0]).name} {command[1]}: {done.stderr[-600:].strip()}")


@contextlib.contextmanager
def hold(measure, pairs):
    """Settings of this host, while it is recorded. Other measurements have their turns before."""
    sets = [word for pair in pairs for word in ("--set", pair)]
    why = "the settings of this host cannot be held"
    for _ in range(3000):
        holder = subprocess.Popen(
            [measure, *sets, "--hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if holder.stdout.readline() == "held\n":
            break
        why = holder.communicate()[1].strip()
        if "another measurement" not in why:
            raise Failure(why)
        time.sleep(0.2)
    else:
        raise Failure(why)
    try:
        yield
    finally:
        holder.communicate()


def words_of(setting):
    """The files of a setting and their words, as `measure --set` takes them. None of one that no host has."""
    # Sizes below 2 MiB come beside what programs ask for by madvise, as this host has it.
    enabled, sizes, none = "madvise", [], 511
    for part in re.split(r",(?=thp|mthp|max|tables)", setting):
        name, _, value = part.partition("=")
        if name == "thp":
            enabled = value
        elif name == "mthp":
            low, _, high = value.partition("-")
            low, high = kilobytes(low), kilobytes(high or low)
            sizes = [size for size in SIZES if low <= size <= high]
        elif name == "max_ptes_none":
            none = int(value)
        else:
            return None
    words = [f"enabled={enabled}", "hugepages-2048kB/enabled=inherit", f"khugepaged/max_ptes_none={none}"]
    return words + [f"hugepages-{size}kB/enabled={'always' if size in sizes else 'never'}" for size in SIZES]


def kilobytes(text):
    return int(text[:-1]) * (1024 if text.endswith("M") else 1)


def missing_packages(program):
    def installed(package):
        query = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True)
        return "install ok installed" in query.stdout

    known = {"rustc": "rustc", "default-jdk-headless": "javac"}
    return [p for p in program["packages"] if not installed(p) and not (p in known and shutil.which(known[p]))]


# Results


def files(results, name):
    return results / f"{name}.predicted.jsonl", results / f"{name}.measured.jsonl"


def write(file, text):
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def read_predicted(file):
    """The rows by setting, each figure with its range, and the verdict."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    # Memory limits have lines of their own, which say nothing of huge pages.
    rows = {line["setting"]: with_ranges(line) for line in lines if "present" in line}
    return rows, next(line for line in lines if "verdict" in line)


def with_ranges(row):
    def figure(numbers, name):
        median = numbers.get(name) or 0
        low, high = numbers.get(f"{name}_range", (median, median))
        return {"median": median, "min": low, "max": high}

    names = ("peak_anonymous", "peak_largest", "peak_page_tables", "huge_share", "faults", "never_touched", "estimate_ns")
    return {name: figure(row, name) for name in names} | {"huge_faults": figure(row["faults_by_size"], "2M")}


def read_measured(file):
    """The runs of each setting. A line that a killed campaign left half is not counted."""
    measured = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            run = json.loads(line)
        except ValueError:
            continue
        measured.setdefault(run["setting"], []).append(run)
    return measured


def show_list(programs, arguments):
    for name, program in programs.items():
        kind = "service" if program.get("service") else "job"
        missing = missing_packages(program)
        state = f"apt-get install {' '.join(missing)}" if missing else ""
        if arguments.results:
            predicted, measured = files(arguments.results, name)
            state = f"{'predicted' if predicted.exists() else ''} {' '.join(read_measured(measured))} {state}"
        print(f"{name:20} {kind:8} {state}")


# Comparison


class Figure:
    """Median and ends of a figure of several runs."""

    def __init__(self, values):
        self.median, self.min, self.max = statistics.median(values), min(values), max(values)


class Case:
    """A program under one setting: what was predicted, and what was measured."""

    def __init__(self, setting, predicted, runs, files=0):
        """`files` are 2 MiB allocations of the program that no setting of anonymous memory changes: its page cache."""
        self.setting, self.predicted = setting, predicted
        figure = lambda key: Figure([run[key] or 0 for run in runs])
        self.peak, self.tables, self.share = figure("peak_anonymous"), figure("page_tables"), figure("huge_share")
        # Counted in the program itself, in runs whose time the counting is part of.
        # Allocations, of which two threads that fault at once need one: no more than the host had faults in any run.
        own = [run["own_huge_faults"] - files for run in runs if run.get("own_huge_faults") is not None]
        least = min(run["huge_faults"] for run in runs)
        self.huge = Figure([max(min(count, least), 0) for count in own]) if own else None
        plain = [run for run in runs if run.get("own_huge_faults") is None] or runs
        self.cpu = Figure([run["cpu"] for run in plain])

    def error(self, key, truth):
        return self.predicted[key]["median"] / truth.median - 1 if truth.median else 0.0

    def inside(self, key, truth):
        return truth.min <= self.predicted[key]["median"] <= truth.max

    @property
    def huge_error(self):
        """Of the 2 MiB faults, where there are 10 or more; none inside of what was predicted for different addresses."""
        if self.huge is None or self.huge.median < 10:
            return None
        predicted = self.predicted["huge_faults"]
        if predicted["min"] <= self.huge.median <= predicted["max"]:
            return 0.0
        return abs(predicted["median"] / self.huge.median - 1)

    @property
    def peak_error(self):
        return self.error("peak_largest", self.peak)

    @property
    def within(self):
        return abs(self.peak_error) <= 0.03 or self.inside("peak_largest", self.peak)


class Program:
    """The cases of a program, by setting; the first is the present one."""

    def __init__(self, name, rows, verdict, measured):
        self.name, self.verdict = name, verdict
        never = [run.get("own_huge_faults") or 0 for run in measured.get("thp=never", [])]
        self.cases = {s: Case(s, rows[s], measured[s], max(never, default=0)) for s in measured if s in rows}
        self.estimates = {s: rows[s]["estimate_ns"]["median"] for s in rows}

    @property
    def present(self):
        return self.cases[SETTINGS[0]]

    def change(self, case):
        """Of the measured peak, against the present setting."""
        return case.peak.median / self.present.peak.median - 1

    def changes(self):
        """Whether a setting changes the peak by more than 2 %."""
        return any(abs(self.change(case)) > 0.02 for case in self.cases.values())

    def worth(self):
        """Settings whose measured gain is worth them: less memory, or less time for no notable more memory."""
        found = {}
        for setting, case in self.cases.items():
            memory = -self.change(case)
            time_saved = 1 - case.cpu.median / self.present.cpu.median
            if memory > WORTH_MEMORY and case.peak.max < self.present.peak.min:
                found[setting] = f"peak -{memory:.1%}"
            elif time_saved > WORTH_TIME and case.cpu.max < self.present.cpu.min and memory > -NOTABLE:
                found[setting] = f"time -{time_saved:.1%}"
        return found

    def advised(self):
        """The settings that the verdict names, with what it claims for each: memory or time."""
        claims = {"least_memory": "memory", "fewest_faults": "time"}
        return [(self.verdict[key]["setting"], claim) for key, claim in claims.items() if self.verdict[key]]

    def worse(self):
        """Advised settings that do worse than the present one on what is claimed for them, beyond the spread."""
        found = []
        for setting, claim in self.advised():
            case = self.cases.get(setting)
            figure = (lambda case: case.peak) if claim == "memory" else (lambda case: case.cpu)
            if case and figure(case).min > figure(self.present).max:
                found.append(setting)
        return found

    def claimed(self, setting, claim):
        """What an advised setting changed of what is claimed for it, by the medians."""
        case = self.cases.get(setting)
        if case is None:
            return f"{claim}, not measured"
        if claim == "memory":
            return f"{claim} {self.change(case):+.1%}"
        seconds = self.verdict.get("processor_seconds") or self.verdict["seconds"]
        saved = self.verdict["fewest_faults"]["time_saved_estimate"] * seconds
        return f"{claim} {case.cpu.median / self.present.cpu.median - 1:+.1%}, said {-saved / self.present.cpu.median:+.1%}"

    def noise(self):
        """By how much processor time differs under the present setting and `never` where those are predicted to be the same."""
        never = self.cases.get("thp=never")
        if never is None or self.estimates[SETTINGS[0]] != self.estimates["thp=never"]:
            return None
        return abs(never.cpu.median / self.present.cpu.median - 1)

    def change_error(self, case):
        """How far the predicted change against `never` is from the measured one, beyond what the runs differ in."""
        never = self.cases.get("thp=never")
        if never is None or case is never:
            return None
        predicted = case.predicted["peak_largest"]["median"] / never.predicted["peak_largest"]["median"]
        low, high = case.peak.min / never.peak.max, case.peak.max / never.peak.min
        return max(low - predicted, predicted - high, 0.0)


def load(programs, arguments):
    """What is complete: of a campaign that was interrupted the last program may have too few runs."""
    results = arguments.results
    loaded = []
    for name in programs:
        predicted, measured = files(results, name)
        program = programs[name]
        needed = program.get("runs", arguments.runs)
        runs = {s: runs for s, runs in read_measured(measured).items() if len(runs) >= needed}
        if predicted.exists() and set(program.get("settings", SETTINGS)) <= set(runs):
            loaded.append(Program(name, *read_predicted(predicted), runs))
    return loaded


# Report


def mega(value):
    return f"{value / 1e6:.1f}"


def span(figure, form):
    low, high = form(figure.min), form(figure.max)
    return form(figure.median) if low == high else f"{form(figure.median)} ({low}-{high})"


class Predicted(Figure):
    def __init__(self, figure):
        self.median, self.min, self.max = figure["median"], figure["min"], figure["max"]


def report(programs, arguments):
    loaded = load(programs, arguments)
    if not loaded:
        sys.exit("there is nothing in the folder")
    print_summary(loaded, programs)
    print_verdicts(loaded, programs)
    print_cases(loaded)


def print_cases(loaded):
    print("## Each program under each setting\n")
    print("Memory in MB (10^6 bytes): median (range). Time is processor time, against the present setting.\n")
    print("| program | setting | peak measured | predicted | error | page tables | predicted | 2 MiB share | predicted | 2 MiB faults | predicted | time |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    number = lambda value: f"{value:.0f}"
    share = lambda value: f"{value:.2f}"
    for program in loaded:
        for case in program.cases.values():
            p = {key: Predicted(case.predicted[key]) for key in ("peak_largest", "peak_page_tables", "huge_share", "huge_faults")}
            cells = [program.name, case.setting, span(case.peak, mega), span(p["peak_largest"], mega)]
            cells.append(f"{case.peak_error:+.1%}" + ("" if case.within else " **miss**"))
            cells += [span(case.tables, mega), span(p["peak_page_tables"], mega)]
            cells += [span(case.share, share), span(p["huge_share"], share), span(case.huge, number) if case.huge else "-", span(p["huge_faults"], number)]
            cells.append(f"{case.cpu.median / program.present.cpu.median - 1:+.1%}")
            print("| " + " | ".join(cells) + " |")
    print()


def print_summary(loaded, programs):
    services = sum(bool(programs[program.name].get("service")) for program in loaded)
    changed = sum(program.changes() for program in loaded)
    pairs = sum(len(program.cases) for program in loaded)
    print(f"{len(loaded)} programs, {services} of them services; a setting changes the peak of {changed} by more than 2 %;")
    print(f"{pairs} pairs of program and setting.\n")
    print("## Summary\n")
    print("| setting | programs | median error of the peak | worst | beyond 3 % and the range | \"nothing changes\": median error | worst |")
    print("|---|---|---|---|---|---|---|")
    names = list(dict.fromkeys(setting for program in loaded for setting in program.cases))
    for setting in [*names, "all"]:
        pairs = [(p, c) for p in loaded for s, c in p.cases.items() if setting in (s, "all")]
        errors = [abs(case.peak_error) for _, case in pairs]
        nothing = [abs(program.present.peak.median / case.peak.median - 1) for program, case in pairs]
        misses = sum(not case.within for _, case in pairs)
        print(f"| {setting} | {len(pairs)} | {statistics.median(errors):.2%} | {max(errors):.1%} | {misses} | {statistics.median(nothing):.2%} | {max(nothing):.1%} |")
    print()
    cases = [(program, case) for program in loaded for case in program.cases.values()]
    print("| figure | pairs | median error | worst | within the target |")
    print("|---|---|---|---|---|")
    far = [error for program, case in cases if (error := program.change_error(case)) is not None]
    line("change of the peak against `never`, beyond the spread", far, 0.01, points=True)
    big = [abs(case.error("peak_page_tables", case.tables)) for _, case in cases if case.tables.median > 4 * MIB]
    line("page tables above 4 MiB", big, 0.08)
    share = [abs(case.predicted["huge_share"]["median"] - case.share.median) for _, case in cases]
    line("share mapped by 2 MiB", share, 0.05, points=True)
    huge = [error for _, case in cases if (error := case.huge_error) is not None]
    line("2 MiB faults, 10 or more, outside of the range of the prediction", huge, 0.05)
    noise = [noise for program in loaded if (noise := program.noise()) is not None]
    if noise:
        print(f"\nProcessor time under settings that change nothing for a program differs by {statistics.median(noise):.1%} in the")
        print(f"median of {len(noise)} programs, by {max(noise):.1%} at most.")
    print()


def line(name, errors, target, points=False):
    if errors:
        form = (lambda value: f"{value * 100:.2f} points") if points else (lambda value: f"{value:.2%}")
        within = sum(error <= target for error in errors)
        print(f"| {name} | {len(errors)} | {form(statistics.median(errors))} | {form(max(errors))} | {within} ({target:.0%}) |")


def print_verdicts(loaded, programs):
    print("## Verdicts\n")
    print("| program | kind | worth trying: measured beyond the spread | advised, and measured in the medians | |")
    print("|---|---|---|---|---|")
    right, worthy, bad = 0, 0, 0
    for program in loaded:
        worth, advised, worse = program.worth(), program.advised(), program.worse()
        worthy += bool(worth)
        right += bool(worth and advised and not worse)
        bad += bool(worse)
        if worse:
            judged = f"**wrong: {', '.join(worse)} does worse**"
        elif worth and not advised:
            judged = "**missed**"
        else:
            judged = "right" if worth or not advised else "no gain measured beyond the spread"
        kind = "service" if programs[program.name].get("service") else "job"
        named = ", ".join(f"{setting} ({program.claimed(setting, claim)})" for setting, claim in advised) or "nothing"
        print(f"| {program.name} | {kind} | {', '.join(f'{s}: {gain}' for s, gain in worth.items()) or 'nothing'} | {named} | {judged} |")
    print(f"\nOf {worthy} programs for which a measured setting is worth trying, the verdict names one for {right}. It names a")
    print(f"setting that does worse on what it claims for {bad} of {len(loaded)}.\n")


if __name__ == "__main__":
    main()
