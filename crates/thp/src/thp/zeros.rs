//! Zero-filled pages of a large folio that was split: the shared zero page replaces them, as in Linux.
//!
//! A program gets 2 MiB and writes to a few pages of it. After the split, the pages never written to cost no
//! memory.

use super::Thp;
use core::ops::ControlFlow;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtRange};
use quire_frame::{FrameChain, FrameFlags, Kind, MapsLeft};
use quire_pagetable::{FlushCause, MemoryCore, Residency, WalkEntry, WalkStep, Walker, pages_from};
use quire_sync::atomic::fence;
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_vma::{HeldMappings, Mapped};

/// Entries of one table.
const ENTRIES: usize = 512;

impl<P: Platform> Thp<'_, P> {
    /// Maps the shared page in place of the zero-filled pages, of all that the folio of `order` at `head` had
    /// before it was split just now. What is not mapped any more enters `unmapped`. `mappings` are those of
    /// the folio; the caller has its folio lock and a reference, and no lock of a table.
    pub(super) fn share_zeros(
        self,
        mappings: &HeldMappings<'_, P>,
        (head, order): (Pfn, Order),
        unmapped: &mut FrameChain,
    ) {
        let _ = mappings.walk_pages(order.pages(), |mapped| -> ControlFlow<()> {
            // Mlocked memory is left as it is.
            if !mapped.vma.is_locked() {
                Walker::new(&mapped.tables).walk(mapped.range, &mut |place, part| {
                    if let WalkEntry::Table(table) = place {
                        share_in_table(mapped, (table, part), (head, order), unmapped);
                    }
                    WalkStep::Next
                });
            }
            ControlFlow::Continue(())
        });
    }
}

/// Shares the zero-filled pages that the entries of one table map.
fn share_in_table<P: Platform>(
    mapped: &Mapped<'_, P>,
    (table, part): (Pfn, VirtRange),
    folio: (Pfn, Order),
    unmapped: &mut FrameChain,
) {
    let Mapped { tables, vma, .. } = *mapped;
    let memory = tables.memory();
    let pin = tables.pin();
    let locked = tables.lock(&pin, table, Level::PTE);
    if locked.is_empty() || locked.is_dead() {
        return;
    }
    let first = P::Paging::index(part.start(), Level::PTE);
    let entries = &locked.entries[first..first + part.pages() as usize];
    // First they are made not present, then comes one flush, then the deciding check: no thread can be
    // writing then. A faulting thread waits for the lock of the table.
    let (mut chosen, mut opened) = ([0_u64; ENTRIES / 64], [0_u64; ENTRIES / 64]);
    let mut stale: Option<(usize, usize)> = None;
    for (nth, entry) in entries.iter().enumerate() {
        if page_at::<P>(entry, folio).is_some_and(|page| memory.frames().is_zero(page, Order::ZERO)) {
            chosen[nth / 64] |= 1 << (nth % 64);
            opened[nth / 64] |= u64::from(make_entry_absent::<P>(entry)) << (nth % 64);
            stale = Some((stale.map_or(nth, |(first, _)| first), nth + 1));
        }
    }
    let Some((from, to)) = stale else { return };
    // Pairs with the fence of a fast pin, between its reference and its second read of the entry.
    fence(Ordering::SeqCst);
    let range = pages_from(pages_from(part.start(), from).end(), to - from);
    tables.space().flush(memory.frames(), &pin, range, FlushCause::Split);
    let flags = (vma.leaf_flags() - LeafFlags::WRITE) | LeafFlags::SPECIAL;
    let zeros = P::Paging::encode(Entry::Leaf(Leaf { pfn: memory.zero_page(), flags }), Level::PTE);
    let mut gone = 0;
    for (nth, entry) in entries.iter().enumerate() {
        let is_in = |set: &[u64]| set[nth / 64] & 1 << (nth % 64) != 0;
        let Some(page) = page_at::<P>(entry, folio).filter(|_| is_in(&chosen)) else { continue };
        if is_to_be_shared(memory, page) {
            entry.store(zeros, Ordering::Release);
            gone += 1;
            unmap_zeros(memory, page, unmapped);
        } else if is_in(&opened) {
            locked.widen(first + nth, LeafFlags::READ);
        }
    }
    tables.space().residency.pages_unmapped(Residency::of(Kind::Anonymous, gone));
}

/// Whether the shared page can replace a page that no MMU can reach through the entry in question.
fn is_to_be_shared<P: Platform>(memory: &MemoryCore<P>, page: Pfn) -> bool {
    let folio = memory.frames().folio(page);
    let locked = folio.frame().word().flags().contains(FrameFlags::MLOCKED);
    let single = folio.kind() == Kind::Anonymous && !folio.is_large();
    single && !locked && !folio.may_be_pinned() && memory.frames().is_zero(page, Order::ZERO)
}

/// An entry no longer maps a page.
fn unmap_zeros<P: Platform>(memory: &MemoryCore<P>, page: Pfn, unmapped: &mut FrameChain) {
    let left = memory.frames().folios().lock_head(page).remove_maps(1);
    if left == MapsLeft::None {
        // The mappings' reference.
        memory.memcgs().folios().put_folio(unmapped, page, Order::ZERO);
    }
}

/// The page that an entry maps, if it is one that the folio had.
fn page_at<P: Platform>(entry: &AtomicU64, (head, order): (Pfn, Order)) -> Option<Pfn> {
    match P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE) {
        Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
            (pfn.0.wrapping_sub(head.0) < order.pages()).then_some(pfn)
        }
        _ => None,
    }
}

/// Makes a leaf unusable for the MMU, keeping all else. Returns false if it was so before.
fn make_entry_absent<P: Platform>(entry: &AtomicU64) -> bool {
    let mut raw = entry.load(Ordering::Relaxed);
    // The MMU may be setting accessed and dirty, which are kept.
    while let Entry::Leaf(Leaf { pfn, flags }) = P::Paging::decode(raw, Level::PTE) {
        if !flags.contains(LeafFlags::READ) {
            return false;
        }
        let absent = P::Paging::encode(Entry::Leaf(Leaf { pfn, flags: flags - LeafFlags::READ }), Level::PTE);
        match entry.compare_exchange(raw, absent, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => raw = now,
        }
    }
    false
}
