//! Finding out whether a file can be mapped, by mapping it: no file says what a driver allows.

use super::counted;
use crate::sys::Tid;
use crate::sys::descriptor::{self, Untouched};
use quire_trace::event::MapTrial;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};

const PAGE: u64 = 4096;
/// Longer mappings need not fit beside those of the recorder.
const LONGEST: u64 = 1 << 44;

/// What a call of `mmap` asks a file for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// Shared or private.
    kind: MapFlags,
    len: u64,
    offset: u64,
}

impl Asked {
    /// From the arguments of the call.
    pub(crate) fn from_args(args: &[u64; 6]) -> Self {
        let shared = matches!(args[3] as i32 & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
        let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        Self { kind, len: args[1], offset: args[5] }
    }

    /// A mapping of a file as it is made for a regular one: neither its length nor its offset is refused.
    fn is_sensible(self) -> bool {
        (1..LONGEST).contains(&self.len) && self.offset < LONGEST && self.offset.is_multiple_of(PAGE)
    }

    /// Whether a regular file that can be mapped in one way can be in the other, too.
    pub(super) fn is_like(self, other: Self) -> bool {
        self.kind == other.kind && self.is_sensible() && other.is_sensible()
    }

    /// The end of what is mapped.
    pub(super) fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    fn one_page(self) -> Self {
        Self { len: PAGE, ..self }
    }

    fn first_page(self) -> Self {
        Self { len: PAGE, offset: 0, ..self }
    }

    fn map(self, file: &OwnedFd, prot: ProtFlags) -> Result<Untouched, Errno> {
        Untouched::map(file, self.len as usize, prot, self.kind | MapFlags::NORESERVE, self.offset)
    }
}

/// Maps descriptor `fd` of a thread in this process. The mapping is PROT_NONE, so that no page of it is
/// used, and is unmapped when this returns. `None` if the descriptor cannot be copied.
pub(crate) fn attempt(tid: Tid, fd: i32, asked: Asked) -> Option<MapTrial> {
    let file = descriptor::take(tid, fd).ok()?;
    let sensible = (1..LONGEST).contains(&asked.len) && asked.offset.is_multiple_of(PAGE);
    let mut asked = if sensible { asked } else { asked.first_page() };
    let mut mapping = asked.map(&file, ProtFlags::empty());
    // That the offset or the length is too large says nothing about the file.
    let smaller = match mapping.as_ref().err() {
        Some(&Errno::OVERFLOW) => Some(asked.first_page()),
        Some(&Errno::NOMEM) => Some(asked.one_page()),
        _ => None,
    };
    if let Some(smaller) = smaller {
        asked = smaller;
        mapping = asked.map(&file, ProtFlags::empty());
    }
    let mapping = match mapping {
        Ok(mapping) => mapping,
        Err(error) => {
            let refused = errno(error);
            // The mount's refusal to execute comes first.
            let execute = asked.map(&file, ProtFlags::READ | ProtFlags::EXEC).err().and_then(errno);
            let exec_refused = execute.filter(|_| execute != refused);
            return Some(MapTrial { refused, write_refused: None, exec_refused });
        }
    };
    let refused = |prot| {
        let denied = mapping.denies(prot);
        denied.then(|| asked.map(&file, prot).err().and_then(errno)).flatten()
    };
    Some(MapTrial {
        refused: None,
        write_refused: refused(ProtFlags::READ | ProtFlags::WRITE),
        exec_refused: refused(ProtFlags::READ | ProtFlags::EXEC),
    })
}

/// Whether descriptor `fd` of a thread is of a file in memory, by its pages. `None` if that cannot be known.
pub(crate) fn is_in_memory(tid: Tid, fd: i32) -> Option<bool> {
    is_file_in_memory(descriptor::take(tid, fd).ok()?)
}

/// The same of an open file.
pub(crate) fn is_file_in_memory(file: impl AsFd) -> Option<bool> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let page = Untouched::map(&file, PAGE as usize, ProtFlags::empty(), flags, 0).ok()?;
    page.is_in_memory().or_else(|| counted::is_in_memory(file))
}

fn errno(error: Errno) -> Option<u16> {
    u16::try_from(error.raw_os_error()).ok()
}
