//! Where khugepaged continues.

use quire_arch::VirtAddr;
use quire_pagetable::SpaceId;

/// Where the next step continues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// The space, if a scan was in progress, and the address in it.
    pub(crate) at: Option<(SpaceId, VirtAddr)>,
    pub(crate) full_scans: u64,
    pub(crate) collapsed: u64,
}
