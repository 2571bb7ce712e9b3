//! `quire sweep` and `quire advise --from`.

use crate::{Folder, quire, quire_with, recording_of, schema};
use quire_trace::format::{TraceHeader, TraceReader, TraceWriter, UseSource};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

/// A folder with recordings of its own, in which `quire` is run.
pub(crate) struct Sweep(Folder);

impl Sweep {
    pub(crate) fn new(recordings: &[&str]) -> Self {
        let folder = Folder::new("sweep");
        for name in recordings {
            fs::copy(recording_of(name), folder.0.join(name)).expect("a copy");
        }
        Self(folder)
    }

    pub(crate) fn quire(&self, arguments: &[&str]) -> Output {
        quire_with(arguments, |command| _ = command.current_dir(&self.0.0))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// The lines that are printed, without a message.
    #[track_caller]
    pub(crate) fn lines(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.quire(&[&["sweep"], arguments].concat());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        text(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// What a shell does with a line.
    pub(crate) fn shell(&self, line: &str) -> Output {
        let program = Path::new(env!("CARGO_BIN_EXE_quire"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().expect("a folder").display());
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(&self.0.0);
        shell.env("PATH", path).env("XDG_CACHE_HOME", "/nonexistent").output().expect("sh")
    }

    /// Runs lines, two at a time, the last first.
    #[track_caller]
    pub(crate) fn run(&self, lines: &[String]) {
        let rest = Mutex::new(lines.to_vec());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(line) = rest.lock().ok().and_then(|mut rest| rest.pop()) {
                        let output = self.shell(&line);
                        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
                    }
                });
            }
        });
    }

    #[track_caller]
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let output = self.quire(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// A recording that says when each page was used, so that the cost of limits is known.
pub(crate) fn with_uses(from: &str, to: &Path) {
    changed(from, to, usize::MAX, |header| header.uses = UseSource::Exact);
}

/// The first events of a recording, with another header.
pub(crate) fn changed(from: &str, to: &Path, events: usize, change: impl FnOnce(&mut TraceHeader)) {
    let source = TraceReader::open(recording_of(from)).expect("a recording");
    let mut header = source.header().clone();
    change(&mut header);
    let file = fs::File::create(to).expect("a file");
    let mut writer = TraceWriter::new(&file, &header, 3).expect("a writer");
    for event in source.take(events) {
        writer.push(&event.expect("an event")).expect("it is written");
    }
    writer.finish(0, 0).expect("an end");
}

/// Tables, objects and page, of one program whose limits have costs and of two.
#[test]
fn what_is_merged_is_what_advise_prints() {
    let sweep = Sweep::new(&["sort-threads"]);
    with_uses("git-log", &sweep.path("a 'known'"));
    let files = ["a 'known'", "sort-threads"];
    let lines = sweep.lines(&[&["-o", "results"], &files[..]].concat());
    sweep.run(&lines);
    let known = format!("results/{:0digits$}.json", 1, digits = lines.len().to_string().len());
    assert!(sweep.path(&known).exists(), "{known}");

    let all = sweep.good(&["advise", "--from", "results"]);
    let each = files.map(|file| sweep.good(&["advise", file]));
    let rest = all.strip_prefix(&each.concat()).unwrap_or_else(|| panic!("{all}\n-----\n{}", each.concat()));
    assert!(rest.contains("Fleet: 2 programs.") && rest.contains("| thp=always"), "{rest}");
    assert!(each[0].contains("Less and less memory"), "{}", each[0]);

    let objects = sweep.good(&["advise", "--json", "--from", "results"]);
    let each = files.map(|file| sweep.good(&["advise", "--json", file]));
    let rest = objects.strip_prefix(&each.concat()).expect("the objects of each program first");
    assert!(schema::checked("advise.json", &objects).len() > 60);
    assert!(rest.lines().count() > 14 && rest.contains("\"worst\""), "{rest}");

    // Of one program nothing follows. The page is the same, too.
    let first: Vec<&String> = lines.iter().filter(|line| line.ends_with(" sort-threads")).collect();
    fs::create_dir(sweep.path("one")).expect("a folder");
    for line in first {
        let name = line.split("-o results/").nth(1).and_then(|rest| rest.split(' ').next()).expect("a name");
        let text = fs::read_to_string(sweep.path("results").join(name)).expect("a result");
        // By itself it is of no sweep of which something is missing.
        let without = line
            .replace(&line[line.find(" --number").expect("it")..line.find(" --setting").expect("it")], "");
        let without = without.replace("-o results/", "-o one/");
        sweep.run(&[without]);
        assert_eq!(schema::checked("sweep.json", &text).len(), 1);
    }
    let merged = sweep.good(&["advise", "--from", "one", "--report", "merged.html"]);
    assert_eq!(merged, sweep.good(&["advise", "sort-threads", "--report", "advised.html"]));
    let page = |name: &str| fs::read_to_string(sweep.path(name)).expect("a page");
    assert!(page("merged.html") == page("advised.html"), "the pages differ");
    // Without the recording a line says what no result has.
    fs::remove_file(sweep.path("sort-threads")).expect("it is there");
    let output = sweep.quire(&["advise", "--from", "one", "--report", "merged.html"]);
    assert!(text(&output.stderr).contains("no pictures of memory by address"), "{output:?}");
}

/// Each is told in a line, and changes nothing else.
#[test]
fn what_is_wrong_with_results_is_told() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("grid.toml"), "settings = ['mthp=64K', 'thp=always']\nlimits = []\n")
        .expect("a file");
    let lines = sweep.lines(&["--grid", "grid.toml", "git-log"]);
    assert_eq!(lines.len(), 4, "{lines:?}");
    let results: Vec<String> = lines
        .iter()
        .map(|line| {
            let output = sweep.shell(line);
            assert!(output.status.success(), "{line}");
            schema::checked("sweep.json", &text(&output.stdout));
            text(&output.stdout)
        })
        .collect();
    assert!(results.iter().all(|result| result.ends_with("\"}\n") && result.lines().count() == 1));
    let merged = |results: &[&str]| {
        fs::write(sweep.path("all"), results.concat()).expect("a file");
        let output = sweep.quire(&["advise", "--from", "all"]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let all: Vec<&str> = results.iter().map(String::as_str).collect();
    let (code, whole, told) = merged(&all);
    assert_eq!((code, told.as_str()), (Some(0), ""));
    assert!(whole.contains("| mthp=64K") && whole.contains("| thp=never"), "{whole}");
    assert_eq!(merged(&[all[3], all[1], all[2], all[0]]).1, whole, "in another order");

    let (code, shown, told) = merged(&[&all[..], &all[1..2]].concat());
    assert_eq!((code, shown.as_str()), (Some(0), whole.as_str()));
    assert_eq!(told, "quire: all:5: repeated, with the result of all:2; counted once\n");
    let (code, shown, told) = merged(&[&all[..], &["{\"a\": 1}\n", "\n", "\u{1b}[2J\n"]].concat());
    assert_eq!((code, shown.as_str()), (Some(0), whole.as_str()));
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.starts_with("quire: all:5: no line of `quire sweep`"), "{told}");

    // As they come by way of another system, or joined.
    let (windows, joined) = (all.concat().replace('\n', "\r\n"), all.concat().replace('\n', ""));
    for text in [windows, joined] {
        assert_eq!(merged(&[&text]), (Some(0), whole.clone(), String::new()));
    }
    let (code, _, told) = merged(&[&all[..], &["x\n"; 1000]].concat());
    assert_eq!((code, told.lines().count()), (Some(0), 11), "{told}");
    assert!(told.ends_with("quire: all: 990 more that are no results; passed over\n"), "{told}");

    // The row of what is missing is missing.
    // A table is as wide as its rows.
    let row = |shown: &str| {
        let others = shown.lines().filter(|line| !line.starts_with("| mthp=64K") && !line.starts_with("|-"));
        others.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    let is_64k = |result: &&str| result.contains("\"setting\":\"mthp=64K\"");
    let place = all.iter().position(is_64k).expect("a line");
    let (left, right) = (&all[..place], &all[place + 1..]);
    let cut = &all[place][..all[place].len() / 2];
    let changed = all[place].replace("\"differences\":0", "\"differences\":1");
    let newer = all[place].replace("{\"sweep\":2,", "{\"sweep\":3,");
    for (instead, word) in [
        ("", "line 1 of 4"),
        (&*format!("{cut}\n"), "cut short"),
        (&*changed, "its sum is wrong"),
        (&*newer, "a line of version 3"),
    ] {
        let word = if instead.is_empty() { format!("line {} of 4", place + 1) } else { word.to_owned() };
        let (code, shown, told) = merged(&[left, &[instead], right].concat());
        assert!(code == Some(1) && told.contains(&word), "{told}");
        if !instead.is_empty() {
            assert!(told.contains(&format!("all:{}: ", place + 1)), "{told}");
        }
        assert_eq!(row(&shown), row(&whole), "{word}");
        assert!(!shown.contains("| mthp=64K"), "{word}");
    }
    // Without what all is compared with there is none.
    let never = all.iter().position(|result| result.contains("\"setting\":\"thp=never\"")).expect("a line");
    let (code, shown, told) = merged(&[&all[..never], &all[never + 1..]].concat());
    assert!(code == Some(2) && shown.is_empty() && told.contains("no result under thp=never"), "{told}");
    assert!(told.lines().all(|line| line.starts_with("quire: ")), "{told}");
    assert_eq!(merged(&[]).0, Some(2));
}

/// Techniques, limits in bytes and sizes of machines have rows, too.
#[test]
fn a_grid_says_what_is_replayed() {
    let sweep = Sweep::new(&["git-log"]);
    with_uses("git-log", &sweep.path("known"));
    let grid = "settings = []\nlimits = ['75%', '600K']\nswaps = ['zram-lz4', 'disk']\nmemory = ['64M']\n\
                techniques = ['gather=pages,pcp=order0']";
    fs::write(sweep.path("grid.toml"), grid).expect("a file");
    let lines = sweep.lines(&["--grid", "grid.toml", "-o", "results", "known"]);
    assert_eq!(lines, sweep.lines(&["--grid", "grid.toml", "-o", "results", "--jobs", "1", "known"]));
    sweep.run(&lines);
    let shown = sweep.good(&["advise", "--from", "results"]);
    for row in [
        "| thp=madvise,pcp=order0,gather=pages ",
        "| limit=75%,swap=disk ",
        "| limit=600KiB,swap=zram-lz4 ",
        "| memory=64MiB,swap=disk ",
    ] {
        assert!(shown.contains(row), "{row}:\n{shown}");
    }
    assert!(!shown.contains("limit=50%,swap=zram") || shown.contains("Less and less"), "{shown}");
    let objects = sweep.good(&["advise", "--json", "--from", "results"]);
    assert!(schema::checked("advise.json", &objects).iter().any(|object| object["machine"] == true));
}

/// A result is whole or not there, and replaces nothing else.
#[test]
fn a_line_writes_its_own_file_only() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("other"), "something else\n").expect("a file");
    let line = ["sweep", "--one", "--setting", "thp=never", "-o"];
    let output = sweep.quire(&[&line[..], &["other", "git-log"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("other"), "{output:?}");
    assert_eq!(fs::read_to_string(sweep.path("other")).ok().as_deref(), Some("something else\n"));
    sweep.good(&[&line[..], &["new/a.json", "git-log"]].concat());
    let first = fs::read(sweep.path("new/a.json")).expect("a result");
    sweep.good(&[&line[..], &["new/a.json", "git-log"]].concat());
    assert_eq!(fs::read(sweep.path("new/a.json")).ok(), Some(first), "it is deterministic");
    let wrong = sweep.quire(&[&line[..], &["new/b.json", "other"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(
        fs::read_dir(sweep.path("new")).expect("it").count(),
        1,
        "nothing is left of a line that fails"
    );
}

#[test]
fn wrong_usage_is_told_in_one_line() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("grid.toml"), "\n\nlimits = ['75%'\n").expect("a file");
    fs::copy(recording_of("git-log"), sweep.path("a\nb")).expect("a copy");
    fs::write(sweep.path("large.toml"), "memory = ['4K']\n").expect("a file");
    let one = ["sweep", "--one", "git-log", "--setting", "thp=never"];
    for (arguments, word) in [
        (&["sweep", "--grid", "grid.toml", "git-log"][..], "grid.toml: line "),
        (&["sweep", "grid.toml"], "no recording can be swept"),
        (&["sweep", "a\nb"], "control character"),
        (&["sweep", "--one", "--setting", "thp=rarely", "git-log"], "thp=rarely"),
        (&["sweep", "--one", "git-log"], "--setting"),
        (&["sweep", "--one", "--setting", "thp=never", "--phase", "0", "git-log"], "--limit"),
        (&["sweep", "--one", "--setting", "thp=never", "/dev/zero"], "no regular file"),
        (&[&one[..], &["--meant", "75%", "--swap", "zram:1M"]].concat(), "--limit"),
        (&[&one[..], &["--limit", "1M", "--swap", "zram:1M", "--meant", "75%"]].concat(), "--need"),
        (&[&one[..], &["--peak-use", "--phase", "0"]].concat(), "--mappings"),
        (
            &[&one[..], &["--kernel", "18446744073709551615,1,1", "-o", "new/x"]].concat(),
            "no line of a sweep",
        ),
        (&["sweep", "-o", "grid.toml", "git-log"], "no folder"),
        (&["sweep", "--grid", "large.toml", "git-log"], "memory: 4096 bytes: no replay has that"),
        (&["sweep", "-o"], "quire sweep --help"),
        (&["advise", "--from"], "quire advise --help"),
        (&["sweep", "--grid", "/dev/zero", "git-log"], "no regular file"),
        (&["advise", "--from", "/dev/zero"], "no regular file"),
        (&["sweep", "--setting", "thp=never", "git-log"], "--one"),
        (&["advise", "--from", "missing"], "missing"),
        (&["advise", "--from", "grid.toml", "--validate"], "--validate"),
    ] {
        let output = sweep.quire(arguments);
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(word), "{arguments:?}: {told}");
        assert!(output.stdout.is_empty() && told.lines().all(|line| line.starts_with("quire: ")), "{told}");
    }
    assert!(!sweep.path("new").exists(), "nothing was made for what no line asks for");
    // What is good is printed all the same.
    let output = sweep.quire(&["sweep", "git-log", "a\nb", "grid.toml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).lines().count() > 15 && text(&output.stderr).lines().count() == 2);
}

/// A fleet is of several hosts: recordings of one command that were made under other settings are another
/// program.
#[test]
fn the_same_recording_is_swept_once() {
    let sweep = Sweep::new(&["git-log"]);
    fs::copy(recording_of("git-log"), sweep.path("copy")).expect("a copy");
    let output = quire_with(&["sweep", "copy", "git-log"], |command| _ = command.current_dir(&sweep.0.0));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("git-log: the same recording as copy"), "{output:?}");
    assert!(text(&output.stdout).lines().all(|line| line.ends_with(" copy")));
    assert_eq!(quire(&["sweep"]).status.code(), Some(2));
}

/// What a result names may be something else when results are merged.
#[test]
fn pictures_are_of_the_recording_that_was_swept() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("grid.toml"), "settings = []\nlimits = []\n").expect("a file");
    let lines = sweep.lines(&["--grid", "grid.toml", "-o", "results", "git-log"]);
    sweep.run(&lines);
    let report = ["advise", "--from", "results", "--report", "page.html"];
    let shown = sweep.good(&report);
    let path = sweep.path("git-log");
    for (damage, word) in [("other", "not the one that the results"), ("pipe", "no regular file")] {
        fs::remove_file(&path).expect("it is there");
        match damage {
            "other" => _ = fs::copy(recording_of("sort-threads"), &path).expect("a copy"),
            _ => assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success()),
        }
        let _ = fs::remove_file(sweep.path("page.html"));
        let output = sweep.quire(&report);
        let told = text(&output.stderr);
        assert!(told.contains(word) && told.contains("no pictures of memory"), "{damage}: {told}");
        assert_eq!(text(&output.stdout), shown, "{damage}");
        assert!(sweep.path("page.html").exists(), "{damage}");
    }
}

