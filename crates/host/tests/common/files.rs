//! Files without contents, for tests of what maps them.

use super::*;
use quire_file::{FileMappings, IndexRange, Opening};
use quire_vma::{Backing, Vma};
use std::ops::ControlFlow;
use std::ptr::NonNull;

/// A file that is opened several times. The test is a holder of each opening until it lets it go. It
/// outlives all mappings.
#[derive(Debug)]
pub(crate) struct TestFile {
    openings: Box<[Opening<Vma>]>,
    mappings: Box<FileMappings<Vma>>,
}

/// A place where a page of a file may be mapped: the space and the address.
pub(crate) type Place = (u64, u64);

impl TestFile {
    pub(crate) fn opened(times: usize) -> Self {
        let mappings = Box::new(FileMappings::new());
        // SAFETY: the mappings live as long as the openings.
        let open = |_| unsafe { Opening::new(NonNull::from(&*mappings)) };
        Self { openings: (0..times).map(open).collect(), mappings }
    }

    pub(crate) fn opening(&self, number: usize) -> &Opening<Vma> {
        &self.openings[number]
    }

    pub(crate) fn mappings(&self) -> &FileMappings<Vma> {
        &self.mappings
    }

    pub(crate) fn holders(&self, number: usize) -> usize {
        self.openings[number].holders()
    }

    /// The test holds the opening no longer. Returns whether nothing else does.
    pub(crate) fn let_go(&self, number: usize) -> bool {
        // SAFETY: the test is a holder, and lets each opening go once.
        unsafe { self.openings[number].let_go() }
    }

    /// Maps pages of the file from `first` on.
    pub(crate) fn map<P: Platform>(
        &self,
        space: &Space<'_, P>,
        (number, first): (usize, u64),
        range: VirtRange,
        (protection, flags): (Protection, MapFlags),
    ) -> Result<VirtAddr, Error> {
        let request = MapRequest {
            file: Some(MappedFile::new(0, first)),
            ..MapRequest::anonymous(range.len(), protection).at(range.start(), MapFlags::FIXED | flags)
        };
        // SAFETY: the test holds the opening, and takes those to be closed from the machine.
        unsafe { space.mmap_opened(&request, self.opening(number)) }
    }

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

    /// How many VMAs name the opening.
    pub(crate) fn named(&self, machine: &Machine, number: usize) -> usize {
        let held = self.mappings.read(machine.memory().platform());
        let backing = Backing::opened(self.opening(number));
        held.holding(0, u64::MAX).filter(|vma| vma.backing() == backing).count()
    }

    /// Which of the openings, by number, are to be closed.
    pub(crate) fn closing(&self, machine: &Machine) -> Vec<usize> {
        let mut closing = Vec::new();
        machine.memory().spaces().close_openings(|opening| {
            let number = self.openings.iter().position(|own| NonNull::from(own) == opening);
            closing.push(number.expect("it is one of this file"));
        });
        closing.sort_unstable();
        closing
    }
}
