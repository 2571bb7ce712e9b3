//! Pages of files, made clean or unmapped wherever they are mapped.

use arrayvec::ArrayVec;
use core::fmt;
use core::ops::ControlFlow;
use quire_arch::{Entry, LeafFlags, Level, Pfn, Platform, VirtAddr, VirtRange};
use quire_file::{Cleaned, FileCore, FileUsers, IndexRange};
use quire_pagetable::{FlushCause, MemoryCore, Tables, Unmapper, WalkEntry, WalkStep, Walker, Zap};
use quire_vma::{Mapped, Rmap, SpaceCore, SpaceHold, Vma};

/// Bytes of a mapping that are unmapped under one pin: some page tables.
const AT_ONCE: u64 = 256 << 20;
/// Bytes of a mapping in which page tables are looked for under one pin: at most 64 tables of the level
/// above.
const SEARCHED: u64 = 64 << 30;
/// Spaces whose tables are freed at once.
const SPACES: usize = 8;

/// The mappings of the files of a machine, as the page cache needs them.
pub struct FileMappers<'s, P: Platform>(Rmap<'s, P>);

impl<'s, P: Platform> FileMappers<'s, P> {
    /// Those that `rmap` leads to.
    pub const fn new(rmap: Rmap<'s, P>) -> Self {
        Self(rmap)
    }
}

impl<P: Platform> FileUsers<P, Vma> for FileMappers<'_, P> {
    /// One flush for each mapping, unless its gather was full before. A munmap that has taken a mapping out
    /// of the tree, and not its pages out of the TLBs, is not waited for: the folio counts its maps until
    /// then.
    fn unmap(&self, file: &FileCore<P, Vma>, pages: IndexRange, private_too: bool) {
        if file.mappings().is_empty() {
            return;
        }
        let held = self.0.hold_file(file.mappings());
        let _ = held.walk_unpinned(pages, |mapped| -> ControlFlow<()> {
            let Mapped { tables, vma, range, .. } = *mapped;
            let mut unmapper = Unmapper::new(tables, FlushCause::Discard);
            let mut at = range.start();
            while at < range.end() {
                let part = |from: VirtAddr, bytes| {
                    VirtRange::new(from, VirtAddr(from.0.saturating_add(bytes)).min(range.end()))
                };
                // The tables may be freed meanwhile.
                let pin = tables.pin();
                let _epoch = tables.memory().frames().epoch().enter(&pin);
                let searched = part(at, SEARCHED);
                let Some(mapped) = first_mapped(tables, searched) else {
                    at = searched.end();
                    continue;
                };
                let zapped = part(mapped, AT_ONCE);
                unmapper.zap(zapped, Zap::Cached { copies: private_too, locked: vma.is_locked() });
                at = zapped.end();
            }
            unmapper.finish();
            ControlFlow::Continue(())
        });
    }

    fn clean(&self, file: &FileCore<P, Vma>, head: Pfn, pages: IndexRange) -> Cleaned {
        let frame = self.0.memory().frames().known(head);
        // Read first: a mapping that is in transit while the others are found counts still, and so does one
        // that goes after it was found. None comes while the folio is locked.
        let maps = frame.as_folio().maps();
        let mut found = 0;
        if maps > 0 {
            let held = self.0.hold_file(file.mappings());
            let _ = held.walk(pages, |mapped| -> ControlFlow<()> {
                found += clean_mapped(mapped, (head, pages.pages()));
                ControlFlow::Continue(())
            });
        }
        if found >= maps { Cleaned::All } else { Cleaned::InTransit }
    }

    /// With the handles of a few spaces at once: none may be dropped while the mappings are held.
    fn free_tables(&self, file: &FileCore<P, Vma>, block: IndexRange) {
        let mut passed = 0;
        loop {
            let mut emptied = ArrayVec::<(SpaceHold<'_>, VirtAddr), SPACES>::new();
            let mut nth = 0;
            {
                let held = self.0.hold_file(file.mappings());
                let _ = held.walk_unpinned(block, |mapped| -> ControlFlow<()> {
                    if emptied.is_full() {
                        return ControlFlow::Break(());
                    }
                    nth += 1;
                    if nth > passed && has_empty_table(mapped) {
                        // SAFETY: it is the core of a space of this machine, which is freed when it has no
                        // handle.
                        let hold = unsafe { SpaceHold::try_new(mapped.space, self.0.exits()) };
                        emptied.extend(hold.map(|hold| (hold, mapped.range.start())));
                    }
                    ControlFlow::Continue(())
                });
            }
            passed = nth;
            let is_last = !emptied.is_full();
            for (space, addr) in emptied {
                free_table(self.0.memory(), space.core(), addr);
            }
            if is_last {
                return;
            }
        }
    }
}

