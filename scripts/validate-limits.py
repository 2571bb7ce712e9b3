#!/usr/bin/env python3
"""Holds predictions of memory limits against Linux: the programs of scripts/advice/programs.toml within cgroups.

    scripts/validate-limits.py run RESULTS [--only NAME]...    what is not yet in the folder RESULTS
    scripts/validate-limits.py report RESULTS                  Markdown tables of it, and what the targets come to

First each program runs three times without a limit: the median of its peak of anonymous memory, all processes together,
says its limits, 75 % and 50 % of it (or each --percent). Programs with less than 40 MB are left out. Then it runs
--runs times (5) within each limit, under thp=never, with zram (lz4) of four times the peak behind it. The limits take
turns. What is late twice is not tried again. It is recorded --recordings times (3) under a pressure of half of the
smallest limit, and services again, as often, by a sample of one block in SERVICE_SAMPLE (or `sample` of programs.toml),
so that they are not slowed. A program that sizes itself by its limit (`reads_limit` of programs.toml) is recorded with
each limit instead. Last, each recording is replayed within the same limits (within its own, if it was shown one): as
`quire advise` does without knowing more ("plain"), and with what the cgroup was measured to be charged beside anonymous
memory.

RESULTS/peaks/NAME.json             the runs without a limit: peak and wall time of each
RESULTS/truth/NAME.PERCENT.RUN.json one run: what `measure --json` wrote, and program, percent, run, kernel, date, and
    outcome: "done"; "killed" for memory; "late": it took ten times its time; "failed" with another exit status
RESULTS/recordings/NAME.RUN.qtr     one recording (NAME.sRUN by a sample, NAME.RUN-of-PERCENT with that limit shown), and
    beside it in .json its seconds and those without recording just before
RESULTS/predicted/NAME.RUN.json     of a recording also its bytes, and of each limit what `replay --json` printed; without
    this file it is replayed again

Started again, the script does the rest. RESULTS/data keeps inputs, RESULTS/scratch is the programs' folder.
It needs root and the release builds of quire and of the example `measure` of quire-measure.
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
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
# The wanted median error at a share of the peak, and the factor by which no program is to be off.
TARGETS = {75: (0.10, 1.5), 50: (0.25, 2)}
PEAK_RUNS = 3
# Of larger programs about so many bytes are paged out while they are recorded.
SAMPLE = 256 << 20
# Of services that must not be slowed one block in so many is.
SERVICE_SAMPLE = 8
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
    arguments.add_argument("--only", action="append", metavar="NAME")
    arguments.add_argument("--percent", action="append", type=int, metavar="N", help="limits, in percent of the peak (75 and 50)")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--recordings", type=int, default=3)
    arguments.add_argument("--quire", type=pathlib.Path, help="target/release/quire")
    arguments.add_argument("--measure", type=pathlib.Path, help="target/release/examples/measure")
    arguments = arguments.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    arguments.measure = (arguments.measure or target / "examples/measure").resolve()
    arguments.quire = (arguments.quire or target / "quire").resolve()
    arguments.results = arguments.results.resolve()
    arguments.percents = arguments.percent or PERCENTS
    if arguments.action == "report":
        return report(arguments.results)
    if os.geteuid() != 0:
        sys.exit("memory limits can be set by root only")
    # Its end takes limits and swap away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for folder in ("peaks", "truth", "recordings", "predicted", "data"):
        (arguments.results / folder).mkdir(parents=True, exist_ok=True)
    programs = tomllib.loads((advice.SOURCES / "programs.toml").read_text())
    # Those that are there for khugepaged do nothing most of the time.
    programs = {name: program for name, program in programs.items() if "khugepaged" not in program}
    limited = [Limited(n, p, arguments) for n, p in programs.items() if n in (arguments.only or programs)]
    rounds = [lambda program: program.find_peak()]
    # A round of all before the next one, so that an early look has something of each.
    for number in range(1, max(arguments.runs, arguments.recordings) + 1):
        if number <= arguments.recordings:
            rounds.append(lambda program, number=number: program.record_all(number))
        if number <= arguments.runs:
            rounds.append(lambda program, number=number: program.round(number))
    # What is charged beside anonymous memory is known by now.
    rounds.append(lambda program: program.predict_all())
    for of_each in rounds:
        for program in limited:
            try:
                of_each(program)
            except (advice.Failure, subprocess.TimeoutExpired) as failure:
                print(f"{program.name}: {failure}", flush=True)


class Limited(advice.Campaign):
    """A program, and its limits."""

    def __init__(self, name, program, arguments):
        super().__init__(name, program, arguments)
        self.peaks = arguments.results / "peaks" / f"{name}.json"
        self.prepared = False
        self.read_peak()

    def read_peak(self):
        """The group is charged for all processes, and for a page that two of them share once."""
        runs = json.loads(self.peaks.read_text()) if self.peaks.exists() else []
        self.peak = round(statistics.median(run["peak"] for run in runs)) if runs else 0
        self.wall = statistics.median(run["wall"] for run in runs) if runs else 0

    def find_peak(self):
        if self.peaks.exists():
            return
        self.prepare()
        runs = []
        for _ in range(PEAK_RUNS):
            run = self.run_measured(["--timeout", 120])
            runs.append({"peak": run["peak_anonymous_once"], "wall": run["wall"]})
        advice.write(self.peaks, json.dumps(runs) + "\n")
        self.read_peak()
        print(f"{self.name}: peak {advice.mega(self.peak)} MB, {self.wall:.1f} s", flush=True)

    def run_measured(self, words):
        """What one run under the setting gave."""
        output = self.data / f"{self.name}.run"
        output.unlink(missing_ok=True)
        sets = [word for pair in advice.words_of(SETTING) for word in ("--set", pair)]
        command = [str(word) for word in (self.arguments.measure, *sets, *words, "--json", output, *self.command)]
        self.call(command, self.fresh(), busy=3000)
        return json.loads(output.read_text())

    def limits(self):
        """Shares of the peak and bytes; none of a program that is too small."""
        return {percent: self.peak * percent // 100 for percent in self.arguments.percents} if self.peak >= LEAST_PEAK else {}

    def round(self, number):
        for percent, limit in self.limits().items():
            file = self.arguments.results / "truth" / f"{self.name}.{percent}.{number}.json"
            if file.exists() or self.is_late(percent):
                continue
            self.prepare()
            run = {"program": self.name, "percent": percent, "run": number, "peak": self.peak, "alone": self.wall}
            run |= {"kernel": platform.release(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
            run |= self.run_within(limit)
            advice.write(file, json.dumps(run) + "\n")
            faults = run.get("major_faults", "no")
            print(f"{self.name} {percent} % #{number}: {run['outcome']}, {faults} major faults", flush=True)

    def record_all(self, number):
        if not self.limits():
            return
        # As `quire advise` does.
        self.record_ways(f"{number}", 1 << (max(1, self.peak // SAMPLE) - 1).bit_length())
        if self.program.get("service"):
            self.record_ways(f"s{number}", self.program.get("sample", SERVICE_SAMPLE))

    def record_ways(self, run, one_in):
        if not self.program.get("reads_limit"):
            return self.record(run, one_in)
        for percent, limit in self.limits().items():
            self.record(f"{run}-of-{percent}", one_in, ["--show-limit", limit])

    def record(self, run, one_in, within=()):
        """Records it, if that was not done, and writes how long that took and how long the program takes alone."""
        recording = self.arguments.results / "recordings" / f"{self.name}.{run}.qtr"
        times = recording.with_suffix(".json")
        if times.exists():
            return
        self.prepare()
        # Beside each other, so that what else runs on the host slows both.
        alone = self.run_measured(["--timeout", 120])["wall"]
        pressure = ["--pressure", self.peak * min(self.arguments.percents) // 200, "--sample", one_in, *within]
        words = [self.arguments.quire, "record", *pressure, "--force", "-o", recording, "--", *self.command]
        printed = self.call([str(word) for word in words], self.fresh(), busy=3000, stream="stderr")
        seconds = float(re.search(r"^overhead +([0-9.]+) s wall", printed, re.MULTILINE)[1])
        advice.write(times, json.dumps({"seconds": seconds, "alone": alone, "one_in": one_in}) + "\n")
        print(f"{self.name} recording {run}: {seconds:.1f} s for {alone:.1f}", flush=True)

    def predict_all(self):
        for recording in sorted((self.arguments.results / "recordings").glob(f"{self.name}.*.qtr")):
            file = self.arguments.results / "predicted" / f"{recording.stem}.json"
            if not file.exists() and self.limits():
                self.predict(recording, file)

    def predict(self, recording, file):
        found = {"program": self.name, "bytes": recording.stat().st_size, "limits": {}, "plain": {}}
        found |= json.loads(recording.with_suffix(".json").read_text())
        own = recording.stem.partition("-of-")[2]
        for percent, limit in self.limits().items():
            if own not in ("", str(percent)):
                continue
            peak = [] if own else ["--peak", self.peak]
            within = ["--limit", limit, *peak, "--swap", f"zram:{4 * self.peak}", "--setting", SETTING]
            within += ["--contents", "--json"]
            replay = [str(word) for word in (self.arguments.quire, "replay", recording, *within)]
            found["plain"][percent] = self.replayed(replay)
            beside = self.measured_beside(percent)
            if beside:
                found["limits"][percent] = self.replayed([*replay, "--beside", str(beside)]) | {"beside": beside}
        advice.write(file, json.dumps(found) + "\n")
        faults = {percent: of_limit["major_faults"] for percent, of_limit in found["limits"].items()}
        print(f"{recording.stem} predicted: {faults}", flush=True)

    def measured_beside(self, percent):
        """Bytes that the cgroup was charged beside anonymous memory: the median of the runs' medians."""
        files = (self.arguments.results / "truth").glob(f"{self.name}.{percent}.*.json")
        runs = [json.loads(file.read_text()) for file in files]
        charges = [run["limit"]["limited"] for run in runs if run["outcome"] == "done" and run["limit"].get("limited")]
        return round(statistics.median(charge["kernel"] + charge["file"] for charge in charges)) if charges else None

    def replayed(self, command):
        """A replay that differs from Linux somewhere ends with 1, and has figures all the same."""
        done = subprocess.run(command, cwd=self.fresh(), capture_output=True, text=True, timeout=900)
        if not done.stdout:
            raise advice.Failure(f"replay: {done.stderr[-600:].strip()}")
        of_all = json.loads(done.stdout.splitlines()[-1])["recording"]
        memory = of_all["memory"]
        return {"major_faults": memory["pgmajfault"], "fits": of_all["does_not_fit"] is None, "swap": memory["swap"]}

    def is_late(self, percent):
        files = (self.arguments.results / "truth").glob(f"{self.name}.{percent}.*.json")
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
        seconds = max(SHORTEST, math.ceil(LONGER * self.wall))
        try:
            run = self.run_measured(["--limit", limit, "--swap", f"zram:{4 * self.peak}", "--timeout", seconds])
        except advice.Failure as failure:
            if "ran longer" not in str(failure):
                raise
            outcome = "killed" if "killed for memory" in str(failure) else "late"
            return {"outcome": outcome, "seconds": seconds, "limit": {"bytes": limit}}
        if run["limit"]["oom_kills"]:
            return run | {"outcome": "killed"}
        return run | {"outcome": "done" if run["exit"] == 0 else "failed"}


