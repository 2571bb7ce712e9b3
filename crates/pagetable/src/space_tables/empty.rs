//! Empty tables that are kept for reuse.

use quire_arch::paging::MAX_LEVELS;
use quire_arch::{Level, VirtAddr};
use quire_sync::atomic::AtomicU64;
use quire_sync::atomic::raw::Ordering;

/// The tables of a space that were emptied last, the latest of each level first: by the first address that
/// each is responsible for, so that it does not matter if it was freed otherwise. Read and written under the
/// mmap lock held for writing.
#[derive(Debug, Default)]
pub(crate) struct EmptyTableCache([[AtomicU64; 2]; MAX_LEVELS]);

impl EmptyTableCache {
    /// Adds the table at `level` that is responsible for `addr` and what comes after it. Returns the one that
    /// it displaces.
    pub(crate) fn push(&self, level: Level, addr: VirtAddr) -> Option<VirtAddr> {
        let [latest, older] = &self.0[usize::from(level.0)];
        // Addresses of tables are page aligned: one more says that there is one.
        let noted = addr.0 | 1;
        let before = latest.load(Ordering::Relaxed);
        if before == noted {
            return None;
        }
        latest.store(noted, Ordering::Relaxed);
        let last = if level == Level::PTE {
            let last = older.load(Ordering::Relaxed);
            older.store(before, Ordering::Relaxed);
            last
        } else {
            before
        };
        (last != 0 && last != noted).then_some(VirtAddr(last & !1))
    }

    /// Removes a table at `level` whose address is `wanted`, and returns the address.
    #[inline]
    pub(crate) fn take(&self, level: Level, wanted: impl Fn(VirtAddr) -> bool) -> Option<VirtAddr> {
        self.0[usize::from(level.0)].iter().find_map(|slot| {
            let noted = slot.load(Ordering::Relaxed);
            let found = noted != 0 && wanted(VirtAddr(noted & !1));
            found.then(|| {
                slot.store(0, Ordering::Relaxed);
                VirtAddr(noted & !1)
            })
        })
    }
}
