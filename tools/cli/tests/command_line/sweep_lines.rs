//! The command lines of a sweep: what they write, and where.

use crate::recording_of;
use crate::sweep::{Sweep, text};
use std::fs;

/// A file with the result of another line stays.
#[test]
fn a_line_replaces_its_own_result_only() {
    let sweep = Sweep::new(&["git-log", "shell-pipes"]);
    let run = |more: &[&str]| sweep.quire(&[&["sweep", "--one", "-o", "x.json"], more].concat());
    let read = || fs::read_to_string(sweep.path("x.json")).expect("a result");
    let first = ["--number", "1/2:0000aaaa", "--setting", "thp=never", "git-log"];
    for _ in 0..2 {
        assert!(run(&first).status.success());
    }
    let result = read();
    let numbered =
        "x.json: the result of line 1 of 2 of sweep 0000aaaa, of git-log under thp=never, is there";
    for other in [
        &["--number", "1/2:0000bbbb", "--setting", "thp=never", "git-log"][..],
        &["--number", "2/2:0000aaaa", "--setting", "thp=always", "git-log"],
        &["--number", "1/9:0000bbbb", "--setting", "thp=always", "shell-pipes"],
        &["--setting", "thp=never", "git-log"],
    ] {
        let output = run(other);
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
        assert!(told.contains(numbered), "{told}");
        assert_eq!(read(), result, "{other:?}");
    }
    // Without a number it is the recording and what is asked that count.
    fs::remove_file(sweep.path("x.json")).expect("it is there");
    assert!(run(&first[2..]).status.success() && run(&first[2..]).status.success());
    let result = read();
    for other in
        [&["--setting", "thp=always", "git-log"][..], &["--setting", "thp=never", "shell-pipes"], &first]
    {
        let output = run(other);
        assert_eq!(output.status.code(), Some(2), "{other:?}");
        assert!(text(&output.stderr).contains("a result of no sweep"), "{output:?}");
        assert_eq!(read(), result);
    }
    // Nor does it replace several in one file; a part of its own it does.
    for several in [[&*result, &result].concat(), [result.trim_end(), &result].concat()] {
        fs::write(sweep.path("x.json"), &several).expect("a file");
        assert_eq!(run(&first[2..]).status.code(), Some(2));
        assert_eq!(read(), several);
    }
    fs::write(sweep.path("x.json"), &result[..result.len() - 9]).expect("a file");
    assert!(run(&first[2..]).status.success());
    assert_eq!(read(), result);
}

/// A queue may start a job a second time while the first one runs.
#[test]
fn two_jobs_of_one_line_are_both_good() {
    let sweep = Sweep::new(&["git-log"]);
    for _ in 0..3 {
        let line = ["sweep", "--one", "--number", "1/2:0000aaaa", "--setting", "thp=never"];
        let line = [&line[..], &["-o", "results/c.json", "git-log"]].concat();
        std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..3).map(|_| scope.spawn(|| sweep.quire(&line))).collect();
            for job in jobs {
                let output = job.join().expect("a thread");
                assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            }
        });
        assert_eq!(fs::read_dir(sweep.path("results")).expect("a folder").count(), 1, "nothing else is left");
    }
}

/// A recording that was replaced is another one.
#[test]
fn a_line_is_for_what_was_swept() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("grid.toml"), "settings = []\nlimits = []\n").expect("a file");
    let lines = sweep.lines(&["--grid", "grid.toml", "-o", "results", "git-log"]);
    fs::copy(recording_of("shell-pipes"), sweep.path("git-log")).expect("a copy");
    let output = sweep.shell(&lines[0]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("not the recording that the line was printed for"), "{output:?}");
    assert!(!sweep.path("results/1.json").exists());
    assert_ne!(lines[0], sweep.lines(&["--grid", "grid.toml", "-o", "results", "git-log"])[0]);
}

#[test]
fn a_folder_may_have_the_name_of_an_option() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("grid.toml"), "settings = []\nlimits = []\n").expect("a file");
    sweep.run(&sweep.lines(&["--grid", "grid.toml", "--output=-x", "git-log"]));
    assert_eq!(fs::read_dir(sweep.path("-x")).expect("a folder").count(), 2);
}

/// Where a shell finds less free memory than a replay is to have.
fn on_a_small_host(sweep: &Sweep, line: &str) -> Option<std::process::Output> {
    fs::write(sweep.path("meminfo"), "MemTotal: 2000 kB\nMemFree: 1000 kB\nMemAvailable: 1000 kB\n")
        .expect("a file");
    fs::write(sweep.path("line"), line).expect("a file");
    let small = "mount --bind meminfo /proc/meminfo";
    // It needs a mount namespace, which not every host permits.
    let is_permitted = sweep.shell(&format!("unshare -rm {small}")).status.success();
    is_permitted.then(|| sweep.shell(&format!("unshare -rm sh -c '{small} && sh line'")))
}

/// Neither `quire sweep` itself nor the merge takes what a small host would find.
#[test]
fn no_replay_is_made_on_a_host_that_is_short() {
    // Of the bundled recordings the one that needs most memory.
    let sweep = Sweep::new(&["python-structures"]);
    let grid = "settings = []\nlimits = ['50%']\nswaps = ['zram-lz4']\n";
    fs::write(sweep.path("grid.toml"), grid).expect("a file");
    let words = "sweep --grid grid.toml -o results python-structures";
    let lines = sweep.lines(&words.split(' ').skip(1).collect::<Vec<_>>());
    let Some(output) = on_a_small_host(&sweep, &format!("quire {words}")) else { return };
    let told = text(&output.stderr);
    assert!(told.contains("no limits, since this host has too little free memory"), "{told}");
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    let printed = text(&output.stdout);
    assert!(printed.lines().count() == 2 && !printed.contains("--limit"), "{printed}");

    // What mappings hold is asked of the recording where no line tells it.
    let (mappings, others): (Vec<String>, Vec<String>) =
        lines.into_iter().partition(|line| line.contains(" --mappings "));
    assert_eq!(mappings.len(), 1);
    sweep.run(&others);
    let output = on_a_small_host(&sweep, "quire advise --from results").expect("it is permitted");
    let told = text(&output.stderr);
    let short = |line: &str| line.contains(": mappings at event") && line.contains("too little free memory");
    assert!(output.status.code() == Some(1) && told.lines().any(short), "{told}");
    let whole = sweep.quire(&["advise", "--from", "results"]);
    assert_eq!(text(&whole.stderr).lines().count(), 1, "the line that is missing: {whole:?}");
}