def report(results):
    runs, predicted = {}, {}
    for file in sorted((results / "truth").glob("*.json")):
        run = json.loads(file.read_text())
        runs.setdefault((run["program"], -run["percent"]), []).append(run)
    for file in sorted((results / "predicted").glob("*.json")):
        found = json.loads(file.read_text()) | {"by_sample": file.stem.rpartition(".")[2].startswith("s")}
        predicted.setdefault(found["program"], []).append(found)
    truths = {key: [run for run in of_limit if run["outcome"] == "done"] for key, of_limit in runs.items()}
    report_truth(runs, truths)
    whole = {name: [it for it in found if not it["by_sample"]] for name, found in predicted.items()}
    sampled = {name: [it for it in found if it["by_sample"]] for name, found in predicted.items()}
    print("## Predicted and measured\n")
    print(f"Programs with more than {MANY_FAULTS} major faults. The ratio is of the medians; * inside the range of Linux's runs.")
    print("What the cgroup was charged beside anonymous memory (kernel, files) is taken as measured; plain: without knowing it.\n")
    report_predictions(truths, whole)
    print("## Services recorded by a sample\n")
    report_predictions(truths, sampled)
    report_cost(predicted)


def report_truth(runs, truths):
    print("## Linux\n")
    print("Memory in MB (10^6 bytes). Faults and compressed sizes: median (range) of the runs that ended well; the spread")
    print("is the range by the median. Kernel and files: medians of the samples after the limit was reached.\n")
    print("| program | limit | runs | major faults | spread | kernel | files | swapped, at most | compressed |")
    print("|---|---|---|---|---|---|---|---|---|")
    many = {}
    for (name, percent), of_limit in runs.items():
        done = truths[name, percent]
        outcomes = [run["outcome"] for run in of_limit]
        count = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
        limit = f"{-percent} %: {of_limit[0]['limit']['bytes'] / 1e6:.1f}"
        if not done:
            print(f"| {name} | {limit} | {count} | | | | | | |")
            continue
        faults = advice.Figure([run["major_faults"] for run in done])
        if faults.median > MANY_FAULTS:
            many.setdefault(-percent, []).append(faults)
        spread = f"{(faults.max - faults.min) / faults.median:.1%}" if faults.median else ""
        charges = [run["limit"]["limited"] for run in done if run["limit"]["limited"]]
        kernel, files = (charged(charges, key) for key in ("kernel", "file"))
        original, compressed = (pool(done, key) for key in ("original", "compressed"))
        sizes = [advice.span(size, advice.mega) if size else "" for size in (original, compressed)]
        cells = [name, limit, count, advice.span(faults, "{:.0f}".format), spread, kernel, files, *sizes]
        print("| " + " | ".join(cells) + " |")
    print()
    for percent, found in many.items():
        spreads = [(faults.max - faults.min) / faults.median for faults in found]
        print(f"More than {MANY_FAULTS} major faults at {percent} %: {len(found)} programs; their spread is")
        print(f"{statistics.median(spreads):.1%} in the median, {max(spreads):.1%} at most.\n")


