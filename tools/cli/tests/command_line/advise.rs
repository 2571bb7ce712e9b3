//! `quire advise`.

use crate::{Folder, python, quire, quire_with};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn advise(arguments: &[&str]) -> Output {
    quire(&[&["advise"], arguments].concat())
}

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn objects(output: &Output) -> Vec<Value> {
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

#[track_caller]
fn complaint(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.lines().count() == 1 && line.starts_with("quire: ") && output.stdout.is_empty(), "{line}");
    line
}

/// The kinds of swap that this host cannot set up.
fn left_out(verdict: &Value) -> Vec<&str> {
    let kinds = verdict["swaps_left_out"].as_array().expect("a list");
    kinds.iter().filter_map(|kind| kind["swap"].as_str()).collect()
}

/// Each setting has a row, and the words of the verdict name what the figures say.
#[test]
fn a_recording_is_replayed_under_each_setting() {
    let file = recording("python-structures.qtr");
    let output = advise(&["--json", text(&file)]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let objects = objects(&output);
    let (verdict, rows) = objects.split_last().expect("rows and a verdict");
    let (limits, rows): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|row| row["limit"].is_u64());
    let named = |name: &str| rows.iter().find(|row| row["setting"] == name).expect("a row");
    // It was recorded without pressure: whether it fits is all that is known.
    let lacking = left_out(verdict);
    assert_eq!(limits.len(), 3 * (4 - lacking.len()), "three limits, with each kind of swap that there is");
    for limit in limits {
        assert!(limit["fits"] == true && limit["major_faults"].is_null(), "{limit}");
    }
    assert!(verdict["enough_memory"].is_null());
    assert!(rows.len() >= 14 && rows[0]["present"] == true && rows[0]["setting"] == "thp=madvise");
    let peak = |name: &str| named(name)["peak_largest"].as_f64().expect("a number");
    // What each setting may do to a program that gives no advice.
    assert_eq!(peak("thp=never"), peak("thp=madvise"));
    let names = rows.iter().filter_map(|row| row["setting"].as_str());
    assert!(names.map(peak).all(|largest| largest >= peak("thp=never")));
    assert_eq!(named("thp=never")["never_touched"], 0.0);
    assert!(named("thp=never")["faults_by_size"]["2M"].is_null() && named("thp=never")["huge_share"] == 0.0);
    assert!(named("mthp=64K")["large_share"].as_f64() > Some(0.5));
    for row in &rows {
        let sizes = row["faults_by_size"].as_object().expect("sizes");
        let all: f64 = sizes.values().filter_map(Value::as_f64).sum();
        assert!((all / row["faults"].as_f64().expect("faults") - 1.0).abs() < 0.05, "{row}");
        let processes = row["processes"].as_array().expect("processes");
        assert_eq!(processes.len(), 1, "{row}");
        assert!(processes[0]["peak_anonymous"].as_f64() <= row["peak_anonymous"].as_f64(), "{row}");
        assert_eq!(
            row["recommended"] == true,
            row["why"].as_str().is_some_and(|why| why.contains("worth trying"))
        );
    }
    assert!(rows.iter().all(|row| row["fallbacks"] == 0), "the machine is large enough");
    assert_eq!((&verdict["differences"], &verdict["recordings"]), (&Value::from(0), &Value::from(1)));
    let words = verdict["verdict"].as_array().expect("sentences");
    assert!(
        words.iter().any(|line| line.as_str().is_some_and(|line| line.starts_with("Verdict: "))),
        "{words:?}"
    );
    assert_eq!(
        verdict["nothing_changes"],
        verdict["least_memory"].is_null() && verdict["fewest_faults"].is_null()
    );

    // The same again in words.
    let output = advise(&[text(&file)]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("| thp=madvise (now)") && shown.contains("Not predicted:"), "{shown}");
    assert!(
        shown.lines().filter(|line| line.starts_with('|')).all(|line| line.chars().count() <= 150),
        "{shown}"
    );
}

