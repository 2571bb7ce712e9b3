//! Recordings under pressure, and their replays within memory limits.

use crate::{Folder, python, quire};
use serde_json::Value;

/// 16 MiB that are written four times, each time when most of what is sampled has been paged out, and the
/// limit that the program reads.
const PROGRAM: &str = "
import glob
import re
pages = [bytearray(4096) for number in range(4096)]
for turn in range(3):
    while int(re.search(r'RssAnon:\\s*(\\d+)', open('/proc/self/status').read())[1]) > 16 << 10: pass
    for page in pages: page[0] = 1
for line in open('/proc/self/cgroup'):
    controllers, path = line.strip().split(':', 2)[1:]
    file = '/memory' + path + '/memory.limit_in_bytes' if 'memory' in controllers else path + '/memory.max'
    for name in glob.glob('/sys/fs/cgroup' + file): print('limit', open(name).read().strip())
";

/// The figures of all processes of a replay.
fn replayed(file: &str, arguments: &[&str]) -> Value {
    let output = quire(&[&["replay", file, "--swap", "zram:1G", "--json"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str::<Value>(last).expect("an object a line")["recording"].take()
}

/// A sample says what the whole would; a limit is taken as a share of the peak, and what is charged beside
/// anonymous memory makes it smaller.
#[test]
fn a_sampled_recording_is_replayed_within_limits() {
    let folder = Folder::new("limits");
    let file = folder.0.join("a.qtr");
    let file = file.to_str().expect("a plain path");
    let record = ["record", "-o", file, "--pressure", "4M", "--sample", "2", "--show-limit", "512M"];
    let output = quire(&[&record[..], &["--", python(), "-c", PROGRAM]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(0) {
        return eprintln!("skipped: {errors}");
    }
    assert!(
        errors.contains("pages paged out") && !errors.contains("the program read its memory limit"),
        "{errors}"
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.lines().any(|line| line == "limit 536870912"), "{printed}");

    let faults = |arguments: &[&str]| {
        let recording = replayed(file, arguments);
        assert!(recording["does_not_fit"].is_null(), "{recording}");
        recording["memory"]["pgmajfault"].as_f64().expect("a number")
    };
    // Those of files that Linux had not cached.
    let of_files = faults(&[]);
    assert!(of_files < 1000.0, "{of_files}");
    let half = faults(&["--limit", "12M"]);
    // Half of the pages are out, always those that come next.
    let some = 3.0 * 2048.0..6.0 * 4096.0;
    assert!(some.contains(&half), "{half}");
    // All fits, until as much is charged beside it that only 12 MiB are left.
    assert_eq!(faults(&["--limit", "32M"]), of_files);
    let beside = faults(&["--limit", "32M", "--beside", "20M"]);
    assert!(some.contains(&beside), "{beside}");
    // Of a peak that is twice as large, it is half of the limit; of one that is half, all fits.
    assert!(faults(&["--limit", "12M", "--peak", "48M"]) > half);
    assert!(faults(&["--limit", "16M", "--peak", "12M"]) <= of_files);
}

#[test]
fn a_limit_is_shown_under_pressure_only() {
    let folder = Folder::new("shown");
    let file = folder.0.join("a.qtr");
    let output =
        quire(&["record", "-o", file.to_str().expect("a plain path"), "--show-limit", "1G", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--pressure"), "{output:?}");
    assert_eq!(folder.names(), <[&str; 0]>::default());
}
