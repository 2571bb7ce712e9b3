//! The auditor's part of this room: every table, page, count and mapping is recounted from the roots.

use crate::space::{SpaceCore, SpaceId};
use crate::spaces::Spaces;
use crate::table::{Residency, Tables};
use crate::tree::TreeViolation;
use crate::usage::SpaceFigures;
use crate::vma::{VmFlags, Vma};
use core::fmt;
use core::sync::atomic::Ordering;
use quire_arch::{
    CachedTranslation, Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtAddr,
    VirtRange,
};
use quire_frame::Kind;

/// Something that is not as it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpaceViolation {
    /// The tree of VMAs is damaged.
    Tree {
        /// Whose.
        space: SpaceId,
        /// How.
        violation: TreeViolation,
    },
    /// A VMA and its entry in the tree have different ranges.
    VmaRange {
        /// Whose.
        space: SpaceId,
        /// What the tree says.
        expected: VirtRange,
        /// What the VMA says.
        found: VirtRange,
    },
    /// A count differs from the recount.
    Count {
        /// Whose; `None` for a count of the whole machine.
        space: Option<SpaceId>,
        /// Of what.
        what: &'static str,
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
    /// A table's number of live entries differs from its entries.
    TableLive {
        /// The table.
        table: Pfn,
        /// The recount.
        expected: u64,
        /// What its descriptor says.
        found: u64,
    },
    /// An entry points to a table that is none, or to one of another space.
    BadTable {
        /// Whose tables.
        space: SpaceId,
        /// What the entry points to.
        table: Pfn,
        /// What that is.
        kind: Kind,
    },
    /// A page is mapped where there is no mapping, or allows more than the mapping.
    BadPage {
        /// Whose.
        space: SpaceId,
        /// Where.
        addr: VirtAddr,
        /// What is mapped.
        pfn: Pfn,
        /// What that is.
        kind: Kind,
    },
    /// Nothing refers to the frame, though it is not free.
    Leaked {
        /// The frame.
        pfn: Pfn,
        /// What it was given out for.
        kind: Kind,
    },
    /// The map count of a folio differs from the entries that map it, or its mappings hold not just one reference; or a table
    /// is hooked more than once.
    Refs {
        /// The frame.
        pfn: Pfn,
        /// The recount of maps.
        expected: u32,
        /// References.
        refs: u32,
        /// Maps.
        maps: u32,
    },
    /// A TLB translates what the tables do not.
    StaleTranslation(CachedTranslation),
}

impl fmt::Display for SpaceViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree { space, violation } => write!(f, "space {}: VMA tree: {violation:?}", space.get()),
            Self::VmaRange { space, expected, found } => {
                write!(f, "space {}: the tree has {expected:?}, its VMA {found:?}", space.get())
            }
            Self::Count { space, what, expected, found } => {
                match space {
                    Some(space) => write!(f, "space {}: ", space.get())?,
                    None => f.write_str("machine: ")?,
                }
                write!(f, "{what}: expected {expected}, found {found}")
            }
            Self::TableLive { table, expected, found } => {
                write!(f, "table {table:?}: expected {expected} live entries, found {found}")
            }
            Self::BadTable { space, table, kind } => {
                write!(f, "space {}: {table:?} is hooked as a table but is {kind:?}", space.get())
            }
            Self::BadPage { space, addr, pfn, kind } => {
                write!(f, "space {}: {addr:?} maps {pfn:?} ({kind:?}) wrongly", space.get())
            }
            Self::Leaked { pfn, kind } => write!(f, "{pfn:?} ({kind:?}) is lost: nothing refers to it"),
            Self::Refs { pfn, expected, refs, maps } => {
                write!(f, "{pfn:?}: expected {expected} maps, found {maps}, with {refs} references")
            }
            Self::StaleTranslation(stale) => write!(f, "stale TLB entry: {stale:?}"),
        }
    }
}

type Report<'r> = &'r mut dyn FnMut(SpaceViolation);

/// What is summed up over all spaces.
#[derive(Default)]
struct Sums {
    vmas: u64,
    spaces: u64,
    accounted: u64,
}

