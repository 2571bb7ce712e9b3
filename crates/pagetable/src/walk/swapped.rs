//! Finding swapped-out pages.

use super::{WalkEntry, WalkStep, Walker};
use crate::table::Tables;
use quire_arch::{Entry, Level, PAGE_SIZE, PagingFormat, Platform, SwapEntry, VirtAddr, VirtRange};

/// A run of swap entries: consecutive pages that name consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwappedRun {
    /// The first page.
    pub addr: VirtAddr,
    /// Its entry.
    pub entry: SwapEntry,
    /// How many there are.
    pub pages: u64,
}

impl SwappedRun {
    /// The `nth` page of it.
    pub fn page(&self, nth: u64) -> VirtAddr {
        VirtAddr(self.addr.0 + nth * PAGE_SIZE)
    }
}

impl<P: Platform> Walker<'_, P> {
    /// The first run of swapped-out pages in `range`.
    pub fn first_swapped(self, range: VirtRange) -> Option<SwappedRun> {
        let mut found = None;
        self.walk(range, &mut |place, part| {
            let WalkEntry::Table(table) = place else { return WalkStep::Next };
            let pin = self.tables.pin();
            let locked = self.tables.lock(&pin, table, Level::PTE);
            let end = P::Paging::index(part.start(), Level::PTE) + part.pages() as usize;
            found = Tables::<P>::pages(part).find_map(|(index, addr)| match locked.get(index) {
                Entry::Swap(entry) => {
                    let pages = Tables::<P>::swap_run(locked.entries, (index, end), entry) as u64;
                    Some(SwappedRun { addr, entry, pages })
                }
                _ => None,
            });
            if found.is_some() { WalkStep::Stop } else { WalkStep::Next }
        });
        found
    }
}
