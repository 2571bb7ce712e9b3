//! What the merge makes of several recordings of a program, and of several programs.

use crate::schema;
use crate::sweep::{Sweep, changed, text};
use quire_trace::format::{TraceReader, UseSource};
use std::fs;

/// Half of the events of a recording: the program needs less there.
fn half(name: &str) -> usize {
    TraceReader::open(crate::recording_of(name)).expect("a recording").count() / 2
}

/// Recordings of one program that say when pages were used, made one after the other; of the last only the
/// first half.
fn recordings(sweep: &Sweep) -> [&'static str; 3] {
    let names = ["a", "b", "c"];
    for (place, name) in names.into_iter().enumerate() {
        let events = if name == "c" { half("git-log") } else { usize::MAX };
        changed("git-log", &sweep.path(name), events, |header| {
            (header.uses, header.started) = (UseSource::Exact, header.started + place as u64);
        });
    }
    let grid = "settings = []\nlimits = ['90%', '75%']\nswaps = ['zram-lz4']\n";
    fs::write(sweep.path("grid.toml"), grid).expect("a file");
    names
}

/// The rows of limits, as far as they say which.
fn limits(shown: &str) -> Vec<&str> {
    shown
        .lines()
        .filter(|line| line.starts_with("| limit="))
        .filter_map(|row| row.split(' ').nth(1))
        .collect()
}

/// The others keep their limits, where no recording is at hand either.
#[test]
fn a_recording_that_is_missing_takes_its_own_limits_only() {
    let sweep = Sweep::new(&[]);
    let names = recordings(&sweep);
    let lines = sweep.lines(&[&["--grid", "grid.toml", "-o", "results"], &names[..]].concat());
    sweep.run(&lines);
    let whole = sweep.good(&["advise", "--from", "results"]);
    assert!(limits(&whole).len() >= 2, "{whole}");
    for name in names {
        fs::remove_file(sweep.path(name)).expect("it is there");
    }
    for name in names {
        let folder = format!("without-{name}");
        fs::create_dir(sweep.path(&folder)).expect("a folder");
        let others = lines.iter().filter(|line| !line.ends_with(&format!(" {name}")));
        let of = |line: &String| {
            line.split(" -o results/").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned)
        };
        for file in others.filter_map(of) {
            fs::copy(sweep.path("results").join(&file), sweep.path(&folder).join(&file)).expect("a copy");
        }
        let output = sweep.quire(&["advise", "--from", &folder]);
        let (shown, told) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.code() == Some(1) && told.starts_with("quire: line"), "{told}");
        assert!(!told.contains("no result of it is there"), "{name}: {told}");
        assert!(limits(&shown).starts_with(&limits(&whole)[..2]), "{name}: {told}{shown}");
    }
}

/// Limits are shares of what all recordings need.
#[test]
fn recordings_that_were_swept_apart_have_no_limits_together() {
    let sweep = Sweep::new(&[]);
    let names = recordings(&sweep);
    for name in [names[0], names[2]] {
        sweep.run(&sweep.lines(&["--grid", "grid.toml", "-o", &format!("of-{name}"), name]));
    }
    let output = sweep.quire(&["advise", "--from", "of-a", "of-c"]);
    let (shown, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    assert!(told.contains("sweep them together"), "{told}");
    assert!(shown.contains("| thp=never") && limits(&shown).is_empty(), "{shown}");
}

/// Two programs of one command are told by their recordings.
#[test]
fn a_loser_is_told_from_others_of_its_command() {
    let sweep = Sweep::new(&[]);
    for (name, scan) in [("first", "1000"), ("second", "2000")] {
        changed("sort-threads", &sweep.path(name), usize::MAX, |header| {
            let files = header.settings.iter_mut().flat_map(|settings| &mut settings.thp_files);
            for (_, value) in files.filter(|(file, _)| file == "khugepaged/scan_sleep_millisecs") {
                *value = scan.to_owned();
            }
        });
    }
    fs::write(sweep.path("grid.toml"), "settings = ['thp=always']\nlimits = []\n").expect("a file");
    sweep.run(&sweep.lines(&["--grid", "grid.toml", "-o", "results", "first", "second"]));
    let shown = sweep.good(&["advise", "--from", "results"]);
    assert!(shown.contains("Fleet: 2 programs") && shown.contains(" of first (memory"), "{shown}");
    let objects = schema::checked("advise.json", &sweep.good(&["advise", "--json", "--from", "results"]));
    let worst: Vec<_> = objects.iter().filter_map(|object| object["worst"]["recording"].as_str()).collect();
    assert_eq!(worst, ["first"]);
}

/// With techniques a setting stands behind the setting that it is of, however names begin.
#[test]
fn rows_with_techniques_are_in_the_order_of_the_table() {
    let sweep = Sweep::new(&["git-log"]);
    let grid = "settings = ['thp=always', 'thp=always,mthp=16K-64K', 'thp=madvise,tables=free']\n\
                limits = []\ntechniques = ['gather=pages', 'pcp=order0']";
    fs::write(sweep.path("grid.toml"), grid).expect("a file");
    sweep.run(&sweep.lines(&["--grid", "grid.toml", "-o", "results", "git-log"]));
    let shown = sweep.good(&["advise", "--from", "results"]);
    let rows: Vec<&str> =
        shown.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    let place =
        |name: &str| rows.iter().position(|row| *row == name).unwrap_or_else(|| panic!("{name}: {shown}"));
    let order = [
        "thp=madvise,tables=free",
        "thp=always,gather=pages",
        "thp=always,pcp=order0",
        "thp=always,mthp=16K-64K,gather=pages",
    ];
    assert!(order.map(place).is_sorted(), "{rows:?}");
}