impl<P: Platform> Spaces<P> {
    /// Recounts everything that the spaces of this machine use. The machine is quiet: no call, fault or access runs.
    /// The audit words of the frames are scratch and end up zero.
    pub fn audit(&self, report: Report<'_>) {
        self.frames().clear_audit();
        let mut sums = Sums::default();
        self.for_each(|core| {
            sums.spaces += 1;
            self.audit_space(core, &mut sums, report);
        });
        let mut expect = |what, expected, found| {
            if expected != found {
                report(SpaceViolation::Count { space: None, what, expected, found });
            }
        };
        expect("pages promised", sums.accounted, self.commit().promised());
        let [vmas, cores] = self.objects_in_use();
        expect("VMAs in use", sums.vmas, vmas);
        expect("spaces in use", sums.spaces, cores);
        self.audit_frames(report);
        self.platform().for_each_cached_translation(&mut |cached| self.audit_cached(cached, report));
        self.frames().clear_audit();
    }

    fn audit_space(&self, core: &SpaceCore<P>, sums: &mut Sums, report: Report<'_>) {
        let space = core.id();
        let _guard = core.mmap_lock.read(self.platform());
        // SAFETY: the mmap lock is held.
        let view = unsafe { core.vmas.view() };
        if let Err(violation) = view.validate() {
            report(SpaceViolation::Tree { space, violation });
        }
        let mut expected = SpaceFigures::default();
        for entry in &view {
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            let vma: &Vma = unsafe { entry.value.as_ref() };
            let facts = vma.facts();
            if facts.range != entry.range {
                report(SpaceViolation::VmaRange { space, expected: entry.range, found: facts.range });
            }
            let (bytes, flags) = (facts.range.len(), facts.flags);
            expected.mapped += bytes;
            expected.exec += if flags.is_exec() { bytes } else { 0 };
            expected.stack += if flags.is_stack() && !flags.is_exec() { bytes } else { 0 };
            expected.data += if flags.is_data() { bytes } else { 0 };
            expected.locked += if flags.contains(VmFlags::LOCKED) { bytes } else { 0 };
            sums.accounted += if flags.contains(VmFlags::ACCOUNT) { facts.range.pages() } else { 0 };
            sums.vmas += 1;
        }
        let mut walk = TableAudit { tables: Tables::new(self, core), pages: Residency::default(), count: 0 };
        walk.table(core.root(), P::Paging::root_level(), VirtAddr(0), report);
        expected.resident_anonymous = walk.pages.anonymous * PAGE_SIZE;
        expected.resident_file = walk.pages.file * PAGE_SIZE;
        // The root is not counted, as in Linux.
        expected.page_tables = (walk.count - 1) * PAGE_SIZE;
        let found = core.usage.figures(view.len() as u64);
        for (what, expected, found) in [
            ("bytes mapped", expected.mapped, found.mapped),
            ("bytes of code", expected.exec, found.exec),
            ("bytes of stacks", expected.stack, found.stack),
            ("bytes of data", expected.data, found.data),
            ("bytes locked", expected.locked, found.locked),
            ("bytes of anonymous pages", expected.resident_anonymous, found.resident_anonymous),
            ("bytes of file pages", expected.resident_file, found.resident_file),
            ("bytes of page tables", expected.page_tables, found.page_tables),
        ] {
            if expected != found {
                report(SpaceViolation::Count { space: Some(space), what, expected, found });
            }
        }
    }

    /// Holds every frame's counts against what the walk of all tables found.
    fn audit_frames(&self, report: Report<'_>) {
        self.frames().for_each_frame(|pfn, frame| {
            let kind = frame.kind();
            let seen = frame.audit().load(Ordering::Relaxed);
            let maps = frame.map_count().load(Ordering::Relaxed);
            match kind {
                Kind::Anonymous | Kind::File => {
                    // All mappings hold one reference together, and pins of devices theirs.
                    let folio = self.frames().folio(pfn);
                    if seen == 0 && !folio.may_be_pinned() {
                        report(SpaceViolation::Leaked { pfn, kind });
                    } else if (folio.unpinned_refs(), maps) != (u32::from(seen > 0), seen) {
                        report(SpaceViolation::Refs { pfn, expected: seen, refs: frame.refs(), maps });
                    }
                }
                Kind::Table if seen == 0 => report(SpaceViolation::Leaked { pfn, kind }),
                Kind::Table if frame.refs() != seen => {
                    report(SpaceViolation::Refs { pfn, expected: seen, refs: frame.refs(), maps });
                }
                Kind::Allocated if !self.owns(pfn) => report(SpaceViolation::Leaked { pfn, kind }),
                _ => {}
            }
        });
    }

