//! The files that tell a program its memory limit.

use super::group::{CgroupRoot, CgroupVersion};
use std::fs;
use std::path::{Path, PathBuf};

/// The files from which a program that this process starts can learn how much memory it may use: the limits
/// of this process's memory cgroup and of those above it. Empty where no memory cgroups are mounted; some of
/// them may not exist.
#[must_use]
pub fn limit_files() -> Vec<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    CgroupRoot::of_host().map_or_else(|_| Vec::new(), |root| files_of(&root, &cgroups))
}

/// Those of the cgroups that `cgroups` names, which is the text of `/proc/PID/cgroup`.
fn files_of(root: &CgroupRoot, cgroups: &str) -> Vec<PathBuf> {
    // A line is the hierarchy's number, its controllers, and the path: 0 and none for version 2.
    let path = cgroups.lines().find_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        let is_it = match root.version() {
            CgroupVersion::V1 => controllers.split(',').any(|controller| controller == "memory"),
            CgroupVersion::V2 => controllers.is_empty(),
        };
        is_it.then_some(path)
    });
    let own = Path::new(path.unwrap_or("/").trim_start_matches('/'));
    own.ancestors().map(|above| root.path().join(above).join(root.version().limit_file())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_the_files_of_the_cgroup_and_of_those_above() {
        let text = "4:cpu,memory:/a/b\n1:cpu:/c\n0::/d\n";
        let one = files_of(&CgroupRoot::at("/m", CgroupVersion::V1), text);
        let wanted = ["/m/a/b", "/m/a", "/m"].map(|folder| Path::new(folder).join("memory.limit_in_bytes"));
        assert_eq!(one, wanted);
        let two = files_of(&CgroupRoot::at("/u", CgroupVersion::V2), text);
        assert_eq!(two, ["/u/d/memory.max", "/u/memory.max"].map(PathBuf::from));
        assert_eq!(files_of(&CgroupRoot::at("/u", CgroupVersion::V2), ""), [PathBuf::from("/u/memory.max")]);
    }
}
