//! khugepaged's scan of all spaces: whether it is running, and where it continues.

use super::Spaces;
use core::ptr::NonNull;
use quire_arch::{Platform, VirtAddr};
use quire_vma::SpaceCore;

/// What is known of the scan. Its place is kept in the list of spaces, where a space that exits hands it on
/// to the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    /// A step is under way.
    pub(crate) running: bool,
    /// A round over the list has begun and not ended.
    pub(crate) in_round: bool,
    pub(crate) full_scans: u64,
    pub(crate) collapsed: u64,
}

impl<P: Platform> Spaces<P> {
    /// The space where the scan continues, with a handle more, and the address in it. `None` at the end of a
    /// round.
    pub(crate) fn hold_scanned(&self) -> Option<(NonNull<SpaceCore>, VirtAddr)> {
        let _pin = self.platform().pin();
        self.list.lock().hold_scanned()
    }

    /// The scan continues at an address in a space that has a handle, or has come to the end of the list.
    pub(crate) fn set_scanned(&self, at: Option<(NonNull<SpaceCore>, VirtAddr)>) {
        let _pin = self.platform().pin();
        self.list.lock().scan = at;
    }
}