/// One entry that cannot be read changes nothing else.
#[test]
fn what_cannot_be_read_is_passed_over() {
    let sweep = Sweep::new(&["git-log"]);
    fs::write(sweep.path("grid.toml"), "settings = []\nlimits = []\n").expect("a file");
    sweep.run(&sweep.lines(&["--grid", "grid.toml", "-o", "results", "git-log"]));
    let whole = sweep.good(&["advise", "--from", "results"]);
    fs::create_dir(sweep.path("results/sub.json")).expect("a folder");
    std::os::unix::fs::symlink("/nowhere", sweep.path("results/zz.json")).expect("a link");
    let output = sweep.quire(&["advise", "--from", "results"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), whole));
    let told = text(&output.stderr);
    assert!(told.contains("sub.json: no regular file; passed over"), "{told}");
    assert!(told.contains("zz.json: No such file") && told.lines().count() == 2, "{told}");
}

/// The same bytes each time, and none where the host has too little memory for the machine.
#[test]
fn a_limit_has_one_result() {
    let sweep = Sweep::new(&[]);
    with_uses("git-log", &sweep.path("known"));
    fs::write(sweep.path("grid.toml"), "settings = []\nlimits = ['50%']\nswaps = ['zram-lz4']\n")
        .expect("a file");
    let lines = sweep.lines(&["--grid", "grid.toml", "known"]);
    let line = lines.iter().find(|line| line.contains(" --limit ")).expect("a limit");
    let first = sweep.shell(line);
    assert!(first.status.success() && text(&first.stdout).contains("\"less\""), "{first:?}");
    assert_eq!(sweep.shell(line).stdout, first.stdout);

    fs::write(sweep.path("meminfo"), "MemTotal: 2000 kB\nMemFree: 1000 kB\nMemAvailable: 1000 kB\n")
        .expect("a file");
    fs::write(sweep.path("line"), line).expect("a file");
    let small = "mount --bind meminfo /proc/meminfo";
    // It needs a mount namespace, which not every host permits.
    if sweep.shell(&format!("unshare -rm {small}")).status.success() {
        let output = sweep.shell(&format!("unshare -rm sh -c '{small} && sh line'"));
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
        let told = text(&output.stderr);
        assert!(told.contains("too little free memory") && told.lines().count() == 1, "{told}");
    }
}
