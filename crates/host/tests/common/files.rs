//! Files of which only the mappings and the openings matter.

use super::*;
use quire_file::{FileMappings, IndexRange, OpenFile, Opening};
use quire_vma::{Backing, Vma};
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::RwLock;

/// A file that is opened several times. The test holds each of these openings until it lets it go, and one
/// more.
pub(crate) struct TestFile<'m, P: Platform = HostPlatform> {
    openings: Vec<TestOpening<'m, P>>,
    kept: File<'m, P>,
}

struct TestOpening<'m, P: Platform> {
    held: RwLock<Option<File<'m, P>>>,
    place: NonNull<Opening<Vma>>,
}

// SAFETY: the place is an opening, which is `Sync`, and the rest is behind a lock.
unsafe impl<P: Platform> Sync for TestOpening<'_, P> {}

/// A place where a page of a file may be mapped: the space and the address.
pub(crate) type Place = (u64, u64);

impl<'m, P: Platform> TestFile<'m, P> {
    pub(crate) fn opened(memory: &'m Memory<P>, times: usize) -> Self {
        let (backing, _) = MemoryFile::new(Vec::new());
        let kept = memory.create_file(backing, GIB).expect("there is memory");
        let open = |_| {
            let file = kept.open(Access::Write).expect("there is memory");
            TestOpening { place: file.open_file().opening(), held: RwLock::new(Some(file)) }
        };
        Self { openings: (0..times).map(open).collect(), kept }
    }

    fn file(&self) -> &OpenFile<P, Vma> {
        self.kept.open_file()
    }

    pub(crate) fn mappings(&self) -> &FileMappings<Vma> {
        self.file().file().mappings()
    }

    /// Where the opening lies. It may be used while something holds it.
    pub(crate) fn place(&self, number: usize) -> NonNull<Opening<Vma>> {
        self.openings[number].place
    }

    /// Which of the test's openings are not closed.
    pub(crate) fn open(&self) -> Vec<usize> {
        let open: Vec<_> = (0..self.openings.len()).filter(|&number| self.holders(number) > 0).collect();
        assert_eq!(self.file().file().openings(), open.len() + 1, "one that nothing holds is closed");
        open
    }

    /// The test and the VMAs that hold the opening, as it counts them. A closed one has none.
    pub(crate) fn holders(&self, number: usize) -> usize {
        let is_held = self.openings[number].held.read().expect("no thread panics with it").is_some();
        // SAFETY: the test holds the opening, or a VMA does, and nothing changes the mappings meanwhile.
        let count = || unsafe { self.openings[number].place.as_ref() }.holders();
        if is_held || self.named(number) > 0 { count() } else { 0 }
    }

    /// The test holds the opening no longer.
    pub(crate) fn let_go(&self, number: usize) {
        self.openings[number]
            .held
            .write()
            .expect("no thread panics with it")
            .take()
            .expect("the test holds it");
    }

    /// Maps pages of the file from `first` on.
    pub(crate) fn map(
        &self,
        space: &Space<'_, P>,
        (number, first): (usize, u64),
        range: VirtRange,
        (protection, flags): (Protection, MapFlags),
    ) -> Result<VirtAddr, Error> {
        let request = file_request(first, range.pages(), protection, flags);
        let held = self.openings[number].held.read().expect("no thread panics with it");
        space.mmap_file(
            &request.at(range.start(), MapFlags::FIXED | flags),
            held.as_ref().expect("the test holds it"),
        )
    }

    /// How many VMAs name the opening.
    pub(crate) fn named(&self, number: usize) -> usize {
        let held = self.mappings().read(self.kept.platform());
        // SAFETY: only its address is used.
        let backing = Backing::opened(unsafe { self.openings[number].place.as_ref() });
        held.holding(0, u64::MAX).filter(|vma| vma.backing() == backing).count()
    }
}

impl TestFile<'_> {
    /// Where the rmap says that `pages` may be mapped, in order, and by how many mappings.
    pub(crate) fn places(&self, machine: &Machine, pages: IndexRange) -> (Vec<Place>, usize) {
        let (mut places, mut mappings) = (Vec::new(), 0);
        let held = machine.memory().spaces().rmap().hold_file(self.mappings());
        let _ = held.walk(pages, |mapped| {
            mappings += 1;
            for at in 0..mapped.range.pages() {
                let addr = page(mapped.range.start(), at);
                assert!(mapped.vma.range.contains(addr));
                let index = mapped.vma.page_offset_at(addr);
                assert!(pages.start() <= index && index < pages.end());
                places.push((mapped.space.id().get(), addr.0));
            }
            ControlFlow::<()>::Continue(())
        });
        (places, mappings)
    }
}
