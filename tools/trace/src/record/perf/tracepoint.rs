//! Finding the page-fault tracepoints.
//!
//! Their numbers are in tracefs. If it is not mounted, a detached mount is made: it has no place in the file
//! system, no other process sees it, and it goes away with its descriptor.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// A tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tracepoint {
    /// Its number, which names it to perf.
    pub(super) id: u64,
    /// Where its fields are.
    pub(super) fields: FieldOffsets,
}

/// Offsets of the fields in the raw bytes of a page-fault tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FieldOffsets {
    pub(super) address: usize,
    pub(super) error_code: usize,
}

/// Places where tracefs usually is.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const NAMES: [&str; 2] = ["page_fault_user", "page_fault_kernel"];

impl Tracepoint {
    /// The two page-fault tracepoints: faults of user mode and of the kernel.
    pub(super) fn find_page_faults() -> io::Result<[Self; 2]> {
        for mount in MOUNTS {
            let read = |path: String| fs::read_to_string(format!("{mount}/{path}"));
            if let Ok(both) = find(&read) {
                return Ok(both);
            }
        }
        Self::find_in_detached_mount()
    }

    fn find_in_detached_mount() -> io::Result<[Self; 2]> {
        let mount = detached_mount()?;
        find(&|path| read_at(&mount, &path))
    }
}

fn find(read: &dyn Fn(String) -> io::Result<String>) -> io::Result<[Tracepoint; 2]> {
    let one = |name: &str| {
        let id = read(format!("events/exceptions/{name}/id"))?;
        let format = read(format!("events/exceptions/{name}/format"))?;
        parse(&id, &format)
            .ok_or_else(|| io::Error::other("the kernel describes the tracepoint in another way"))
    };
    let [user, kernel] = NAMES;
    let both = [one(user)?, one(kernel)?];
    if both[0].fields != both[1].fields {
        return Err(io::Error::other("the two page-fault tracepoints differ"));
    }
    Ok(both)
}

fn parse(id: &str, format: &str) -> Option<Tracepoint> {
    // A line is like `field:unsigned long address;	offset:8;	size:8;	signed:0;`.
    let offset = |name: &str| {
        let line = format.lines().find(|line| line.contains(&format!(" {name};")))?;
        let field = |key: &str| {
            let value = line.split(';').find_map(|part| part.trim().strip_prefix(key))?;
            value.parse::<usize>().ok()
        };
        (field("size:")? == 8).then_some(field("offset:")?)
    };
    let fields = FieldOffsets { address: offset("address")?, error_code: offset("error_code")? };
    Some(Tracepoint { id: id.trim().parse().ok()?, fields })
}

fn detached_mount() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

fn read_at(directory: &OwnedFd, path: &str) -> io::Result<String> {
    let file = openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(fs::File::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_understood() {
        let format = "name: page_fault_user\nID: 190\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:unsigned long address;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:unsigned long error_code;\toffset:24;\tsize:8;\tsigned:0;\n\nprint fmt: \"address=%ps\"\n";
        let fields = FieldOffsets { address: 8, error_code: 24 };
        assert_eq!(parse("190\n", format), Some(Tracepoint { id: 190, fields }));
        assert_eq!(parse("x", format), None);
    }

    #[test]
    fn a_detached_mount_tells_the_same_as_a_mounted_one() {
        match (Tracepoint::find_in_detached_mount(), Tracepoint::find_page_faults()) {
            (Ok(detached), Ok(usual)) => assert_eq!(detached, usual),
            (detached, _) => eprintln!("skipped: tracefs can not be mounted here: {:?}", detached.err()),
        }
    }
}
