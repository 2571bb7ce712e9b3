//! This crate's part of the audit: every table, page, count and mapping is recounted from the roots.

mod memcgs;
mod sharing;
mod tlb;
mod violation;

pub use violation::SpaceViolation;

use crate::space::for_each_space;
use crate::spaces::Spaces;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use quire_arch::paging::PteMarker;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtAddr};
use quire_file::{FileAudit, OpenFile, PageIndex};
use quire_frame::{Folio, FrameFlags, Kind};
use quire_pagetable::{Residency, Tables};
use quire_swap::SlotId;
use quire_vma::Mappings;
use quire_vma::{AnonVmaAudit, FileRmapAudit, SpaceCore, SpaceFigures, VmFlags, Vma, VmaSnapshot};

pub(crate) type Report<'r> = &'r mut dyn FnMut(SpaceViolation);

/// Sums over all spaces.
#[derive(Default)]
struct Sums {
    vmas: u64,
    spaces: u64,
    accounted: u64,
    large_leaves: u64,
    names: Names,
    anon_vmas: AnonVmaAudit,
}

/// Slots that are named, and how often: a count, and a sum that differs if any slot is named more or less
/// often than another recount says.
#[derive(Clone, Copy, Default)]
struct Names {
    count: u64,
    sum: u64,
}

impl Names {
    fn add(&mut self, torn: bool, slot: SlotId, count: u32) {
        // Slots counted together for lack of memory are compared together.
        let slot = if torn { slot.block_start(Order::PMD) } else { slot };
        self.count += u64::from(count);
        self.sum = self.sum.wrapping_add(mix(slot.raw()).wrapping_mul(u64::from(count)));
    }

    fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Spreads a number over all bits (the finaliser of Stafford's variant 13 of MurmurHash3).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Recounts everything that the spaces of this machine use. The machine is quiet: no call, fault or
/// access runs. The audit words of the frames are scratch and end up zero.
pub fn audit_spaces<P: Platform>(spaces: &Spaces<P>, report: Report<'_>) {
    spaces.frames().audit().clear_audit();
    let mut sums = Sums::default();
    for_each_space(spaces, |core| {
        sums.spaces += 1;
        audit_space(spaces, core, &mut sums, report);
    });
    let mut expect = |what, expected, found| {
        if expected != found {
            report(SpaceViolation::Count { space: None, what, expected, found });
        }
    };
    expect("pages promised", sums.accounted, spaces.commit().promised());
    let [vmas, cores, anon_vmas] = spaces.objects_in_use();
    expect("VMAs in use", sums.vmas, vmas);
    expect("spaces in use", sums.spaces, cores);
    expect("anon_vmas in use", sums.anon_vmas.anon_vmas(), anon_vmas);
    let files = FileAudit::new(spaces.page_cache().files(), spaces.frames());
    files.for_each_slot(|slot| sums.names.add(spaces.swap().audit().is_torn(slot), slot, 1));
    let mut counted = Names::default();
    spaces.swap().audit().for_each_named(|named| counted.add(named.torn, named.slot, named.count));
    expect("entries that name slots", sums.names.count, counted.count);
    expect("a sum over the slots that entries name", sums.names.sum, counted.sum);
    let large_leaves = sums.large_leaves;
    audit_rmap(spaces, report);
    files.validate(&mut |violation| report(SpaceViolation::File(violation)));
    audit_frames(spaces, large_leaves, report);
    sharing::audit_sharing(spaces, report);
    memcgs::audit_memcgs(spaces, report);
    tlb::audit_current(spaces, report);
    spaces.platform().for_each_cached_translation(&mut |cached| tlb::audit_cached(spaces, cached, report));
    spaces.frames().audit().clear_audit();
}

fn audit_space<P: Platform>(spaces: &Spaces<P>, core: &SpaceCore, sums: &mut Sums, report: Report<'_>) {
    let space = core.id();
    let mappings = core.read_mappings(spaces.platform());
    if let Err(violation) = mappings.validate() {
        report(SpaceViolation::Tree { space, violation });
    }
    let mut expected = SpaceFigures::default();
    for (range, vma) in mappings.entries() {
        let snapshot = vma.snapshot();
        if snapshot.range != range {
            report(SpaceViolation::VmaRange { space, expected: range, found: snapshot.range });
        }
        let (bytes, flags) = (snapshot.range.len(), snapshot.flags);
        expected.mapped += bytes;
        expected.exec += if flags.is_exec() { bytes } else { 0 };
        expected.stack += if flags.is_stack() && !flags.is_exec() { bytes } else { 0 };
        expected.data += if flags.is_data() { bytes } else { 0 };
        expected.locked += if flags.contains(VmFlags::LOCKED) { bytes } else { 0 };
        sums.accounted += if flags.contains(VmFlags::ACCOUNT) { snapshot.range.pages() } else { 0 };
        sums.vmas += 1;
        sums.anon_vmas.count(vma);
        FileRmapAudit::count(vma);
    }
    let mut walk = TableAudit {
        spaces,
        mappings: &mappings,
        tables: Tables::new(spaces.memory(), &core.tables),
        pages: Residency::default(),
        swapped: 0,
        names: Names::default(),
        count: 0,
        large: 0,
    };
    walk.table(core.tables.root(), P::Paging::root_level(), VirtAddr(0), report);
    sums.large_leaves += walk.large;
    sums.names.join(&walk.names);
    expected.resident_anonymous = walk.pages.anonymous * PAGE_SIZE;
    expected.resident_file = walk.pages.file * PAGE_SIZE;
    expected.resident_shmem = walk.pages.shmem * PAGE_SIZE;
    // The root is not counted, as in Linux.
    expected.page_tables = (walk.count - 1) * PAGE_SIZE;
    let found = core.usage.figures(mappings.count() as u64, &core.tables.residency);
    expected.swapped = walk.swapped * PAGE_SIZE;
    for (what, expected, found) in [
        ("bytes paged out", expected.swapped, found.swapped),
        ("bytes mapped", expected.mapped, found.mapped),
        ("bytes of code", expected.exec, found.exec),
        ("bytes of stacks", expected.stack, found.stack),
        ("bytes of data", expected.data, found.data),
        ("bytes locked", expected.locked, found.locked),
        ("bytes of anonymous pages", expected.resident_anonymous, found.resident_anonymous),
        ("bytes of file pages", expected.resident_file, found.resident_file),
        ("bytes of shared memory", expected.resident_shmem, found.resident_shmem),
        ("bytes of page tables", expected.page_tables, found.page_tables),
    ] {
        if expected != found {
            report(SpaceViolation::Count { space: Some(space), what, expected, found });
        }
    }
}

/// Compares every anon_vma with what [`AnonVmaAudit::count`] found, and the mappings of every file with what
/// [`FileRmapAudit::count`] did.
fn audit_rmap<P: Platform>(spaces: &Spaces<P>, report: Report<'_>) {
    let for_each_vma = |visit: &mut dyn FnMut(&SpaceCore, &Vma)| {
        for_each_space(spaces, |core| {
            core.read_mappings(spaces.platform()).iter().for_each(|vma| visit(core, vma));
        });
    };
    for_each_vma(&mut |core, vma| {
        let space = core.id();
        AnonVmaAudit::check(core, vma, &mut |violation| {
            report(SpaceViolation::AnonVma { space, violation });
        });
        FileRmapAudit::check(spaces.platform(), core, vma, &mut |violation| {
            report(SpaceViolation::FileRmap { space, violation });
        });
    });
    for_each_vma(&mut |_, vma| AnonVmaAudit::clear(vma));
}

/// Compares every frame's counts with the walk of all tables.
fn audit_frames<P: Platform>(spaces: &Spaces<P>, large_leaves: u64, report: Report<'_>) {
    let (mut whole_maps, mut mapped_whole) = (0, [0; 3]);
    let huge_zero = spaces.thp().huge_zero_page();
    spaces.frames().audit().for_each_frame(|pfn, frame| {
        let kind = frame.kind();
        let seen = frame.audit().load(Ordering::Relaxed);
        let maps = frame.as_folio().maps();
        match kind {
            Kind::Anonymous | Kind::File | Kind::Shmem => {
                // All mappings hold one reference together, and pins of devices theirs.
                let folio = spaces.frames().folio(pfn);
                let whole = if folio.is_large() { frame.as_folio().whole_maps() } else { 0 };
                whole_maps += u64::from(whole);
                let place = usize::from(kind.is_of_file()) + usize::from(kind == Kind::Shmem);
                mapped_whole[place] += u64::from(whole > 0);
                // The swap cache has one, and a device that reads without a waiter.
                let has = |flag| u32::from(frame.word().flags().contains(flag));
                let cached = u32::from(folio.is_in_file_cache());
                let others = has(FrameFlags::SWAP_CACHE) + has(FrameFlags::UNATTENDED) + cached;
                if seen == 0 && others == 0 && !folio.may_be_pinned() {
                    report(SpaceViolation::Leaked { pfn, kind });
                } else if (folio.unpinned_refs(), maps) != (u32::from(seen > 0) + others, seen) {
                    report(SpaceViolation::Refs { pfn, expected: seen, refs: frame.refs(), maps });
                }
            }
            Kind::Table if seen == 0 => report(SpaceViolation::Leaked { pfn, kind }),
            Kind::Table if frame.refs() != seen => {
                report(SpaceViolation::Refs { pfn, expected: seen, refs: frame.refs(), maps });
            }
            Kind::ZeroPage if Some(pfn) == huge_zero => {
                // Each entry that maps it has one, and so has `Spaces`.
                let (expected, found) = (u64::from(seen) + 1, u64::from(frame.refs()));
                if expected != found {
                    let what = "references to the huge page of zeros";
                    report(SpaceViolation::Count { space: None, what, expected, found });
                }
            }
            Kind::ZeroPage if pfn != spaces.zero_page() => report(SpaceViolation::Leaked { pfn, kind }),
            Kind::Allocated if !spaces.owns(pfn) => report(SpaceViolation::Leaked { pfn, kind }),
            _ => {}
        }
    });
    let events = spaces.frames().events();
    let counted = [events.pmd_mapped(), events.file_pmd_mapped(), events.shmem_pmd_mapped()];
    for (what, expected, found) in [
        ("folios mapped whole, as often as they are", large_leaves, whole_maps),
        ("anonymous folios mapped whole", mapped_whole[0], counted[0]),
        ("folios of files mapped whole", mapped_whole[1], counted[1]),
        ("folios of shared memory mapped whole", mapped_whole[2], counted[2]),
    ] {
        if expected != found {
            report(SpaceViolation::Count { space: None, what, expected, found });
        }
    }
}

/// Whether a mapping that is that of an open file may have the page of `frame` at `addr`: it is the file's
/// page there, and dirty if what is written goes to it unnoticed.
fn file_may_map<P: Platform>(vma: &VmaSnapshot, (addr, leaf): (VirtAddr, Leaf), folio: Folio<'_>) -> bool {
    // SAFETY: the machine is quiet, so the VMA remains a holder.
    let Some(opening) = (unsafe { vma.backing.opening() }) else { return true };
    // SAFETY: VMAs name openings of this machine's files only.
    let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file();
    let frame = folio.frame();
    let is_dirty = frame.word().flags().contains(FrameFlags::DIRTY);
    let is_noticed = !vma.notices_writes() || !leaf.flags.contains(LeafFlags::WRITE) || is_dirty;
    let nth = leaf.pfn.0 - folio.head().0;
    PageIndex::new(vma.page_offset_at(addr)).is_some_and(|index| {
        // A large folio of shared memory is mapped past the end, too.
        let first = if file.is_shmem() { frame.as_folio().index() } else { index.get() };
        let is_past = PageIndex::new(first).is_none_or(|first| file.ends_before(first));
        file.has(frame, index) && index.get() - frame.as_folio().index() == nth && !is_past
    }) && is_noticed
}

/// A walk over all tables of one space.
struct TableAudit<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    mappings: &'s Mappings<'s, P>,
    tables: Tables<'s, P>,
    pages: Residency,
    /// Entries that name slots.
    swapped: u64,
    names: Names,
    /// Tables.
    count: u64,
    /// Leaves in the place of bottom tables that map folios.
    large: u64,
}

impl<P: Platform> TableAudit<'_, P> {
    fn table(&mut self, table: Pfn, level: Level, start: VirtAddr, report: Report<'_>) {
        let frames = self.spaces.frames();
        let space = self.tables.space().id();
        let Some(frame) = frames.frame(table).filter(|frame| frame.kind() == Kind::Table) else {
            let kind = frames.known(table).kind();
            report(SpaceViolation::BadTable { space, table, kind });
            return;
        };
        self.count += 1;
        frame.audit().fetch_add(1, Ordering::Relaxed);
        if frame.as_table().space() != space.get() {
            report(SpaceViolation::BadTable { space, table, kind: Kind::Table });
        }
        let entries = self.tables.entries(table);
        let mut live = 0;
        let mut large = 0;
        for (index, slot) in entries.iter().enumerate().take(P::Paging::user_entries(level)) {
            let addr = VirtAddr(start.0 + index as u64 * P::Paging::entry_bytes(level));
            let entry = P::Paging::decode(slot.load(Ordering::Relaxed), level);
            live += u64::from(entry != Entry::None);
            match (entry, level.down()) {
                (Entry::Table(child), Some(below)) => self.table(child, below, addr, report),
                (Entry::Leaf(leaf), _) => {
                    large += u64::from(level > Level::PTE);
                    let folio = level > Level::PTE && !leaf.flags.contains(LeafFlags::SPECIAL);
                    self.large += u64::from(folio);
                    self.leaf(leaf, level, addr, report);
                }
                (Entry::Swap(entry), _) => {
                    self.swapped += 1;
                    let slot = SlotId::of(entry);
                    self.names.add(self.spaces.swap().audit().is_torn(slot), slot, 1);
                }
                (Entry::Marker(marker), _) => {
                    let guarded = marker != PteMarker::Guard || self.may_have_guards(addr);
                    if level > Level::PTE || !guarded {
                        report(SpaceViolation::StrayMarker { space, addr });
                    }
                }
                _ => {}
            }
        }
        let found = u64::from(frame.as_table().live());
        if found != live {
            report(SpaceViolation::TableLive { table, expected: live, found });
        }
        if level == Level::PMD {
            self.deposits(table, large, report);
        }
    }