def pool(done, key):
    """What the pool of zram held when it held most."""
    pools = [run["limit"]["swap"]["fullest"] for run in done if run["limit"]["swap"]["fullest"]]
    return advice.Figure([p[key] for p in pools]) if pools else None


def report_predictions(truths, predicted):
    print("| program | limit | measured | predicted | ratio | plain | compressed | predicted | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios, sizes, plain_errors = {}, {}, {}
    for (name, percent), done in truths.items():
        found = [of_all["limits"][str(-percent)] for of_all in predicted.get(name, []) if str(-percent) in of_all["limits"]]
        if not done or not found:
            continue
        faults = advice.Figure([run["major_faults"] for run in done])
        if faults.median <= MANY_FAULTS:
            continue
        guess = advice.Figure([of_limit["major_faults"] for of_limit in found])
        ratio, inside = guess.median / faults.median, faults.min <= guess.median <= faults.max
        ratios.setdefault(-percent, []).append((name, ratio, inside))
        cells = [name, f"{-percent} %", *(advice.span(figure, "{:.0f}".format) for figure in (faults, guess))]
        cells.append(f"{ratio:.2f}{'*' if inside else ''}")
        plain = [of_all["plain"][str(-percent)] for of_all in predicted[name] if str(-percent) in of_all["plain"]]
        plain = statistics.median(of_limit["major_faults"] for of_limit in plain)
        plain_errors.setdefault(-percent, []).append(abs(plain / faults.median - 1))
        cells.append(f"{plain / faults.median:.2f}")
        held, guess = pool(done, "compressed"), advice.Figure([of_limit["swap"]["compressed_bytes"] for of_limit in found])
        if held and held.median:
            sizes.setdefault(-percent, []).append((guess.median / held.median, held.min <= guess.median <= held.max))
            cells += [advice.span(figure, advice.mega) for figure in (held, guess)] + [f"{guess.median / held.median:.2f}"]
        print("| " + " | ".join(cells) + " |")
    print()
    for percent, found in ratios.items():
        error, worst = TARGETS.get(percent, (None, 2))
        errors = [abs(ratio - 1) for _, ratio, _ in found]
        beyond = [name for name, ratio, inside in found if not inside and max(ratio, 1 / max(ratio, 1e-9)) > worst]
        print(f"At {percent} %: {len(found)} programs, median error {statistics.median(errors):.0%} ({f'wanted: {error:.0%}' if error else 'no target'}),")
        print(f"plain {statistics.median(plain_errors[percent]):.0%};")
        print(f"beyond a factor of {worst} and the range: {len(beyond)} ({', '.join(beyond) or 'none'}).")
        errors = [abs(ratio - 1) for ratio, _ in sizes[percent]]
        within = sum(abs(ratio - 1) <= 0.1 or inside for ratio, inside in sizes[percent])
        print(f"Compressed bytes: median error {statistics.median(errors):.0%}, {within} of {len(errors)} within 10 % or the range.\n")


def report_cost(predicted):
    print("## What recording under pressure costs\n")
    print("Medians of the times of the program recorded and alone, one just after the other.\n")
    print("| program | one block in | alone | recorded | times | recording |")
    print("|---|---|---|---|---|---|")
    for name, found in predicted.items():
        for one_in in sorted({of_all["one_in"] for of_all in found}):
            mine = [of_all for of_all in found if of_all["one_in"] == one_in]
            alone, seconds, size = (statistics.median(it[key] for it in mine) for key in ("alone", "seconds", "bytes"))
            times = statistics.median(of_all["seconds"] / of_all["alone"] for of_all in mine)
            print(f"| {name} | {one_in} | {alone:.1f} s | {seconds:.1f} s | {times:.1f} | {advice.mega(size)} MB |")


def charged(charges, key):
    return advice.mega(statistics.median(charge[key] for charge in charges)) if charges else ""


if __name__ == "__main__":
    main()
