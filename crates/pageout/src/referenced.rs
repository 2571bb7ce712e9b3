//! Reclaim's check of a folio's mappings: whether it was referenced, and whether a program mlocked it.

use core::ops::ControlFlow;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtRange};
use quire_frame::{FolioGuard, FrameFlags};
use quire_pagetable::{Tables, WalkEntry, WalkStep, Walker};
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_vma::{Mapped, Rmap};

/// The result of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Referenced {
    /// Mappings through which it was referenced since the last check.
    pub mappings: u32,
    /// Whether a program mlocked it.
    pub lock: LockFound,
}

/// Whether the mappings of a folio are mlocked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum LockFound {
    /// None is.
    #[default]
    None,
    /// Those of some of its pages are. It stays in memory, and is not marked as mlocked: its other pages may
    /// be reclaimed once it is split.
    Part,
    /// One of all of it is.
    Whole,
}

/// Checks all mappings of the folio at `head` for references, and clears their accessed bits. `None` if they
/// cannot be checked now. The caller has a reference, and perhaps the folio `lock`. Without it, a folio of
/// shared memory is locked here if that is possible at once: otherwise its file may end meanwhile. One that
/// becomes shared memory meanwhile is checked as private memory: nothing maps it.
pub fn referenced<P: Platform>(
    rmap: Rmap<'_, P>,
    head: Pfn,
    lock: Option<&FolioGuard<'_, P>>,
) -> Option<Referenced> {
    let frames = rmap.memory().frames();
    let is_locked = lock.is_some_and(|lock| lock.is_of(frames, head));
    let mut own_lock = None;
    if !is_locked && frames.known(head).kind().is_of_file() {
        own_lock = Some(frames.folios().try_lock_folio(head)?);
    }
    let mut found = Referenced::default();
    let order = frames.folio(head).order();
    let visit = |mapped: &Mapped<'_, P>| {
        let Mapped { tables, vma, range, .. } = *mapped;
        // An mlocked mapping may now lie where another one was before its pages were moved away.
        if vma.is_locked() {
            let pages = Walker::new(&tables).count_mapped(range, (head, order), order.pages());
            if pages == order.pages() {
                found.lock = LockFound::Whole;
                return ControlFlow::Break(());
            }
            if pages > 0 {
                found.lock = LockFound::Part;
            }
        }
        found.mappings += u32::from(test_and_clear_accessed(&tables, range, (head, order)));
        ControlFlow::Continue(())
    };
    let walked = if is_locked || own_lock.is_some() {
        // SAFETY: the folio is locked, by the caller or here, until after the walk; the caller has a
        // reference.
        unsafe { rmap.try_walk_locked::<()>(head, visit) }
    } else {
        rmap.try_hold(head, |mappings| mappings.walk(visit))
    };
    if own_lock.take().is_some() && frames.known(head).word().flags().contains(FrameFlags::SWAP_CACHE) {
        // A thread that took its name away meanwhile found it locked.
        let memory = rmap.memory();
        if memory.swap().cache().leave_if_unnamed(head) {
            memory.memcgs().splits().left_swap_cache(head);
        }
    }
    walked.map(|_| found)
}

/// Whether pages of the folio at `head` were accessed through the entries of `range`; the accessed bits are
/// cleared. Lock-free: an entry is changed only if it still is what was read. TLBs are not flushed: a page
/// accessed only through a cached translation looks unused, as in Linux.
fn test_and_clear_accessed<P: Platform>(
    tables: &Tables<'_, P>,
    range: VirtRange,
    (head, order): (Pfn, Order),
) -> bool {
    let mut used = false;
    Walker::new(tables).walk(range, &mut |place, part| {
        let (table, level, first, entries) = match place {
            WalkEntry::Table(table) => {
                (table, Level::PTE, P::Paging::index(part.start(), Level::PTE), part.pages() as usize)
            }
            WalkEntry::Huge(slot) => (slot.table, Level::PMD, slot.index, 1),
        };
        for entry in &tables.entries(table)[first..first + entries] {
            used |= clear_accessed::<P>(entry, level, (head, order));
        }
        WalkStep::Next
    });
    used
}

/// Clears the accessed bit of one entry, if it maps a page of the folio, and returns whether it was set.
fn clear_accessed<P: Platform>(entry: &AtomicU64, level: Level, (head, order): (Pfn, Order)) -> bool {
    let mut raw = entry.load(Ordering::Relaxed);
    loop {
        let maps = match P::Paging::decode(raw, level) {
            Entry::Leaf(Leaf { pfn, flags }) => {
                let usable = flags & (LeafFlags::READ | LeafFlags::SPECIAL) == LeafFlags::READ;
                usable && pfn.0.wrapping_sub(head.0) < order.pages()
            }
            _ => false,
        };
        if !maps || raw & P::Paging::ACCESSED == 0 {
            return false;
        }
        let cleared = raw & !P::Paging::ACCESSED;
        match entry.compare_exchange(raw, cleared, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => raw = now,
        }
    }
}