    /// Whether the mapping at `addr` is marked as having guard pages.
    fn may_have_guards(&self, addr: VirtAddr) -> bool {
        self.mappings.find(addr).is_some_and(|vma| vma.flags().contains(VmFlags::MAYBE_GUARD))
    }

    /// Counts the tables that were deposited behind `table`: as many as it has `leaves`.
    fn deposits(&mut self, table: Pfn, leaves: u64, report: Report<'_>) {
        let frames = self.spaces.frames();
        let space = Some(self.tables.space().id());
        let mut found = 0;
        let mut next = frames.known(table).as_table().deposit();
        while let Some(deposit) = next
            && found <= leaves
        {
            let frame = frames.known(deposit);
            frame.audit().fetch_add(1, Ordering::Relaxed);
            found += 1;
            next = frame.as_table().deposit();
        }
        self.count += found;
        if found != leaves {
            report(SpaceViolation::Count { space, what: "deposited tables", expected: leaves, found });
        }
    }

    fn leaf(&mut self, leaf: Leaf, level: Level, addr: VirtAddr, report: Report<'_>) {
        let Leaf { pfn, flags } = leaf;
        let (spaces, space) = (self.spaces, self.tables.space().id());
        let frames = spaces.frames();
        let kind = frames.frame(pfn).map_or(Kind::Hole, |_| frames.folio(pfn).kind());
        let vma = self.mappings.find(addr);
        let access = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
        let allowed = vma.is_some_and(|vma| vma.flags().leaf_flags().contains(flags & access));
        let pages = P::Paging::entry_bytes(level) / PAGE_SIZE;
        let fits = if flags.contains(LeafFlags::SPECIAL) {
            let large = level > Level::PTE;
            let zeros = if large { spaces.thp().huge_zero_page() } else { Some(spaces.zero_page()) };
            if large && zeros == Some(pfn) {
                frames.known(pfn).audit().fetch_add(1, Ordering::Relaxed);
            }
            zeros == Some(pfn) && !flags.contains(LeafFlags::WRITE)
        } else {
            matches!(kind, Kind::Anonymous | Kind::File | Kind::Shmem)
                && frames.folio(pfn).pages_from(pfn) >= pages
        };
        if flags.contains(LeafFlags::GUARD) && (level > Level::PTE || !self.may_have_guards(addr)) {
            report(SpaceViolation::StrayMarker { space, addr });
        }
        // What it maps lies in one mapping.
        let allowed = allowed && vma.is_some_and(|vma| vma.range().end().0 - addr.0 >= pages * PAGE_SIZE);
        if !allowed || !fits {
            report(SpaceViolation::BadPage { space, addr, pfn, kind });
        }
        if fits && !flags.contains(LeafFlags::SPECIAL) {
            self.pages.add(kind, pages);
            let folio = frames.folio(pfn);
            let frame = folio.frame();
            frame.audit().fetch_add(pages as u32, Ordering::Relaxed);
            let owner = frame.as_folio().anon_vma();
            let is_its_own = match kind {
                Kind::Anonymous => vma.is_some_and(|vma| AnonVmaAudit::may_map(vma, owner)),
                _ => vma.is_some_and(|vma| file_may_map::<P>(&vma.snapshot(), (addr, leaf), folio)),
            };
            if !is_its_own {
                report(SpaceViolation::PageOwner { space, addr, pfn });
            }
        }
    }
}