/// Whether a mapping has a whole block of pages where a large leaf could map them, but for a table that is
/// empty.
fn has_empty_table<P: Platform>(mapped: &Mapped<'_, P>) -> bool {
    let Mapped { tables, range, .. } = *mapped;
    if range != Tables::<P>::huge_range(range.start()) {
        return false;
    }
    let pin = tables.pin();
    let _epoch = tables.memory().frames().epoch().enter(&pin);
    tables.find(range.start()).is_some_and(|table| tables.lock(&pin, table, Level::PTE).is_empty())
}

/// Frees the table for `addr` if it is empty, unless another thread is changing mappings.
fn free_table<P: Platform>(memory: &MemoryCore<P>, core: &SpaceCore, addr: VirtAddr) {
    // No VMA is locked, so the lock's holder has no section of the lock sequence to end.
    let Some(_writer) = core.mmap_lock.try_write(memory.platform()) else { return };
    let mut unmapper = Unmapper::new(Tables::new(memory, &core.tables), FlushCause::Collapse);
    unmapper.free_for_leaf(addr);
    unmapper.finish();
}

/// Where the first page table begins that covers part of `range`, or a leaf in the place of one. A mapping
/// may be far larger than what it maps.
fn first_mapped<P: Platform>(tables: Tables<'_, P>, range: VirtRange) -> Option<VirtAddr> {
    let mut first = None;
    Walker::new(&tables).walk(range, &mut |_, part| {
        first = Some(part.start());
        WalkStep::Stop
    });
    first
}

/// Makes the entries for the folio of so many pages at `head` in one mapping clean and read-only, and returns
/// how many pages of it they map.
fn clean_mapped<P: Platform>(mapped: &Mapped<'_, P>, (head, pages): (Pfn, u64)) -> u32 {
    let Mapped { tables, range, .. } = *mapped;
    let mut found = 0;
    // Both at once, before the flush: after it no TLB has either, and no CPU marks the leaf as written.
    let written = LeafFlags::WRITE | LeafFlags::DIRTY;
    Walker::new(&tables).walk(range, &mut |place, part| {
        let pin = tables.pin();
        let mut was_written = false;
        match place {
            WalkEntry::Table(table) => {
                let locked = tables.lock(&pin, table, Level::PTE);
                for (at, _) in Tables::<P>::pages(part) {
                    if let Entry::Leaf(leaf) = locked.get(at)
                        && leaf.pfn.0.wrapping_sub(head.0) < pages
                        && !leaf.flags.contains(LeafFlags::SPECIAL)
                    {
                        found += 1;
                        if leaf.flags.intersects(written) {
                            was_written = true;
                            locked.unmark(at, written);
                        }
                    }
                }
                if was_written {
                    tables.space().flush(tables.memory().frames(), &pin, part, FlushCause::Protect);
                }
            }
            WalkEntry::Huge(slot) => {
                let locked = tables.lock_slot(&pin, slot);
                if let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot).filter(|leaf| leaf.pfn == head) {
                    found += Tables::<P>::huge_pages();
                    if leaf.flags.intersects(written) {
                        locked.unmark(slot.index, written);
                        let range = tables.slot_range(slot);
                        tables.space().flush(tables.memory().frames(), &pin, range, FlushCause::Protect);
                    }
                }
            }
        }
        WalkStep::Next
    });
    found
}

impl<P: Platform> fmt::Debug for FileMappers<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMappers").finish_non_exhaustive()
    }
}
