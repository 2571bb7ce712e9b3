//! A memory cgroup: its limit and counters. Versions 1 and 2 have different files for them.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use super::Charge;
use crate::error::MeasureError;
use crate::flat_keyed::field;

/// Which files a memory cgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes`: a hierarchy of the memory controller alone.
    V1,
    /// `memory.max`: the unified hierarchy.
    V2,
}

impl CgroupVersion {
    /// The file of a cgroup's limit.
    pub(crate) fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }
}

/// The folder in which memory cgroups are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupRoot {
    path: PathBuf,
    version: CgroupVersion,
}

impl CgroupRoot {
    /// Groups of `version` below the folder `path`.
    pub fn at(path: impl Into<PathBuf>, version: CgroupVersion) -> Self {
        Self { path: path.into(), version }
    }

    /// Where this host's memory controller is mounted.
    ///
    /// # Errors
    ///
    /// It is not mounted.
    pub fn of_host() -> Result<Self, MeasureError> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let found = Self::find(&mounts, |root| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|controller| controller == "memory")
        });
        found.ok_or_else(|| MeasureError::Limit("this host has no memory cgroups mounted".to_owned()))
    }

    /// A hierarchy with the memory controller; for version 2 `has_memory` says whether it has it.
    fn find(mounts: &str, has_memory: impl Fn(&Path) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (path, kind, flags) = (PathBuf::from(words.next()?), words.next()?, words.next()?);
            let version = match kind {
                "cgroup" if flags.split(',').any(|flag| flag == "memory") => CgroupVersion::V1,
                "cgroup2" if has_memory(&path) => CgroupVersion::V2,
                _ => return None,
            };
            Some(Self { path, version })
        })
    }

    /// The version of its groups.
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Where its hierarchy is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that turns the memory controller on for groups below, and the word that turns it off again.
    /// None if it is on.
    pub(crate) fn turned_on(&self) -> Option<(PathBuf, &'static str)> {
        let file = self.path.join("cgroup.subtree_control");
        let on = |text: String| text.split_whitespace().any(|controller| controller == "memory");
        match self.version {
            CgroupVersion::V1 => None,
            CgroupVersion::V2 if fs::read_to_string(&file).is_ok_and(on) => None,
            CgroupVersion::V2 => Some((file, "-memory")),
        }
    }

    /// The group of a name, which may not exist.
    pub(crate) fn group(&self, name: &str) -> Group {
        Group { folder: self.path.join(name), version: self.version }
    }
}

/// A memory cgroup of its own.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    folder: PathBuf,
    version: CgroupVersion,
}

impl Group {
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn make(&self) -> Result<(), MeasureError> {
        fs::create_dir(&self.folder).map_err(|why| MeasureError::file(&self.folder, why))
    }

    /// Limits memory to `bytes`, and what is swapped out of it to `swap`.
    pub(crate) fn limit(&self, bytes: u64, swap: u64) -> Result<(), MeasureError> {
        self.write(self.version.limit_file(), bytes)?;
        let written = match self.version {
            // Memory and swap together.
            CgroupVersion::V1 => self.write("memory.memsw.limit_in_bytes", bytes + swap),
            CgroupVersion::V2 => self.write("memory.swap.max", swap),
        };
        match written {
            // A kernel that does not account swap does not limit it.
            Err(MeasureError::Missing(_)) => Ok(()),
            written => written,
        }
    }

    /// The limit as the kernel rounded it: whole pages.
    pub(crate) fn limited_to(&self) -> u64 {
        self.number(self.version.limit_file())
    }

    /// The file into which a process writes 0 to enter the group.
    pub(crate) fn entrance(&self) -> Result<File, MeasureError> {
        let file = self.folder.join("cgroup.procs");
        OpenOptions::new().write(true).open(&file).map_err(|why| MeasureError::file(&file, why))
    }

    /// The most that was charged.
    pub(crate) fn peak(&self) -> u64 {
        self.number(match self.version {
            CgroupVersion::V1 => "memory.max_usage_in_bytes",
            CgroupVersion::V2 => "memory.peak",
        })
    }

    /// How often memory was reclaimed since the limit was reached.
    pub(crate) fn hits(&self) -> u64 {
        match self.version {
            CgroupVersion::V1 => self.number("memory.failcnt"),
            CgroupVersion::V2 => field(&self.text("memory.events"), "max"),
        }
    }

    /// Processes that were killed for memory.
    pub(crate) fn kills(&self) -> u64 {
        let file = match self.version {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        };
        field(&self.text(file), "oom_kill")
    }

    /// Major faults of its processes.
    pub(crate) fn major_faults(&self) -> u64 {
        field(&self.text("memory.stat"), "pgmajfault")
    }

