//! Taking pages out of the tables.

use super::Tables;
use crate::gather::Gather;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_frame::Kind;

/// Pages of each kind, as `/proc/PID/status` tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residency {
    pub(crate) anonymous: u64,
    pub(crate) file: u64,
}

impl Residency {
    #[inline]
    pub(crate) fn add(&mut self, kind: Kind) {
        match kind {
            Kind::Anonymous => self.anonymous += 1,
            _ => self.file += 1,
        }
    }

    pub(crate) fn remove(&mut self, kind: Kind) {
        match kind {
            Kind::Anonymous => self.anonymous -= 1,
            _ => self.file -= 1,
        }
    }

    fn is_zero(self) -> bool {
        self == Self::default()
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Empties every entry in `range` into `gather`. Nothing is allocated and nothing fails.
    ///
    /// Tables stay hooked even if they are empty afterwards; see [`free_hole`](Self::free_hole). Markers go too
    /// unless `keep_markers`, since guard pages outlive the advice that drops contents.
    pub(crate) fn zap(&self, range: VirtRange, keep_markers: bool, gather: &mut Gather<'_, P>) {
        let frames = self.spaces.frames();
        let mut gone = Residency::default();
        self.for_each_table(range, &mut |table, part| {
            let pin = self.pin();
            let locked = self.lock(&pin, table, Level::PTE);
            if locked.is_empty() {
                return;
            }
            let mut first = None;
            let mut last = part.start();
            for (index, addr) in Self::pages(part) {
                match locked.get(index) {
                    Entry::None => continue,
                    Entry::Marker(_) if keep_markers => continue,
                    _ => {}
                }
                // The exchange tells what the entry was at the moment it went, with the MMU's last bits in it.
                if let Entry::Leaf(Leaf { pfn, flags }) = locked.take(index) {
                    if flags.contains(LeafFlags::READ) {
                        first.get_or_insert(addr);
                        last = addr;
                    }
                    if !flags.contains(LeafFlags::SPECIAL) {
                        gone.add(frames.known(pfn).kind());
                        gather.add_frame(pfn);
                    }
                }
            }
            if let Some(first) = first {
                gather.add_stale(VirtRange::new(first, VirtAddr(last.0 + PAGE_SIZE)));
            }
        });
        if !gone.is_zero() {
            self.core.usage.pages_unmapped(gone);
        }
    }
}
