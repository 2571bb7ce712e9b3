//! How much memory the host has available for this process.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process can still get without swapping, if the host says so: those that the host
/// has available, and those that its memory cgroup and the ones above that allow.
#[must_use]
pub fn host_memory_available() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_of(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files = |path: &Path| fs::read_to_string(path).ok();
    host.into_iter().chain(allowed(Path::new("/sys/fs/cgroup"), &groups, &files)).min()
}

/// `MemAvailable` of `/proc/meminfo`.
fn available_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Names of a cgroup's files, and of the counter of file pages that are given back first.
struct Names {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
};
const SECOND: Names = Names { limit: "memory.max", usage: "memory.current", inactive: "inactive_file " };

/// What the groups of a process (`/proc/self/cgroup`) allow it: the least of each group and those above.
/// `root` is where both versions of cgroups are, by `read`.
fn allowed(root: &Path, groups: &str, read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    groups.lines().filter_map(|line| allowed_by(root, line, read)).min()
}

/// The same of one line of that file: hierarchy, controllers, path.
fn allowed_by(root: &Path, line: &str, read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (top, names) = match controllers {
        "" => (root.to_path_buf(), SECOND),
        _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), FIRST),
        _ => return None,
    };
    let mut group: PathBuf = top.join(path.trim_start_matches('/'));
    let mut least = None;
    while group.starts_with(&top) {
        least = least.into_iter().chain(left_in(&group, &names, read)).min();
        if !group.pop() {
            break;
        }
    }
    least
}

/// What a group has left. `None` if it has no limit.
fn left_in(group: &Path, names: &Names, read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
    let limit = number(names.limit)?;
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let inactive =
        stat.lines().find_map(|line| line.strip_prefix(names.inactive)?.trim().parse::<u64>().ok());
    let used = number(names.usage)?.saturating_sub(inactive.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn given(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let files: HashMap<PathBuf, String> =
            files.iter().map(|(name, text)| (Path::new("/g").join(name), (*text).to_owned())).collect();
        allowed(Path::new("/g"), groups, &|path| files.get(path).cloned())
    }

    #[test]
    fn the_host_says_what_it_has() {
        assert!(host_memory_available().is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(available_of("MemFree: 1 kB\nMemAvailable:   77 kB\n"), Some(77 << 10));
        assert_eq!(available_of("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn the_least_of_all_groups_counts() {
        let first = "5:devices:/\n4:cpu,memory:/a/b\n0::/\n";
        let files = [
            ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/b/memory.usage_in_bytes", "5000\n"),
            ("memory/a/memory.limit_in_bytes", "100000\n"),
            ("memory/a/memory.usage_in_bytes", "60000\n"),
            ("memory/a/memory.stat", "cache 1\ninactive_file 7\ntotal_inactive_file 20000\n"),
        ];
        assert_eq!(given(first, &files), Some(60_000));
        let files = [
            ("user/memory.max", "max\n"),
            ("user/memory.current", "1\n"),
            ("memory.max", "4096\n"),
            ("memory.current", "5000\n"),
        ];
        assert_eq!(given("0::/user\n", &files), Some(0), "more than all is in use");
        assert_eq!(given("0::/user\n", &files[..2]), None);
        assert_eq!(given("nonsense", &files), None);
    }
}