    /// Holds a cached translation against the tables of the space that it belongs to.
    fn audit_cached(&self, cached: CachedTranslation, report: Report<'_>) {
        let mut backed = false;
        self.for_each(|core| {
            if core.asid() == cached.asid {
                let tables = Tables::new(self, core);
                backed |= tables.find(cached.addr).is_some_and(|table| {
                    let index = P::Paging::index(cached.addr, Level::PTE);
                    let raw = tables.entries(table)[index].load(Ordering::Relaxed);
                    // A translation may know less than the entry (not yet dirty, not yet writable), never more.
                    matches!(P::Paging::decode(raw, Level::PTE), Entry::Leaf(leaf)
                        if leaf.pfn == cached.leaf.pfn && leaf.flags.contains(cached.leaf.flags))
                });
            }
        });
        if !backed {
            report(SpaceViolation::StaleTranslation(cached));
        }
    }
}

/// A walk over all tables of one space.
struct TableAudit<'s, P: Platform> {
    tables: Tables<'s, P>,
    pages: Residency,
    count: u64,
}

impl<P: Platform> TableAudit<'_, P> {
    fn table(&mut self, table: Pfn, level: Level, start: VirtAddr, report: Report<'_>) {
        let frames = self.tables.spaces.frames();
        let space = self.tables.core.id();
        let Some(frame) = frames.frame(table).filter(|frame| frame.kind() == Kind::Table) else {
            let kind = frames.known(table).kind();
            report(SpaceViolation::BadTable { space, table, kind });
            return;
        };
        self.count += 1;
        frame.audit().fetch_add(1, Ordering::Relaxed);
        if frame.owner().load(Ordering::Relaxed) != space.get() {
            report(SpaceViolation::BadTable { space, table, kind: Kind::Table });
        }
        let entries = self.tables.entries(table);
        let mut live = 0;
        for (index, slot) in entries.iter().enumerate().take(P::Paging::entries(level)) {
            let addr = VirtAddr(start.0 + index as u64 * P::Paging::entry_bytes(level));
            let entry = P::Paging::decode(slot.load(Ordering::Relaxed), level);
            live += u64::from(entry != Entry::None);
            match (entry, level.down()) {
                (Entry::Table(child), Some(below)) => self.table(child, below, addr, report),
                (Entry::Leaf(leaf), _) => self.leaf(leaf, addr, report),
                _ => {}
            }
        }
        let found = u64::from(frame.live().load(Ordering::Relaxed));
        if found != live {
            report(SpaceViolation::TableLive { table, expected: live, found });
        }
    }

    fn leaf(&mut self, leaf: Leaf, addr: VirtAddr, report: Report<'_>) {
        let Leaf { pfn, flags } = leaf;
        let (spaces, core) = (self.tables.spaces, self.tables.core);
        let frames = spaces.frames();
        let kind = frames.frame(pfn).map_or(Kind::Hole, |_| frames.folio(pfn).kind());
        // SAFETY: the caller holds the mmap lock.
        let vma = unsafe { core.vmas.view() }.find(addr);
        let access = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
        let allowed = vma.is_some_and(|entry| {
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            unsafe { entry.value.as_ref() }.flags().leaf_flags().contains(flags & access)
        });
        let fits = if flags.contains(LeafFlags::SPECIAL) {
            pfn == spaces.zero_page() && !flags.contains(LeafFlags::WRITE)
        } else {
            matches!(kind, Kind::Anonymous | Kind::File)
        };
        if !allowed || !fits {
            report(SpaceViolation::BadPage { space: core.id(), addr, pfn, kind });
        }
        if fits && !flags.contains(LeafFlags::SPECIAL) {
            self.pages.add(kind, 1);
            spaces.frames().folio(pfn).frame().audit().fetch_add(1, Ordering::Relaxed);
        }
    }
}
