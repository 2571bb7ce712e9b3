//! Where khugepaged goes on.

use quire_arch::VirtAddr;
use quire_pagetable::SpaceId;

/// Where the next step goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// The space, if any was being looked at, and the address in it.
    pub(crate) at: Option<(SpaceId, VirtAddr)>,
    pub(crate) full_scans: u64,
    pub(crate) collapsed: u64,
}
