//! Guard pages: entries that refuse every access.
//!
//! A guard is a marker in the table. In a shared mapping of a file that is only a number, whose pages exist
//! only in the tables, it is the leaf itself with [`LeafFlags::GUARD`]: the page is kept and comes back when
//! the guard goes. Either is a live entry, so its table stays, and no leaf of the PMD's order can be mapped
//! around it.

use crate::attributes::Permissions;
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::table::{Found, LockedTable, Tables, page_of};
use crate::unmap::{Unmapper, Zap};
use crate::walk::{WalkEntry, WalkStep, Walker};
use quire_arch::paging::PteMarker;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Platform, VirtRange};
use quire_frame::AllocError;
use quire_sync::atomic::raw::Ordering;

const GUARD: Entry = Entry::Marker(PteMarker::Guard);

quire_arch::part_of! {
    /// The guard pages of a space.
    pub struct Guards { pub tables: Tables<'w> }
}

impl<P: Platform> Guards<'_, P> {
    /// Makes every bottom table for `range`, except where a large leaf of anonymous memory is in its place;
    /// one of a file's cache is taken out, as a split would leave no table. After this
    /// [`install_guards`](Self::install_guards) cannot fail. On failure those that were made stay, empty.
    /// Fails where `goes_on` says so: a range may need more tables than there is memory. The VMA is
    /// write-locked, so no fault maps anything.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn make_bottoms(self, range: VirtRange, goes_on: impl Fn() -> bool) -> Result<(), AllocError> {
        let mut at = range.start();
        while at < range.end() {
            if !goes_on() {
                return Err(AllocError::OutOfMemory);
            }
            if let Found::Huge(slot) = self.tables.lookup(at)
                && self.is_of_file(slot)
            {
                HugeLeaves::new(self.tables).split_huge(slot);
            }
            self.tables.find_or_make(&self.tables.pin(), at)?;
            at = P::Paging::table_range(at, Level::PTE).end();
        }
        Ok(())
    }

    fn is_of_file(self, slot: HugeSlot) -> bool {
        let pin = self.tables.pin();
        let leaf = Tables::<P>::huge_leaf(&self.tables.lock_slot(&pin, slot), slot);
        leaf.is_some_and(|leaf| self.tables.maps_cached(leaf))
    }

    /// Puts guards in place of all pages of `range`, which go to `unmapper`; pages of shared memory are kept
    /// behind them. The tables were [made](Self::make_bottoms), and the VMA was write-locked before, so no
    /// fault can come.
    pub fn install_guards(self, range: VirtRange, shared: bool, unmapper: &mut Unmapper<'_, P>) {
        Walker::new(self.tables).walk(range, &mut |place, part| match place {
            WalkEntry::Table(table) => {
                if !shared {
                    unmapper.zap_in_table(table, part, Zap::Contents);
                }
                self.guard_table(table, part, shared, unmapper);
                WalkStep::Next
            }
            WalkEntry::Huge(slot) if part != self.tables.slot_range(slot) => WalkStep::Split,
            WalkEntry::Huge(slot) => {
                if unmapper.gather.is_full() {
                    unmapper.gather.relieve();
                }
                if self.guard_huge(slot, unmapper) { WalkStep::Next } else { WalkStep::Again }
            }
        });
        unmapper.gather.add_paged_out(range);
    }

    /// Puts guards into the empty entries of one table, and in front of the pages of shared memory.
    fn guard_table(self, table: Pfn, part: VirtRange, shared: bool, unmapper: &mut Unmapper<'_, P>) {
        let pin = self.tables.pin();
        let locked = self.tables.lock(&pin, table, Level::PTE);
        for (index, addr) in Tables::<P>::pages(part) {
            match locked.get(index) {
                Entry::None => locked.install(index, GUARD),
                Entry::Leaf(leaf) if shared => {
                    if hide(&locked, index, leaf) {
                        unmapper.gather.add_stale(page_of(addr));
                    }
                }
                entry => debug_assert_eq!(entry, GUARD, "a page came while its guard was installed"),
            }
        }
    }

    /// Puts the table that was deposited for the leaf at `slot` in its place, full of guards. Nothing is
    /// allocated. Returns false if there is no leaf any more.
    fn guard_huge(self, slot: HugeSlot, unmapper: &mut Unmapper<'_, P>) -> bool {
        let pin = self.tables.pin();
        let locked = self.tables.lock_slot(&pin, slot);
        let Some(table) = unmapper.take_huge(&pin, &locked, slot, Zap::Contents) else { return false };
        let raw = P::Paging::encode(GUARD, Level::PTE);
        for entry in &self.tables.entries(table)[..P::Paging::entries(Level::PTE)] {
            entry.store(raw, Ordering::Relaxed);
        }
        self.tables.memory().frames().known(table).as_table().set_live(Tables::<P>::huge_pages());
        locked.install(slot.index, Entry::Table(table));
        true
    }

    /// Takes the guards in `range` away. Pages of shared memory that were behind them are mapped with
    /// `permissions` again. Faults may come.
    pub fn remove_guards(self, range: VirtRange, permissions: Permissions) {
        Walker::new(self.tables).walk(range, &mut |place, part| {
            let WalkEntry::Table(table) = place else { return WalkStep::Next };
            let pin = self.tables.pin();
            let locked = self.tables.lock(&pin, table, Level::PTE);
            for (index, _) in Tables::<P>::pages(part) {
                match locked.get(index) {
                    GUARD => {
                        locked.take(index);
                    }
                    Entry::Leaf(Leaf { pfn, flags }) if flags.contains(LeafFlags::GUARD) => {
                        let flags = (flags - LeafFlags::GUARD) | permissions.leaf;
                        locked.replace(index, Entry::Leaf(Leaf { pfn, flags }));
                    }
                    _ => {}
                }
            }
            WalkStep::Next
        });
    }
}

/// Puts a guard in front of the page that `leaf`, the entry `index`, maps, and returns whether the MMU could
/// use the entry.
fn hide<P: Platform>(locked: &LockedTable<'_, P>, index: usize, leaf: Leaf) -> bool {
    let access = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
    let hidden = |leaf: Leaf| Entry::Leaf(Leaf { flags: (leaf.flags - access) | LeafFlags::GUARD, ..leaf });
    // The MMU may have set accessed and dirty since the entry was read. Once it is absent it sets nothing.
    match locked.replace(index, hidden(leaf)) {
        Entry::Leaf(last) if last != leaf => {
            locked.replace(index, hidden(last));
        }
        _ => {}
    }
    leaf.flags.contains(LeafFlags::READ)
}
