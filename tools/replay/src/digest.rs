//! A digest of the contents of an address space.

use super::contents::PAGE_BYTES;
use crate::space::HostSpace;
use quire_arch::{PAGE_SIZE, Platform, VirtAddr};
use quire_host::{AccessError, Vcpu};
use quire_mm::space::{FaultError, PageState, Protection, VmFlags};
use quire_trace::mix::mix;

/// A page could not be read, so the space has no digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unreadable {
    /// Where.
    pub(super) addr: VirtAddr,
    /// The error that the program would have got.
    pub(super) error: AccessError<FaultError>,
}

/// Reads all anonymous pages of a space that its program no longer uses. Pages of zeros are ignored: they
/// may as well be absent.
pub(super) fn of(vcpu: &Vcpu, space: &HostSpace<'_>) -> Result<u64, Unreadable> {
    vcpu.run(|| space.activate(&space.spaces().platform().pin()));
    let digest = read_all(vcpu, space);
    vcpu.run(|| space.spaces().deactivate(&space.spaces().platform().pin()));
    digest
}

fn read_all(vcpu: &Vcpu, space: &HostSpace<'_>) -> Result<u64, Unreadable> {
    let mut ranges = Vec::new();
    space.mappings().for_each(|mapping| ranges.push((mapping.range, mapping.flags)));
    let program = vcpu.program(space);
    let mut bytes = Box::new([0; PAGE_BYTES]);
    let mut digest = 0;
    for (range, flags) in ranges {
        let mut pages = Vec::new();
        space.mappings().pagemap(range, |found, state| {
            if matches!(state, PageState::Anonymous | PageState::Swapped { .. }) {
                pages.push(found);
            }
        });
        if !pages.is_empty() && !flags.contains(VmFlags::READ) {
            // The protection is not needed. If it stays, the read says so.
            let _ = vcpu.run(|| space.mprotect(range.start(), range.len(), Protection::READ, false));
        }
        for page in
            pages.iter().flat_map(|range| (range.start().0..range.end().0).step_by(PAGE_SIZE as usize))
        {
            let addr = VirtAddr(page);
            program.read(addr, &mut bytes[..]).map_err(|error| Unreadable { addr, error })?;
            if bytes.iter().any(|&byte| byte != 0) {
                let words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
                digest = words.fold(mix(digest ^ page), |digest, word| mix(digest ^ word));
            }
        }
    }
    Ok(digest)
}
