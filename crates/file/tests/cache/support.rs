//! A machine with files, and programs' memory that calls copy from and to.

use crate::machine::{Machine, Random, frames_of};
use quire_arch::{Order, OrderSet, PAGE_SIZE, Platform};
use quire_file::{
    Cleaned, FileAudit, FileBacking, FileCore, FileHandle, FileUsers, Files, IndexRange, LargeOrders,
    NoUsers, OfFile, PageBytes, PageCache, PageIndex, Transfer, UserCopy, Wait,
};
use quire_frame::{Frames, PcpTechnique};
use quire_memcg::{Belonging, Limit, Membership, MemcgId, Memcgs};
use quire_swap::{Swap, SwapTechnique};
use quire_vma_tree::intervals::{IntervalLink, Member};
use std::cell::Cell;

pub(crate) const PAGE: u64 = PAGE_SIZE;

/// A VMA: tests map without one.
pub(crate) struct Vma(IntervalLink<Self, OfFile>);

// SAFETY: the place is a field.
unsafe impl Member<OfFile> for Vma {
    fn place(&self) -> &IntervalLink<Self, OfFile> {
        &self.0
    }
}

pub(crate) type Handle<'m> = FileHandle<'m, Machine, Vma>;
pub(crate) type Core = FileCore<Machine, Vma>;

/// A machine with files, and a program.
pub(crate) struct Fixture {
    pub(crate) files: Files<Machine, Vma>,
    swap: Swap<Machine>,
    pub(crate) program: Membership,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(Machine::new(&[(0, 4096)], 1))
    }

    pub(crate) fn with(machine: Machine) -> Self {
        let memcgs = Memcgs::new(frames_of(machine, PcpTechnique::All)).unwrap();
        let files = Files::new(memcgs.frames()).unwrap();
        let swap = Swap::new(memcgs, SwapTechnique::default());
        Self { files, swap, program: Membership::default() }
    }

    /// The program is in a memcg of its own, which may have so many pages.
    pub(crate) fn limit(&self, pages: u64) -> MemcgId {
        let memcg = self.memcgs().lifecycle().create(MemcgId::ROOT, "limited").unwrap();
        let _ = self.memcgs().files().set(memcg, Limit::Max, Some(pages * PAGE)).unwrap();
        self.program.replace(memcg);
        memcg
    }

    pub(crate) fn memcgs(&self) -> &Memcgs<Machine> {
        self.swap.memcgs()
    }

    pub(crate) fn frames(&self) -> &Frames<Machine> {
        self.memcgs().frames()
    }

    pub(crate) fn cache(&self) -> PageCache<'_, Machine, Vma> {
        // SAFETY: the files were made on this machine.
        unsafe { PageCache::new(&self.files, &self.swap) }
    }

    pub(crate) fn create(&self, backing: impl FileBacking<Machine>, size: u64) -> Handle<'_> {
        self.cache().create(backing, size).unwrap()
    }

    /// Fails on anything that an auditor finds.
    #[track_caller]
    pub(crate) fn check(&self) {
        let mut found = Vec::new();
        let audit = FileAudit::new(&self.files, self.frames());
        audit.validate(&mut |wrong| found.push(wrong.to_string()));
        self.memcgs().audit().validate(&mut |wrong| found.push(wrong.to_string()));
        for what in [Belonging::Pages, Belonging::FilePages] {
            let tell = |one: &mut dyn FnMut(MemcgId, u64)| {
                audit.for_each_folio(|_, stored| {
                    let quire_file::Entry::Folio(head) = stored.entry else { unreachable!() };
                    let memcg = MemcgId::from_bits(self.frames().known(head).as_folio().memcg());
                    one(memcg, stored.order.pages());
                });
            };
            self.memcgs().audit().recount(what, tell, &mut |wrong| found.push(wrong.to_string()));
        }
        assert!(found.is_empty(), "{found:#?}");
        crate::machine::assert_sound(self.frames());
    }

    /// Frames that are in use, apart from what caches and CPUs keep.
    pub(crate) fn frames_in_use(&self) -> u64 {
        let mut files = 0;
        self.frames().audit().for_each_frame(|_, frame| {
            files += u64::from(frame.kind() == quire_frame::Kind::File);
        });
        files
    }

    pub(crate) fn write(&self, file: &Core, at: u64, bytes: &[u8]) -> Transfer {
        self.cache().write(file, at, &mut From::new(bytes), &self.program, &NoUsers)
    }

    #[track_caller]
    pub(crate) fn must_write(&self, file: &Core, at: u64, bytes: &[u8]) {
        let all = Transfer { bytes: bytes.len() as u64, stopped: None };
        assert_eq!(self.write(file, at, bytes), all);
    }

    pub(crate) fn read(&self, file: &Core, at: u64, bytes: usize) -> (Vec<u8>, Transfer) {
        let mut to = To { room: bytes, bytes: Vec::new(), copied: Vec::new() };
        let transfer = self.cache().read(file, at, &mut to, &self.program);
        assert_eq!(transfer.bytes, to.bytes.len() as u64);
        (to.bytes, transfer)
    }

    #[track_caller]
    pub(crate) fn must_read(&self, file: &Core, at: u64, bytes: usize) -> Vec<u8> {
        let (read, transfer) = self.read(file, at, bytes);
        assert_eq!(transfer.stopped, None);
        read
    }

    /// What is dirty is written.
    #[track_caller]
    pub(crate) fn flush(&self, file: &Core) {
        self.cache().write_back(file, IndexRange::ALL, Wait::Yes, &NoUsers).unwrap();
    }

    /// The page, as a program that maps it sees it.
    pub(crate) fn page(&self, file: &Core, index: u64) -> *mut u8 {
        let page = self.cache().page_in(file, page(index), ALONE, &self.program).unwrap();
        self.frames().platform().direct_map(page.folio.head()).as_ptr()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

/// What may come with a page: nothing.
pub(crate) const ALONE: IndexRange = IndexRange::new(0, 0);

pub(crate) fn at(index: u64) -> PageIndex {
    PageIndex::new(index).unwrap()
}

/// The same, to be brought in as one page.
pub(crate) fn page(index: u64) -> (PageIndex, LargeOrders) {
    (at(index), LargeOrders::NONE)
}

/// The same in a folio of `order` at most.
pub(crate) fn up_to(index: PageIndex, order: Order) -> (PageIndex, LargeOrders) {
    (index, LargeOrders { orders: OrderSet::ALL.up_to(order), drains: false })
}

/// Bytes that are not zeros, and not the same for another seed.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..bytes).map(|_| random.below(255) as u8 + 1).collect()
}

