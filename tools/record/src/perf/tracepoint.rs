//! Finding tracepoints.
//!
//! Their numbers are in tracefs. If it is not mounted, a detached mount is made.

use crate::sys::mount;
use std::fs;
use std::io;

/// Where the two fields of a tracepoint that are read are in its raw bytes.
pub(super) type Offsets = [usize; 2];

/// A tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tracepoint {
    /// Its number, which perf needs.
    pub(super) id: u64,
    /// Where its fields are.
    pub(super) offsets: Offsets,
}

/// What is known of a tracepoint: its folder, and the names and bytes of two of its fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    folder: &'static str,
    fields: [(&'static str, usize); 2],
}

const FAULT: [(&str, usize); 2] = [("address", 8), ("error_code", 8)];
/// Page faults of user mode and of the kernel.
pub(super) const FAULTS: [Known; 2] = [
    Known { folder: "exceptions/page_fault_user", fields: FAULT },
    Known { folder: "exceptions/page_fault_kernel", fields: FAULT },
];
/// The beginning and the end of calls, and the lock that orders what they do to an address space.
pub(super) const CALLS: [Known; 3] = [
    Known { folder: "raw_syscalls/sys_enter", fields: [("id", 8), ("args[6]", 48)] },
    Known { folder: "raw_syscalls/sys_exit", fields: [("id", 8), ("ret", 8)] },
    Known { folder: "mmap_lock/mmap_lock_acquire_returned", fields: [("mm", 8), ("write", 1)] },
];

const ADDED: &str = "filemap/mm_filemap_add_to_page_cache";
const REMOVED: &str = "filemap/mm_filemap_delete_from_page_cache";
const PLACE: [(&str, usize); 2] = [("i_ino", 8), ("index", 8)];
const ORIGIN: [(&str, usize); 2] = [("s_dev", 4), ("order", 1)];
/// Pages that enter the page cache, and that leave it: each twice, for four of its fields.
pub(super) const PAGES: [Known; 4] = [
    Known { folder: ADDED, fields: PLACE },
    Known { folder: ADDED, fields: ORIGIN },
    Known { folder: REMOVED, fields: PLACE },
    Known { folder: REMOVED, fields: ORIGIN },
];

/// Places where tracefs usually is.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

impl Tracepoint {
    /// Finds tracepoints.
    pub(super) fn find<const N: usize>(known: [Known; N]) -> io::Result<[Self; N]> {
        for mount in MOUNTS {
            let read = |path: String| fs::read_to_string(format!("{mount}/{path}"));
            if let Ok(found) = find(known, &read) {
                return Ok(found);
            }
        }
        Self::find_in_detached_mount(known)
    }

    fn find_in_detached_mount<const N: usize>(known: [Known; N]) -> io::Result<[Self; N]> {
        let mount = mount::detached(c"tracefs")?;
        find(known, &|path| mount::read_in(&mount, &path))
    }
}

fn find<const N: usize>(
    known: [Known; N],
    read: &dyn Fn(String) -> io::Result<String>,
) -> io::Result<[Tracepoint; N]> {
    let mut found = [Tracepoint { id: 0, offsets: [0; 2] }; N];
    for (tracepoint, Known { folder, fields }) in found.iter_mut().zip(known) {
        let id = read(format!("events/{folder}/id"))?;
        let format = read(format!("events/{folder}/format"))?;
        *tracepoint = parse(&id, &format, fields)
            .ok_or_else(|| io::Error::other("the kernel describes the tracepoint in another way"))?;
    }
    Ok(found)
}

fn parse(id: &str, format: &str, fields: [(&str, usize); 2]) -> Option<Tracepoint> {
    // A line is like `field:unsigned long address;	offset:8;	size:8;	signed:0;`.
    let offset = |(name, bytes): (&str, usize)| {
        let line = format.lines().find(|line| line.contains(&format!(" {name};")))?;
        let field = |key: &str| {
            let value = line.split(';').find_map(|part| part.trim().strip_prefix(key))?;
            value.parse::<usize>().ok()
        };
        (field("size:")? == bytes).then_some(field("offset:")?)
    };
    let [first, second] = fields;
    Some(Tracepoint { id: id.trim().parse().ok()?, offsets: [offset(first)?, offset(second)?] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_understood() {
        let format = "name: page_fault_user\nID: 190\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:unsigned long address;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:unsigned long error_code;\toffset:24;\tsize:8;\tsigned:0;\n\nprint fmt: \"address=%ps\"\n";
        assert_eq!(parse("190\n", format, FAULT), Some(Tracepoint { id: 190, offsets: [8, 24] }));
        assert_eq!(parse("x", format, FAULT), None);
        assert_eq!(parse("190\n", format, [("address", 8), ("error_code", 4)]), None);
        assert_eq!(parse("190\n", format, [("address", 8), ("flags", 8)]), None);
    }

    #[test]
    fn a_detached_mount_tells_the_same_as_a_mounted_one() {
        match (Tracepoint::find_in_detached_mount(FAULTS), Tracepoint::find(FAULTS)) {
            (Ok(detached), Ok(usual)) => assert_eq!(detached, usual),
            (detached, _) => eprintln!("skipped: tracefs cannot be mounted here: {:?}", detached.err()),
        }
    }
}
