//! What `/proc` says about a process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) anonymous: u64,
    pub(crate) all: u64,
}

/// The slower figures, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) program: String,
    pub(crate) process: i32,
    pub(crate) parent: i32,
    pub(crate) anonymous: u64,
    pub(crate) resident: u64,
    pub(crate) peak_resident: u64,
    pub(crate) page_tables: u64,
}

/// The files of a process, kept open.
#[derive(Debug)]
pub(crate) struct ProcFiles {
    statm: File,
    status: File,
}

impl ProcFiles {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/{pid}/{name}"));
        Ok(Self { statm: open("statm")?, status: open("status")? })
    }

    /// From `statm`, which is cheap: resident pages, and those of them that are of files or shared memory.
    /// Linux sums its per-CPU counters for it, as for `status`.
    pub(crate) fn resident(&self, page: u64) -> Option<Resident> {
        let mut buffer = [0; 256];
        let length = self.statm.read_at(&mut buffer, 0).ok()?;
        let mut numbers = buffer[..length].split(|byte| *byte == b' ').skip(1).map(number);
        let (all, shared) = (numbers.next()?, numbers.next()?);
        Some(Resident { anonymous: all.saturating_sub(shared) * page, all: all * page })
    }

    pub(crate) fn status(&self) -> Option<Status> {
        let mut buffer = [0; 8192];
        let length = self.status.read_at(&mut buffer, 0).ok()?;
        Some(Status::parse(&String::from_utf8_lossy(&buffer[..length])))
    }
}

impl Status {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Some(Self::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?))
    }

    fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            let bytes = || kilobytes(value) << 10;
            match name {
                "Name" => value.clone_into(&mut status.program),
                "Tgid" => status.process = value.parse().unwrap_or(0),
                "PPid" => status.parent = value.parse().unwrap_or(0),
                "VmHWM" => status.peak_resident = bytes(),
                "VmRSS" => status.resident = bytes(),
                "RssAnon" => status.anonymous = bytes(),
                "VmPTE" => status.page_tables = bytes(),
                _ => {}
            }
        }
        status
    }
}

/// What the page tables say, in bytes. Reading it walks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) anonymous: u64,
    pub(crate) once: u64,
    pub(crate) huge: u64,
}

impl Walk {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let mut walk = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let bytes = || kilobytes(value.trim()) << 10;
            match name {
                "Anonymous" => walk.anonymous = bytes(),
                "Pss_Anon" => walk.once = bytes(),
                "AnonHugePages" => walk.huge = bytes(),
                _ => {}
            }
        }
        Some(walk)
    }
}

/// Whether a process has ended and waits for its parent to notice.
pub(crate) fn is_zombie(pid: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

fn kilobytes(value: &str) -> u64 {
    number(value.split(' ').next().unwrap_or_default().as_bytes())
}

fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let pid = std::process::id().cast_signed();
        let files = ProcFiles::open(pid).unwrap();
        let (resident, status) = (files.resident(4096).unwrap(), files.status().unwrap());
        assert_eq!(status.process, pid);
        assert!(resident.anonymous > 0 && resident.all > resident.anonymous);
        assert!(status.peak_resident >= resident.all / 2 && status.page_tables > 0 && status.anonymous > 0);
        assert!(!is_zombie(pid) && Walk::of(pid).unwrap().anonymous > 0);
    }

    #[test]
    fn a_name_may_hold_anything() {
        let status = Status::parse("Name:\ta: b) c\nTgid:\t7\nPPid:\t1\nVmHWM:\t    12 kB\n");
        assert_eq!((status.program.as_str(), status.process, status.peak_resident), ("a: b) c", 7, 12 << 10));
    }
}