/// A program's memory that is written to a file.
pub(crate) struct From<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) done: usize,
    /// Every so many copies one stops short, by a number of bytes that depends on this.
    pub(crate) shorts: Option<Random>,
    /// Bytes from here on cannot be accessed.
    pub(crate) bad_from: usize,
}

impl<'a> From<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, done: 0, shorts: None, bad_from: usize::MAX }
    }
}

impl UserCopy for From<'_> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.done) as u64
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes.min(self.bad_from.saturating_sub(self.done))
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        let most = page.len().min(self.bytes.len() - self.done);
        let is_short = self.shorts.as_mut().filter(|_| most > 0).map(|random| (random.below(3), random));
        let bytes = match is_short {
            Some((0, random)) => random.below(most as u64) as usize,
            _ => most,
        };
        page.set(0, &self.bytes[self.done..self.done + bytes])
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
    }
}

/// A program's memory that a file is read to.
struct To {
    room: usize,
    bytes: Vec<u8>,
    /// Of the last page, until it counts.
    copied: Vec<u8>,
}

impl UserCopy for To {
    fn left(&self) -> u64 {
        (self.room - self.bytes.len()) as u64
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        assert_eq!(page.set(0, &[1]), 0, "the file is not the target of a read");
        self.copied.resize(page.len(), 0);
        page.get(0, &mut self.copied)
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.extend_from_slice(&self.copied[..bytes]);
    }
}

/// Programs that map one folio as often as its map count says. An unmapping takes a mapping away each time,
/// and cleaning finds one in transit as often as is set.
#[derive(Default)]
pub(crate) struct Mapped<'m> {
    pub(crate) fixture: Option<&'m Fixture>,
    pub(crate) in_transit: Cell<u32>,
    pub(crate) cleaned: Cell<u32>,
    pub(crate) unmaps: Cell<u32>,
}

impl FileUsers<Machine, Vma> for Mapped<'_> {
    fn unmap(&self, file: &Core, pages: IndexRange, _private_too: bool) {
        self.unmaps.set(self.unmaps.get() + 1);
        let Some(fixture) = self.fixture else { return };
        let audit = FileAudit::new(&fixture.files, fixture.frames());
        let mut last = Vec::new();
        audit.for_each_folio(|of, stored| {
            let quire_file::Entry::Folio(head) = stored.entry else { return };
            let folio = fixture.frames().known(head).as_folio();
            if of.number() == file.number() && pages.contains(stored.start) && folio.maps() > 0 {
                folio.set_maps(folio.maps() - 1);
                if folio.maps() == 0 {
                    last.push(head);
                }
            }
        });
        // The reference of the mappings.
        last.into_iter().for_each(|head| fixture.memcgs().folios().release_folio(head));
    }

    fn clean(&self, _file: &Core, _head: quire_arch::Pfn, _pages: IndexRange) -> Cleaned {
        self.cleaned.set(self.cleaned.get() + 1);
        match self.in_transit.get() {
            0 => Cleaned::All,
            left => {
                self.in_transit.set(left - 1);
                Cleaned::InTransit
            }
        }
    }

    fn free_tables(&self, _file: &Core, _block: IndexRange) {}
}

impl Fixture {
    /// Maps a page so often.
    pub(crate) fn map(&self, file: &Core, index: u64, times: u32) {
        let page = self.cache().page_in(file, page(index), ALONE, &self.program).unwrap();
        let folio = page.folio.frame().as_folio();
        assert_eq!(folio.maps(), 0);
        folio.set_maps(times);
        // The mappings have the reference now.
        let _ = page.folio.unlock_and_keep();
    }
}
