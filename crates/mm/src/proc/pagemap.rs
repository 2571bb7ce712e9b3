//! `/proc/PID/pagemap`.

use quire_space::PageState;

/// Bits of an entry: what kind of page it is.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE: u64 = 1 << 61;
const GUARD_REGION: u64 = 1 << 58;
/// What Linux gives the entry of a guard in place of a device and a slot: the type of markers, and its
/// number.
const GUARD_MARKER: u64 = 4 << SLOT_SHIFT | 31;
/// Where the slot begins, above the number of the device.
const SLOT_SHIFT: u32 = 5;

/// The word of `/proc/PID/pagemap` for a page in this state, as a program without privileges sees it: without
/// the number of the frame. Not reported: whether it is mapped exclusively, soft-dirty, or write-protected. A
/// page without a state has 0.
pub fn pagemap_entry(state: PageState) -> u64 {
    match state {
        PageState::Zero | PageState::Anonymous => PRESENT,
        PageState::File => PRESENT | FILE,
        PageState::Swapped { device, slot } => SWAPPED | slot << SLOT_SHIFT | device.index() as u64,
        PageState::Guard => SWAPPED | GUARD_REGION | GUARD_MARKER,
    }
}