    /// What is charged now.
    pub(crate) fn charge(&self) -> Charge {
        let stat = self.text("memory.stat");
        match self.version {
            CgroupVersion::V1 => Charge {
                all: self.number("memory.usage_in_bytes"),
                anonymous: field(&stat, "rss"),
                swap_cache: field(&stat, "swapcached"),
                // The page cache includes pages read from swap.
                file: field(&stat, "cache")
                    .saturating_sub(field(&stat, "swapcached") + field(&stat, "shmem")),
                shared: field(&stat, "shmem"),
                kernel: self.number("memory.kmem.usage_in_bytes"),
                swapped: field(&stat, "swap"),
            },
            CgroupVersion::V2 => Charge {
                all: self.number("memory.current"),
                anonymous: field(&stat, "anon"),
                swap_cache: field(&stat, "swapcached"),
                file: field(&stat, "file").saturating_sub(field(&stat, "swapcached") + field(&stat, "shmem")),
                shared: field(&stat, "shmem"),
                kernel: field(&stat, "kernel"),
                swapped: self.number("memory.swap.current"),
            },
        }
    }

    fn write(&self, file: &str, bytes: u64) -> Result<(), MeasureError> {
        let file = self.folder.join(file);
        let written =
            OpenOptions::new().write(true).open(&file).and_then(|_| fs::write(&file, bytes.to_string()));
        written.map_err(|why| MeasureError::file(&file, why))
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    /// Zero of a file that this kernel does not have.
    fn number(&self, file: &str) -> u64 {
        self.text(file).trim().parse().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of version 2, in a folder with the files that the kernel would make.
    fn group(name: &str, files: &[(&str, &str)]) -> Group {
        let root = tempfile::Builder::new().prefix(name).tempdir().unwrap().keep();
        let group = CgroupRoot::at(&root, CgroupVersion::V2).group("quire-1");
        group.make().unwrap();
        for (file, text) in files {
            fs::write(group.folder().join(file), text).unwrap();
        }
        group
    }

    fn remove(group: &Group) {
        fs::remove_dir_all(group.folder().parent().unwrap()).unwrap();
    }

    #[test]
    fn the_hierarchy_with_the_memory_controller_is_found() {
        let one = "proc /proc proc rw 0 0\ncgroup /c/cpu cgroup rw,cpu 0 0\n\
                   cgroup /c/memory cgroup rw,relatime,memory 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        let found = CgroupRoot::find(one, |_| false).unwrap();
        assert_eq!(found, CgroupRoot::at("/c/memory", CgroupVersion::V1));
        assert_eq!(found.turned_on(), None);
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = CgroupRoot::find(two, |root| root == Path::new("/sys/fs/cgroup"));
        assert_eq!(found, Some(CgroupRoot::at("/sys/fs/cgroup", CgroupVersion::V2)));
        assert_eq!(CgroupRoot::find(two, |_| false), None);
        assert_eq!(CgroupRoot::find("", |_| true), None);
    }

    #[test]
    fn the_limit_of_version_2_is_for_memory_and_for_swap() {
        let group = group("limit", &[("memory.max", "max\n"), ("memory.swap.max", "max\n")]);
        group.limit(32 << 20, 64 << 20).unwrap();
        assert_eq!(group.text("memory.max"), "33554432");
        assert_eq!(group.text("memory.swap.max"), "67108864");
        assert_eq!(group.limited_to(), 32 << 20);
        fs::remove_file(group.folder().join("memory.swap.max")).unwrap();
        group.limit(16 << 20, 0).unwrap();
        fs::remove_file(group.folder().join("memory.max")).unwrap();
        assert!(matches!(group.limit(16 << 20, 0), Err(MeasureError::Missing(_))));
        remove(&group);
    }

    #[test]
    fn figures_of_version_2() {
        let stat = "anon 25165824\nfile 5242880\nkernel 401408\nkernel_stack 16384\nshmem 1048576\n\
                    swapcached 2097152\npgfault 30000\npgmajfault 1234\n";
        let events = "low 0\nhigh 0\nmax 512\noom 1\noom_kill 2\noom_group_kill 0\n";
        let group = group(
            "figures",
            &[
                ("memory.stat", stat),
                ("memory.events", events),
                ("memory.current", "33550336\n"),
                ("memory.peak", "33554432\n"),
                ("memory.swap.current", "40000000\n"),
            ],
        );
        assert_eq!((group.peak(), group.hits(), group.kills()), (33_554_432, 512, 2));
        assert_eq!(group.major_faults(), 1234);
        let charge = Charge {
            all: 33_550_336,
            anonymous: 25_165_824,
            swap_cache: 2_097_152,
            file: 2_097_152,
            shared: 1_048_576,
            kernel: 401_408,
            swapped: 40_000_000,
        };
        assert_eq!(group.charge(), charge);
        remove(&group);
    }

    #[test]
    fn a_process_enters_version_2_by_its_file() {
        let group = group("enter", &[("cgroup.procs", "")]);
        std::io::Write::write_all(&mut group.entrance().unwrap(), b"0").unwrap();
        assert_eq!(group.text("cgroup.procs"), "0");
        remove(&group);
    }

    #[test]
    fn the_controller_of_version_2_is_turned_on() {
        let group = group("turned-on", &[]);
        let root = CgroupRoot::at(group.folder().parent().unwrap(), CgroupVersion::V2);
        let file = group.folder().with_file_name("cgroup.subtree_control");
        fs::write(&file, "cpu pids\n").unwrap();
        assert_eq!(root.turned_on(), Some((file.clone(), "-memory")));
        fs::write(&file, "cpu memory pids\n").unwrap();
        assert_eq!(root.turned_on(), None);
        remove(&group);
    }
}
