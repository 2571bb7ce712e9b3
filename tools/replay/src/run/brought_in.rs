//! Calls that bring in what they map or lock, and succeed where memory runs short for that.
//!
//! Linux had the memory: what was brought in never faulted, so that no touch of the recording misses it here.
//! A program that locks what it maps from now on would fit within any limit.

use super::work::looks_at;
use crate::args;
use crate::call::populated_bytes;
use crate::overlap::pages_of;
use crate::space::HostSpace;
use quire_arch::VirtAddr;
use quire_mm::space::{Advice, VmFlags};
use quire_trace::event::{Call, FileKind};
use std::ops::Range;

/// Memory that may be accessed.
pub(super) const ACCESSIBLE: VmFlags = VmFlags::READ.union(VmFlags::WRITE).union(VmFlags::EXEC);

/// Whether `call` locks memory, and may bring in all of it.
pub(super) fn locks(call: &Call) -> bool {
    [libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_mlockall].contains(&call.number.into())
}

/// Whether `call` may bring in pages in a process that has locked none.
pub(super) fn populates(call: &Call) -> bool {
    let [_, _, third, flags, ..] = call.args;
    match i64::from(call.number) {
        libc::SYS_mmap => flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) as u64 != 0,
        libc::SYS_madvise => args::populates(third),
        _ => locks(call),
    }
}

/// How many bytes of files `call` may bring in that Linux can drop again. `is_shared`: whether a file is
/// memory that programs share, which stays.
pub(super) fn files_brought_in(space: &HostSpace<'_>, call: &Call, is_shared: impl Fn(u64) -> bool) -> u64 {
    let [first, second, third, flags, ..] = call.args;
    let has = |flag: i32| flags & flag as u64 != 0;
    match i64::from(call.number) {
        libc::SYS_mmap if has(libc::MAP_POPULATE) => {
            let copies = !has(libc::MAP_SHARED) && third & libc::PROT_WRITE as u64 != 0;
            let comes = call.file().is_some_and(|file| file.kind == FileKind::Regular) && !copies;
            if comes { populated_bytes(call) } else { 0 }
        }
        libc::SYS_madvise if args::populates(third) => {
            let range = pages_of(first, second);
            let mut bytes: u64 = 0;
            space.mappings().for_each_in(VirtAddr(range.start), VirtAddr(range.end), |mapping| {
                let flags = mapping.flags;
                let copies = third as i32 == libc::MADV_POPULATE_WRITE && !flags.contains(VmFlags::SHARED);
                if mapping.file.is_some_and(|file| !is_shared(file)) && !copies && !is_locked(flags) {
                    let (start, end) = (mapping.range.start().0, mapping.range.end().0);
                    bytes = bytes.saturating_add(end.min(range.end) - start.max(range.start));
                }
            });
            bytes
        }
        _ => 0,
    }
}

/// The private memory that `call` brings in, and how.
pub(super) fn brought_in(
    space: &HostSpace<'_>,
    call: &Call,
    program_break: u64,
) -> Vec<(Range<u64>, Advice)> {
    let [first, second, third, flags, ..] = call.args;
    let result = call.result as u64;
    let future = is_locked(space.locks_future());
    let is_new = |protection: u64, range: Range<u64>| {
        let may = |what: i32| protection & what as u64 != 0;
        let advice = if may(libc::PROT_WRITE) { Advice::PopulateWrite } else { Advice::PopulateRead };
        let comes_in = !range.is_empty() && (may(libc::PROT_WRITE) || may(libc::PROT_READ));
        comes_in.then_some((range, advice)).into_iter().collect()
    };
    match i64::from(call.number) {
        libc::SYS_mmap => {
            let has = |flag: i32| flags & flag as u64 != 0;
            let private = flags as i32 & libc::MAP_TYPE == libc::MAP_PRIVATE && !has(libc::MAP_HUGETLB);
            let zeros =
                has(libc::MAP_ANONYMOUS) || call.file().is_some_and(|file| file.kind == FileKind::Zero);
            let at_once = future || has(libc::MAP_LOCKED) || has(libc::MAP_POPULATE);
            if private && zeros && at_once { is_new(third, pages_of(result, second)) } else { Vec::new() }
        }
        libc::SYS_brk if future => {
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            is_new(protection, pages_of(program_break, result.saturating_sub(program_break)))
        }
        libc::SYS_mremap if space.figures().locked > 0 => {
            let (old, new) = (pages_of(first, second), pages_of(result, third));
            locked_in(space, &(new.start.saturating_add(old.end - old.start)..new.end))
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect if space.figures().locked > 0 => {
            locked_in(space, &pages_of(first, second))
        }
        libc::SYS_mlockall if first & libc::MCL_CURRENT as u64 != 0 => locked_in(space, &(0..u64::MAX)),
        _ => Vec::new(),
    }
}

/// Whether memory with these flags is locked, and was brought in for that.
pub(super) fn is_locked(flags: VmFlags) -> bool {
    flags.contains(VmFlags::LOCKED) && !flags.contains(VmFlags::LOCKONFAULT)
}

/// The locked private memory in `range` that may be accessed. Other mappings are not looked at: a call that
/// changes one page among many is followed by this.
fn locked_in(space: &HostSpace<'_>, range: &Range<u64>) -> Vec<(Range<u64>, Advice)> {
    let mut found = Vec::new();
    if range.is_empty() {
        return found;
    }
    space.mappings().for_each_in(VirtAddr(range.start), VirtAddr(range.end), |mapping| {
        looks_at(1);
        let addrs = mapping.range.start().0..mapping.range.end().0;
        let private = mapping.file.is_none() && !mapping.flags.contains(VmFlags::SHARED);
        if private && is_locked(mapping.flags) && mapping.flags.intersects(ACCESSIBLE) {
            let writes = mapping.flags.contains(VmFlags::WRITE);
            let advice = if writes { Advice::PopulateWrite } else { Advice::PopulateRead };
            found.push((addrs.start.max(range.start)..addrs.end.min(range.end), advice));
        }
    });
    found
}