/// Ctrl-C ends the advice, not only the run of the program that it came in.
#[test]
fn an_interrupted_command_gives_no_advice() {
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["advise", "--", "sh", "-c", "echo started; sleep 30"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("quire starts");
    // The program's output is on the standard error output.
    let mut errors = BufReader::new(quire.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("started") {
        line.clear();
        assert!(errors.read_line(&mut line).expect("a line") > 0, "it ended before the program ran");
    }
    let group = format!("-{}", quire.id());
    let killed = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("text");
    let output = quire.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{rest}");
    assert!(rest.contains("quire: interrupted by signal 2 in run 1") && output.stdout.is_empty(), "{rest}");
}

/// A command is recorded under pressure as well, so that its limits have figures. Where that is not permitted
/// a line says so, and whether it fits is all that is told.
#[test]
fn limits_of_a_command_have_figures() {
    let script = "pages = [bytearray(4096) for number in range(4096)]\nfor page in pages * 3: page[0] = 1";
    let output = advise(&["--json", "--runs=1", "--", python(), "-c", script]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let goes_without = errors.contains("what memory limits cost is not predicted");
    let objects = objects(&output);
    let verdict = objects.last().expect("a verdict");
    assert_eq!(verdict["recordings"], 1);
    let of = |swap: &str| {
        let name = format!("limit=50%,swap={swap}");
        objects.iter().find(move |row| row["setting"] == name.as_str() && row["curve"] == false)
    };
    // What this host cannot set up has no row.
    let lacking = left_out(verdict);
    for swap in ["zram-lz4", "zram-zstd", "zswap-lz4", "disk"] {
        assert_eq!(of(swap).is_none(), lacking.contains(&swap), "{swap}: {lacking:?}");
    }
    for row in ["zram-lz4", "zswap-lz4", "disk"].into_iter().filter_map(of) {
        assert!(row["fits"] == true && row["major_faults"].is_null() == goes_without, "{row} {errors}");
    }
    // The pages are zeros, which no device gets; zstd was tried on none.
    if let (Some(lz4), Some(zstd)) = (of("zram-lz4"), of("zram-zstd")) {
        assert!(zstd["validated"] == false && lz4["validated"] == true);
        assert_eq!(zstd["major_faults"], lz4["major_faults"]);
    }
    // Each page is used three times more, one after the other: half of them are out, always those that come
    // next.
    let faults = of("zram-lz4").and_then(|row| row["major_faults"].as_f64());
    assert!(faults.is_none_or(|faults| faults > 3.0 * 2048.0), "{faults:?}");
    assert_eq!(objects.iter().any(|row| row["curve"] == true), !goes_without);

    let output = advise(&["--json", "--runs=1", "--no-limits", "--", python(), "-c", "print()"]);
    let objects = self::objects(&output);
    // What other programs set up meanwhile may tell more of what the host has.
    let lacking = left_out(objects.last().expect("a verdict"));
    let limits: Vec<&Value> = objects.iter().filter(|row| row["limit"].is_u64()).collect();
    assert!(
        limits.len() == 3 * (4 - lacking.len()) && limits.iter().all(|row| row["major_faults"].is_null()),
        "{limits:?}"
    );
}

/// A program that sizes itself by its memory limit is recorded with each limit: then it fits. Without that
/// half of its pages would be out, again and again.
#[test]
fn a_program_that_reads_its_limit_is_recorded_with_each() {
    let script = "
limit = 1 << 40
for line in open('/proc/self/cgroup'):
    controllers, path = line.strip().split(':', 2)[1:]
    file = '/memory' + path + '/memory.limit_in_bytes' if 'memory' in controllers else path + '/memory.max'
    try:
        limit = min(limit, int(open('/sys/fs/cgroup' + file).read()))
    except (OSError, ValueError):
        pass
pages = [bytearray(4096) for number in range(min(8192, limit // 4 // 4096))]
for page in pages * 3: page[0] = 1
";
    let output = advise(&["--json", "--runs=1", "--", python(), "-c", script]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let cannot = ["what memory limits cost is not predicted", "cannot be shown a memory limit"];
    if cannot.iter().any(|words| errors.contains(words)) || !std::fs::exists("/sys/fs/cgroup/memory").unwrap()
    {
        return eprintln!("skipped: {errors}");
    }
    assert!(errors.contains("it is recorded again with each limit that is tried"), "{errors}");
    let rows = objects(&output);
    let row = |name: &str| rows.iter().find(|row| row["setting"] == name && row["curve"] == false).unwrap();
    // A disk can be set up everywhere.
    for percent in [75, 50] {
        let row = row(&format!("limit={percent}%,swap=disk"));
        assert!(row["limit_shown"] == true && row["major_faults"].as_f64() < Some(1000.0), "{row}");
    }
}

/// What two processes share after fork counts once, and for each of them.
#[test]
fn memory_that_processes_share_counts_once() {
    let program = "import os; x = bytearray(32 << 20); p = os.fork(); p or os._exit(0); os.waitpid(p, 0)";
    let output = advise(&["--runs", "1", "--json", "--", python(), "-c", program]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = objects(&output);
    let peaks: Vec<f64> = rows[0]["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .filter_map(|process| process["peak_anonymous"].as_f64())
        .collect();
    assert!(peaks.len() == 2 && peaks.iter().all(|&peak| peak > f64::from(32 << 20)), "{peaks:?}");
    let together = rows[0]["peak_anonymous"].as_f64().expect("a number");
    assert!(together >= peaks[0] && together < peaks[0] + f64::from(4 << 20), "{peaks:?} and {together}");
}

/// Memory that is never touched is told by where its mapping was made: in python's module.
#[test]
fn waste_is_told_by_mapping() {
    let program = "
import mmap
area = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for start in range(0, 64 << 20, 1 << 20):
    area[start] = 1
";
    let output = advise(&["--runs", "1", "--json", "--", python(), "-c", program]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8_lossy(&output.stdout);
    // Whether the host wastes it now, or another setting would.
    let names_it = |why: &str| why.contains("anonymous memory mapped at ") && why.contains("+0x");
    let is_told = |row: &Value| row["why"].as_str().is_some_and(names_it);
    assert!(objects(&output).iter().any(is_told), "{told}");
}

/// The program's output is not mixed with the advice.
#[test]
fn a_command_is_recorded_and_its_output_kept_apart() {
    let program = ["sh", "-c", "echo from the program"];
    let output = advise(&[&["--runs", "2", "--no-limits", "--json", "--"][..], &program].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors.lines().filter(|line| *line == "from the program").count(), 2, "{errors}");
    let objects = objects(&output);
    assert_eq!(objects.last().map(|verdict| &verdict["recordings"]), Some(&Value::from(2)));
}

/// A program that works the first time only.
#[test]
fn a_run_that_fails_is_no_measurement() {
    let folder = Folder::new("fails");
    let program = ["sh", "-c", "mkdir once || exit 3"];
    let output =
        quire_with(&[&["advise", "--runs", "2", "--no-limits", "--"][..], &program].concat(), |command| {
            command.current_dir(&folder.0);
        });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("quire: the program ended with code 3 (run 2)"), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_validation_of_another_command_is_refused() {
    let file = recording("git-log.qtr");
    let line = complaint(&advise(&["--validate", text(&file), "--", "true"]));
    assert!(line.contains("is a recording of `git"), "{line}");
}

#[test]
fn what_cannot_be_predicted_from_is_refused_in_a_line() {
    for (arguments, words) in [
        (&[][..], "FILE"),
        (&["--validate", "x.qtr"], "CMD"),
        (&["/nonexistent/file.qtr"], "/nonexistent/file.qtr"),
        (&["--runs", "0", "--", "true"], "--runs"),
    ] {
        let line = complaint(&advise(arguments));
        assert!(line.contains(words), "{arguments:?}: {line}");
    }
    let (one, other) = (recording("git-log.qtr"), recording("shell-pipes.qtr"));
    let line = complaint(&advise(&[text(&one), text(&other)]));
    assert!(line.contains("one command") && line.contains("shell-pipes"), "{line}");
}

/// With huge pages on a recording does not tell which pages a program touches.
#[test]
fn a_recording_with_huge_pages_on_is_refused() {
    let folder = Folder::new("thp");
    let file = folder.0.join("on.qtr");
    let recorded = quire(&["record", "--thp=on", "-o", text(&file), "--", "true"]);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let output = advise(&[text(&file)]);
    if std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[never]"))
    {
        eprintln!("skipped: this host has transparent huge pages off");
        return;
    }
    let line = complaint(&output);
    assert!(line.contains(text(&file)) && line.contains("quire record"), "{line}");
}

/// The program itself runs under two settings, and the host has its own again afterwards.
#[test]
fn predictions_are_held_against_the_program_itself() {
    let enabled = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    let before = std::fs::read_to_string(enabled);
    // A buffer of 16 MiB, so that what the libraries do at random addresses counts little.
    let program = ["dd", "if=/dev/zero", "of=/dev/null", "bs=16M", "count=1"];
    let output = advise(&[&["--validate", "--json", "--runs", "1", "--"][..], &program].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) && (errors.contains("root") || errors.contains("another measurement"))
    {
        eprintln!("skipped: {errors}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let objects = objects(&output);
    let is_measured = |row: &&Value| row["measured"].is_object();
    let (limited, measured): (Vec<&Value>, Vec<&Value>) =
        objects.iter().filter(is_measured).partition(|row| row["limit"].is_u64());
    // A host on which no limit can be set says so. A point of the curve may be the limit of another row.
    assert!(!limited.is_empty() || errors.contains("not run within"), "{objects:?}");
    assert!(limited.iter().all(|row| row["setting"] == limited[0]["setting"]), "{objects:?}");
    for row in limited {
        assert!(row["fits"] == true, "{row}");
        assert!(row["killed_runs"].is_u64() && row["late_runs"] == 0, "{row}");
    }
    assert!(measured.len() == 2 && measured[0]["present"] == true, "{objects:?}");
    for row in measured {
        let error = row["error"]["peak_anonymous"].as_f64().expect("a share");
        let of = |object: &Value| object["peak_anonymous"].as_f64().expect("a number");
        assert!(error.abs() < 0.2 && (of(row) / of(&row["measured"]) - 1.0 - error).abs() < 1e-9, "{row}");
        assert!(row["measured"]["seconds"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(before.ok(), std::fs::read_to_string(enabled).ok());
}

#[test]
fn a_calibration_prints_what_faults_cost() {
    let folder = Folder::new("costs");
    let output = quire_with(&["calibrate", "--json"], |command| {
        command.env("XDG_CACHE_HOME", &folder.0);
    });
    let kept = std::fs::read_dir(folder.0.join("quire")).map_or(0, Iterator::count);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("another measurement") {
        eprintln!("skipped: {errors}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let costs: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let total = |size: &str| costs["faults"][size]["total"]["median"].as_f64().expect("a time");
    assert!(total("4096") > 0.0 && total("2097152") > total("4096"), "{costs}");
    assert_eq!(kept, 1);
}
