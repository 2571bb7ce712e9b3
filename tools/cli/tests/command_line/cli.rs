//! The command line as scripts see it: exit codes, one clear line for bad input, JSON.

use crate::quire;
use quire_trace::format::TraceReader;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempPath;

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// The one line on stderr.
fn complaint(output: &Output) -> String {
    let line = String::from_utf8(output.stderr.clone()).expect("text");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("quire: "), "{line}");
    line
}

/// A file of this test's own.
struct Scratch(TempPath);

impl Scratch {
    fn new(name: &str, contents: &[u8]) -> Self {
        let made = tempfile::Builder::new().suffix(name).tempfile().expect("a writable temporary folder");
        fs::write(made.path(), contents).expect("a file");
        Self(made.into_temp_path())
    }
}

#[test]
fn every_bundled_recording_replays_without_a_difference() {
    let folder = recording("");
    let files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the recordings")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "qtr"))
        .collect();
    assert!(files.len() >= 6);
    for file in files {
        let output = quire(&["replay", text(&file), "--json", "--paranoid"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).expect("text");
        assert!(lines.lines().count() >= 1);
        for line in lines.lines() {
            let object: serde_json::Value = serde_json::from_str(line).expect("an object a line");
            assert_eq!(object["mismatches"], 0, "{line}");
            let exactness = object["recording"]["exactness"].as_str();
            assert!(exactness.is_some_and(|text| text.contains("page faults")), "{line}");
            assert_eq!(object["audit"], "ok", "{line}");
            assert!(object["quire"]["peak_resident"].as_u64() > Some(0), "{line}");
            assert!(object["linux"]["peak_resident"].as_u64() > Some(0), "{line}");
        }
    }
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    let file = recording("git-log.qtr");
    for (arguments, word) in [
        (&["conquer"][..], "conquer"),
        (&["conquer"], "`quire --help`"),
        (&["advize"], "'advise'"),
        (&["advise"], "quire advise -- CMD"),
        (&["advise", "--verbos", "--", "true"], "`quire advise --help`"),
        (&["trace", "dump"], "`quire trace dump --help`"),
        (&["replay"], "required"),
        (&["replay", text(&file), "--technique", "pcp=seven"], "order0"),
        (&["replay", text(&file), "--technique", "xyz=on"], "pcp"),
        (&["replay", text(&file), "--memory", "much"], "64M"),
        (&["replay", text(&file), "--swap", "tape:1G"], "zram"),
        (&["replay", text(&file), "--swap", "file:/nonexistent/swap:64M"], "/nonexistent/swap"),
        (&["replay", text(&file), "--swap", "ram:2T"], "1024 GiB"),
        (&["replay", text(&file), "--memory", "4M", "--swap", "zram:512G"], "--memory"),
        (&["record", "--reuse=1", "-o", "x.qtr", "--", "true"], "20"),
        (&["record", "-o", "x.qtr"], "CMD"),
        (&["record", "--thp=maybe", "-o", "x.qtr", "--", "true"], "--thp"),
        (&["record", "--calls=some", "-o", "x.qtr", "--", "true"], "--calls"),
    ] {
        let output = quire(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let line = complaint(&output);
        assert!(line.contains(word), "{arguments:?}: {line}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn bad_input_names_the_file_the_offset_and_what_to_do() {
    let missing = quire(&["replay", "/nonexistent/file.qtr"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(complaint(&missing).contains("/nonexistent/file.qtr"));

    let junk = Scratch::new("junk", b"This is not a recording.");
    let output = quire(&["replay", text(&junk.0)]);
    assert_eq!(output.status.code(), Some(2));
    let line = complaint(&output);
    assert!(
        line.contains(text(&junk.0)) && !line.contains("offset") && line.contains("quire record"),
        "{line}"
    );
}

#[test]
fn a_trace_of_lackey_is_imported_and_replays() {
    let lackey = b"==9== Command: ls -l\nI  04000000,4\n L 1fff000ff8,16\n S 05000000,8\n M 05001000,8\n L 05000010,4\n";
    let input = Scratch::new("lackey", lackey);
    let output = Scratch::new("lackey.qtr", b"");
    let made = quire(&["import", "lackey", text(&input.0), "-o", text(&output.0)]);
    assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    let replayed = quire(&["replay", text(&output.0), "--json", "--contents", "--memory", "16M"]);
    assert_eq!(replayed.status.code(), Some(0), "{}", String::from_utf8_lossy(&replayed.stderr));
    let object: serde_json::Value = serde_json::from_slice(&replayed.stdout).expect("one object");
    // One code page, two of the stack, two of data.
    assert_eq!(object["quire"]["peak_resident"], 5 * 4096);
    assert_eq!(object["recording"]["reuses"], 5);
    assert_eq!(object["recording"]["memory"]["pswpout"], 0);

    let wrong = Scratch::new("lackey-wrong", b"I  04000000,4\nhello\n");
    let refused = quire(&["import", "lackey", text(&wrong.0), "-o", text(&output.0)]);
    assert_eq!(refused.status.code(), Some(2));
    let line = complaint(&refused);
    for word in [text(&wrong.0), "line 2", "offset 14", "valgrind"] {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn a_glob_over_the_folder_of_recordings_replays_the_recordings_in_it() {
    let names = ["README.md", "git-log.qtr", "make", "make.sh"].map(recording);
    let mut arguments = vec!["replay", "--json"];
    arguments.extend(names.iter().map(|path| text(path)));
    let output = quire(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 3);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);

    // What is missing or called a recording is not passed over.
    let output = quire(&["replay", text(&names[1]), "/nonexistent/file"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_truncated_recording_is_refused_with_its_offset_and_salvaged_on_request() {
    let whole = fs::read(recording("git-history.qtr")).expect("a recording");
    let cut = Scratch::new("cut", &whole[..whole.len() - 40]);
    let output = quire(&["replay", text(&cut.0)]);
    assert_eq!(output.status.code(), Some(2));
    let line = complaint(&output);
    assert!(line.contains("offset") && line.contains("--salvage"), "{line}");

    let salvaged = quire(&["replay", text(&cut.0), "--salvage", "--json"]);
    let lines = String::from_utf8(salvaged.stdout).expect("text");
    let first = lines.lines().next().expect("at least one process");
    let object: serde_json::Value = serde_json::from_str(first).expect("an object");
    assert!(object["recording"]["damage"].is_string(), "{first}");
}

#[test]
fn a_recording_of_which_nothing_is_whole_is_said_to_be_lost() {
    // The header, and a piece of the first block.
    let whole = fs::read(recording("git-history.qtr")).expect("a recording");
    let cut = Scratch::new("stump", &whole[..2000]);
    let output = quire(&["replay", text(&cut.0), "--salvage"]);
    assert_eq!(output.status.code(), Some(1));
    let line = complaint(&output);
    assert!(line.contains(text(&cut.0)) && line.contains("nothing could be salvaged"), "{line}");
}

/// A limit asks what comes back; a recording that does not say what was used again has nothing to say to
/// that.
#[test]
fn a_limit_is_refused_for_a_recording_without_uses() {
    let path = Scratch::new("no-uses.qtr", b"");
    let made = quire(&["record", "--no-reuse", "-o", text(&path.0), "--", "true"]);
    if made.status.code() != Some(0) {
        eprintln!("skipped: {}", String::from_utf8_lossy(&made.stderr));
        return;
    }
    let limited = ["replay", text(&path.0), "--memory", "16M"];
    let output = quire(&limited);
    assert_eq!(output.status.code(), Some(2));
    let line = complaint(&output);
    assert!(line.contains("`quire record -o FILE -- true`") && line.contains("--assume-no-reuse"), "{line}");
    let output = quire(&[&limited[..], &["--assume-no-reuse"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("at least 0 major faults"));
    // The same program with the default says what it used.
    assert_eq!(quire(&["record", "-o", text(&path.0), "--", "true"]).status.code(), Some(0));
    assert_eq!(quire(&limited).status.code(), Some(0));
}

#[test]
fn a_full_disk_is_a_failure_and_a_closed_pipe_is_none() {
    let path = recording("git-log.qtr");
    let full = fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    let run = |out: std::process::Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let child = command.args(["replay", text(&path)]).stdout(out).stderr(std::process::Stdio::piped());
        child.spawn().expect("quire starts")
    };
    let output = run(full.into()).wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("standard output"));
    let mut child = run(std::process::Stdio::piped());
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// README.md shows what is printed, indented by four spaces.
#[test]
fn the_readme_shows_what_a_run_prints() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md"));
    let readme = readme.expect("a README");
    let (_, after) = readme.split_once("<!-- tour -->\n\n").expect("its begin");
    let (shown, _) = after.split_once("\n<!-- end of tour -->").expect("its end");
    let shown: Vec<&str> = shown.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let printed = String::from_utf8(quire(&[]).stdout).expect("text");
    assert_eq!(shown, printed.lines().collect::<Vec<_>>(), "README.md (left) and a run (right)");
}

/// It fits on a screen, nothing differs from Linux, and it ends with advice that can be followed.
#[test]
fn the_tour_fits_on_a_screen() {
    let output = quire(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(printed.lines().count() <= 50, "{printed}");
    assert!(printed.lines().all(|line| line.chars().count() <= 100), "{printed}");
    let rows: Vec<Vec<&str>> = printed
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('/') && !line.contains("Linux"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 15, "{printed}");
    let pool = rows.iter().find(|row| row[1] == "instance-pool").expect("it frees and moves tables");
    assert!(pool[9].ends_with('%') && pool[10].ends_with('%'), "{pool:?}");
    for row in rows {
        assert_eq!(row[4], "0", "differences: {row:?}");
        assert!(row[6].ends_with('%') && row[7].ends_with('%'), "pcp and gather help each: {row:?}");
    }
    for words in ["Verdict: ", "Apply: ", "Undo: ", "Not predicted: "] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
}

#[test]
fn a_technique_that_cannot_matter_is_named() {
    let path = recording("git-log.qtr");
    let output = quire(&["replay", text(&path), "--technique", "swap=bypass"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(complaint(&output).contains("--swap"));
}

#[test]
fn a_recording_is_dumped_as_text() {
    let path = recording("git-log.qtr");
    let output = quire(&["trace", "dump", text(&path)]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    let events = TraceReader::open(&path).expect("a recording").count();
    let dumped = lines.lines().filter(|line| line.contains(" us  task ")).count();
    assert_eq!(dumped, events);
    assert!(lines.lines().next().is_some_and(|line| line.contains("log --stat -p")), "{lines}");
    assert!(lines.contains("exec git") && lines.contains("mmap(") && lines.contains("fault 0x"));

    let output = quire(&["trace", "dump", "/nonexistent/file"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!complaint(&output).contains("offset"), "nothing was read");
}

#[test]
fn too_little_memory_is_a_finding_and_not_a_crash() {
    let path = recording("python-structures.qtr");
    let little = ["replay", text(&path), "--memory", "16M", "--assume-no-reuse"];
    let output = quire(&[&little[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stdout).expect("text");
    let objects: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    // It is the first thing said, and what held the memory with it.
    let first = &objects[0];
    let finding = first["does_not_fit"].as_str().expect("a finding");
    assert!(finding.starts_with("the program does not fit: ") && finding.contains("suffices"), "{finding}");
    assert!(
        first["held"]["anonymous"].as_u64() > Some(1 << 20) && first["suffices"].as_u64() > Some(16 << 20)
    );
    assert_eq!(objects[1]["mismatches"], 0, "{}", objects[1]);
    assert_eq!(objects[1]["audit"], "ok");
    assert_eq!(objects[1]["recording"]["major_faults_are"], "at least");
    let output = quire(&little);
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(shown.lines().nth(1).is_some_and(|line| line == finding), "{shown}");

    let output = quire(&["replay", text(&recording("git-log.qtr")), "--memory", "4K"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("--memory"));
}

#[test]
fn techniques_are_chosen_from_the_command_line() {
    let takes = |value: &str| {
        let technique = format!("pcp={value}");
        let file = recording("git-log.qtr");
        let output = quire(&["replay", text(&file), "--json", "--technique", &technique]);
        assert_eq!(output.status.code(), Some(0));
        let lines = String::from_utf8(output.stdout).expect("text");
        let object: serde_json::Value =
            serde_json::from_str(lines.lines().next().expect("a line")).expect("an object");
        object["recording"]["allocator"]["zone_lock_takes"].as_u64().expect("a number")
    };
    // With `all` a miss fetches the more from the zone the more traffic there is.
    assert!(takes("order0") > takes("all"));
}

#[test]
fn help_and_version_are_no_failures() {
    for flag in ["--help", "--version"] {
        let output = quire(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty() && !output.stdout.is_empty());
    }
}

#[test]
fn a_program_is_recorded_and_replayed_in_one_go() {
    let output = quire(&["run", "--json", "--", "sh", "-c", "exit 3"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("not permitted") {
        println!("skipped: following programs is not permitted here: {errors}");
        return;
    }
    // The program's own exit code, since nothing differed.
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("overhead"), "{errors}");
    let lines = String::from_utf8(output.stdout).expect("text");
    assert!(lines.lines().all(|line| line.contains("\"mismatches\":0")), "{lines}");

    let output = quire(&["run", "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("/nonexistent/program"));
}

#[test]
fn random_calls_are_compared_and_counted() {
    let none = quire(&["diff", "--ops", "0", "--concurrent", "0"]);
    assert!(none.status.success());
    let said = String::from_utf8_lossy(&none.stdout).into_owned();
    assert!(said.starts_with("seed 1: 0 operations compared in 0 programs, no difference"), "{said}");
    assert_eq!(said.lines().count(), 1);
    let output =
        quire(&["diff", "--seed", "4", "--ops", "3000", "--concurrent", "40", "--shrink", "0", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).expect("text");
    let objects: Vec<serde_json::Value> =
        shown.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(objects[0]["name"], "seed 4");
    assert!(objects[0]["compared"].as_u64().expect("a count") >= 3000);
    assert!(objects[0]["difference"].is_null());
    assert!(objects[0]["combinations"].as_u64().expect("a count") > 200);
    let threads = objects.last().expect("the concurrent programs");
    assert_eq!((&threads["programs"], &threads["failures"]), (&40.into(), &serde_json::json!([])));
    assert!(output.stderr.is_empty(), "no progress in a pipe");
}

#[test]
fn a_saved_program_is_run_and_a_wrong_one_is_refused_with_its_line() {
    let good = Scratch::new("good", b"quire-diff 1\nwindow 0x7fffc00000\n1 p0 munmap(window+0x0, 0x1000)\n");
    let output = quire(&["diff", text(&good.0)]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(shown.contains("munmap(window+0x0, 0x1000) = 0x0"), "{shown}");
    let wrong = Scratch::new("wrong", b"quire-diff 1\nwindow 0x7fffc00000\n\n1 p0 unmap(0x0)\n");
    // The good one does not run either: what is wrong is told first.
    let output = quire(&["diff", text(&good.0), text(&wrong.0)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let line = complaint(&output);
    assert!(line.contains("line 4") && line.contains("unmap"), "{line}");
    assert_eq!(quire(&["diff", "/nowhere/at/all"]).status.code(), Some(2));
}
