//! Private pages that are exclusive to one process: those that an entry lets it write without a fault, and
//! those of folios that carry the exclusive mark. No other process may map them. And folios that are marked
//! as mlocked: a locked VMA maps them.
//!
//! The audit words serve a second time here. That of a page says whether it was met, and whether by an entry
//! that allows writes; that of a folio's first page also whether a locked mapping has the folio, and by which
//! space an exclusive one was met.

use super::{Report, SpaceViolation};
use crate::space::for_each_space;
use crate::spaces::Spaces;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtAddr};
use quire_file::KeptFolio;
use quire_frame::{FrameFlags, Kind};
use quire_pagetable::Tables;
use quire_vma::Mappings;
use quire_vma::VmFlags;

/// An entry maps the page.
const MAPPED: u32 = 1;

/// One of them allows writes.
const WRITABLE: u32 = 2;

/// A locked mapping has a page of the folio.
const LOCKED: u32 = 4;

/// Where the number of the space starts that maps an exclusive folio.
const SPACE_SHIFT: u32 = 3;

/// Looks for private pages that are not as exclusive as an entry or a mark says. The audit words are
/// scratch.
pub(super) fn audit_sharing<P: Platform>(spaces: &Spaces<P>, report: Report<'_>) {
    spaces.frames().audit().clear_audit();
    let mut number = 0;
    for_each_space(spaces, |core| {
        number += 1;
        let mappings = core.read_mappings(spaces.platform());
        let walk =
            SharingAudit { mappings: &mappings, tables: Tables::new(spaces.memory(), &core.tables), number };
        walk.table(core.tables.root(), P::Paging::root_level(), VirtAddr(0), report);
    });
    spaces.frames().audit().for_each_frame(|pfn, frame| {
        let flags = frame.word().flags();
        let (marked, listed) = (FrameFlags::MLOCKED, FrameFlags::UNEVICTABLE);
        let is_kept = frame.kind() == Kind::Anonymous && flags.intersects(marked | listed);
        let is_locked = flags.contains(marked) && frame.audit().load(Ordering::Relaxed) & LOCKED != 0;
        if is_kept && !is_locked {
            report(SpaceViolation::StrayLock { pfn });
        }
        // What is marked stays marked while other mappings may lock it.
        let is_listed = frame.kind() == Kind::Shmem && flags & (marked | listed) == listed;
        if is_listed && spaces.frames().folio(pfn).is_in_file_cache() {
            // SAFETY: nothing else calls into the machine during an audit.
            if !unsafe { KeptFolio::<P>::stays(spaces.frames(), pfn) } {
                report(SpaceViolation::StrayLock { pfn });
            }
        }
    });
}

/// A walk over the leaves of one space.
struct SharingAudit<'s, P: Platform> {
    mappings: &'s Mappings<'s, P>,
    tables: Tables<'s, P>,
    /// The number of the space in this audit, from 1 on.
    number: u32,
}

impl<P: Platform> SharingAudit<'_, P> {
    fn table(&self, table: Pfn, level: Level, start: VirtAddr, report: Report<'_>) {
        // What is no table was reported before.
        if self.tables.memory().frames().frame(table).is_none_or(|frame| frame.kind() != Kind::Table) {
            return;
        }
        for (index, slot) in self.tables.entries(table)[..P::Paging::user_entries(level)].iter().enumerate() {
            let addr = VirtAddr(start.0 + index as u64 * P::Paging::entry_bytes(level));
            match (P::Paging::decode(slot.load(Ordering::Relaxed), level), level.down()) {
                (Entry::Table(child), Some(below)) => self.table(child, below, addr, report),
                (Entry::Leaf(leaf), _) => self.leaf(leaf, level, addr, report),
                _ => {}
            }
        }
    }

    fn leaf(&self, Leaf { pfn, flags }: Leaf, level: Level, addr: VirtAddr, report: Report<'_>) {
        let frames = self.tables.memory().frames();
        if flags.contains(LeafFlags::SPECIAL) || frames.frame(pfn).is_none() {
            return;
        }
        let folio = frames.folio(pfn);
        if folio.kind() != Kind::Anonymous {
            return;
        }
        if self.mappings.find(addr).is_some_and(|vma| vma.flags().contains(VmFlags::LOCKED)) {
            folio.frame().audit().fetch_or(LOCKED, Ordering::Relaxed);
        }
        let marked = folio.frame().word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE);
        let strange = marked && !self.is_first_to_map(folio.head());
        let write = if flags.contains(LeafFlags::WRITE) { WRITABLE } else { 0 };
        let pages = folio.pages_from(pfn).min(P::Paging::entry_bytes(level) / PAGE_SIZE);
        for nth in 0..pages {
            let pfn = pfn.offset(nth);
            let before = frames.known(pfn).audit().fetch_or(MAPPED | write, Ordering::Relaxed);
            let owned = marked || (before | write) & WRITABLE != 0;
            if strange || before & MAPPED != 0 && owned {
                let (space, addr) = (self.tables.space().id(), VirtAddr(addr.0 + nth * PAGE_SIZE));
                report(SpaceViolation::NotExclusive { space, addr, pfn, marked });
            }
        }
    }

    /// Whether no other space was found to map the exclusive folio `head`; if so this one is noted.
    fn is_first_to_map(&self, head: Pfn) -> bool {
        let word = self.tables.memory().frames().known(head).audit();
        let own = self.number << SPACE_SHIFT;
        let found = word.load(Ordering::Relaxed) >> SPACE_SHIFT << SPACE_SHIFT;
        if found == 0 {
            word.fetch_or(own, Ordering::Relaxed);
        }
        found == 0 || found == own
    }
}
