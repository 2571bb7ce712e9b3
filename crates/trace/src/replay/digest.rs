//! What an address space holds, in one number.

use super::contents::{PAGE_BYTES, mix};
use quire_arch::{PAGE_SIZE, Platform, VirtAddr};
use quire_host::{HostPlatform, Vcpu};
use quire_mm::{PageState, Protection, Space, VmFlags};

/// Reads all anonymous pages of a space whose program is done with it. A page of zeros does not matter: it may as well
/// not be there.
pub(super) fn of(vcpu: &Vcpu, space: &Space<'_, HostPlatform>) -> u64 {
    let mut ranges = Vec::new();
    space.for_each_mapping(|mapping| ranges.push((mapping.range, mapping.flags)));
    vcpu.run(|| space.activate(&space.spaces().platform().pin()));
    let program = vcpu.program(space);
    let mut bytes = Box::new([0; PAGE_BYTES]);
    let mut digest = 0;
    for (range, flags) in ranges {
        let mut pages = Vec::new();
        space.pagemap(range, |found, state| {
            if matches!(state, PageState::Anonymous | PageState::Swapped { .. }) {
                pages.push(found);
            }
        });
        if !pages.is_empty() && !flags.contains(VmFlags::READ) {
            // Nobody will miss the protection. What cannot be read even so is left out.
            let _ = vcpu.run(|| space.mprotect(range.start(), range.len(), Protection::READ, false));
        }
        for page in
            pages.iter().flat_map(|range| (range.start().0..range.end().0).step_by(PAGE_SIZE as usize))
        {
            let read = program.read(VirtAddr(page), &mut bytes[..]);
            if read.is_ok() && bytes.iter().any(|&byte| byte != 0) {
                let words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
                digest = words.fold(mix(digest ^ page), |digest, word| mix(digest ^ word));
            }
        }
    }
    vcpu.run(|| space.spaces().deactivate(&space.spaces().platform().pin()));
    digest
}
