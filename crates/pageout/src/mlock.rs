//! Mlocked pages: they are on the unevictable list, which reclaim does not scan.
//!
//! This only maintains the lists. That a locked page stays in memory does not depend on it: reclaim checks
//! the mappings of a folio before it takes it, and finds the lock there. A folio is marked once, however many
//! mappings lock it. Removing it from one of them clears the mark, as in Linux. If another still locks it
//! reclaim sets the mark again when it scans the folio; a stale mark would never be found.

use quire_arch::{Entry, LeafFlags, Level, PagingFormat, Pin, Platform, VirtRange};
use quire_file::KeptFolio;
use quire_frame::HeadGuard;
use quire_memcg::UnevictableFolios;
use quire_pagetable::{LockedTable, Tables, WalkEntry, WalkStep, Walker};
use quire_sync::atomic::raw::Ordering;

/// Puts the private folios that lie in `range` on the unevictable list, or back on an evictable one. As
/// in Linux, what lies in it only in part is not locked, but unlocked: its mapping may have been split
/// since.
pub fn set_mlocked<P: Platform>(tables: &Tables<'_, P>, range: VirtRange, locks: bool) {
    if !tables.memory().memcgs().folios().lists_anonymous() {
        return;
    }
    Walker::new(tables).walk(range, &mut |place, part| {
        let pin = tables.pin();
        match place {
            WalkEntry::Huge(slot) if locks && part != tables.slot_range(slot) => {}
            WalkEntry::Huge(slot) => {
                let locked = tables.lock_slot(&pin, slot);
                if let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot)
                    && !leaf.flags.contains(LeafFlags::SPECIAL)
                {
                    set_one(tables, &pin, &tables.memory().frames().folios().lock_head(leaf.pfn), locks);
                }
            }
            WalkEntry::Table(table) => {
                let locked = tables.lock(&pin, table, Level::PTE);
                set_mlocked_in(tables, &pin, &locked, part, locks);
            }
        }
        WalkStep::Next
    });
}

fn set_mlocked_in<P: Platform>(
    tables: &Tables<'_, P>,
    pin: &Pin<'_, P>,
    locked: &LockedTable<'_, P>,
    part: VirtRange,
    locks: bool,
) {
    let mut index = P::Paging::index(part.start(), Level::PTE);
    let end = index + part.pages() as usize;
    while index < end && !locked.is_empty() {
        let raw = locked.entries[index].load(Ordering::Relaxed);
        let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PTE) else {
            index += 1;
            continue;
        };
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            index += 1;
            continue;
        }
        let folio = tables.memory().frames().folios().lock_head(leaf.pfn);
        let end = if leaf.flags.contains(LeafFlags::READ) { end } else { index + 1 };
        let pages = tables.run_length(locked.entries, (index, end), (raw, leaf.pfn), &folio);
        if !locks || pages as u64 == folio.folio().order().pages() {
            set_one(tables, pin, &folio, locks);
        }
        index += pages;
    }
}

/// Marks a folio that is mapped by a table whose lock the caller holds.
fn set_one<P: Platform>(tables: &Tables<'_, P>, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>, locks: bool) {
    // SAFETY: it is mapped, by a table that is locked.
    let stays = || unsafe { KeptFolio::<P>::stays(tables.memory().frames(), folio.folio().head()) };
    UnevictableFolios::of(tables.memory().memcgs().folios()).set_mlocked(pin, folio, locks, stays);
}
