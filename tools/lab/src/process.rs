//! A process that makes the same calls on Quire and on the host's Linux.

use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::report::Compared;
use crate::site::{HostSpace, RW, START, Site};
use quire_arch::{Access, Order, PAGE_SIZE, VirtAddr};
use quire_host::Program;
use quire_mm::{Advice, MapFlags, MapRequest, MemcgId, RemapFlags};

/// The calls and accesses of a process. Places are bytes from the start of its area: a border of PUD entries,
/// with nothing mapped near it but its own.
pub(crate) trait Process {
    /// Why it cannot continue.
    type Error;

    /// Maps `bytes` of private memory at `at`, where nothing is mapped.
    fn map(&mut self, at: u64, bytes: u64) -> Result<(), Self::Error>;
    /// Maps them and writes to every `stride`th page, in `folios`, of which each is written to.
    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Result<(), Self::Error>;
    /// Accesses every `stride`th page.
    fn touch(&mut self, at: u64, bytes: u64, stride: u64, access: Access) -> Result<(), Self::Error>;
    /// `madvise(MADV_DONTNEED)`.
    fn dont_need(&mut self, at: u64, bytes: u64) -> Result<(), Self::Error>;
    /// `madvise(MADV_FREE)`.
    fn free(&mut self, at: u64, bytes: u64) -> Result<(), Self::Error>;
    /// Reclaims everything that can be reclaimed, at least in this range.
    fn reclaim(&mut self, at: u64, bytes: u64) -> Result<(), Self::Error>;
    /// `munmap`.
    fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), Self::Error>;
    /// `mremap` to that place.
    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Result<(), Self::Error>;
    /// `mremap` to another size, at any free address. Returns the place.
    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Result<u64, Self::Error>;
    /// Page tables (`VmPTE`) and resident memory (`VmRSS`) in KiB.
    fn sizes(&mut self) -> Result<[u64; 2], Self::Error>;
}

/// A process of Quire.
#[derive(Debug)]
pub(crate) struct Quire<'s, T> {
    site: &'s Site<T>,
    space: &'s HostSpace<'s>,
    program: Program<'s, HostSpace<'s>>,
}

fn place(at: u64) -> VirtAddr {
    VirtAddr(START.0.wrapping_add(at))
}

impl<'s, T: Compared> Quire<'s, T> {
    /// One whose memory is `space`.
    pub(crate) fn new(site: &'s Site<T>, space: &'s HostSpace<'s>) -> Self {
        Self { site, space, program: site.vcpu().program(space) }
    }
}

impl<T: Compared> Process for Quire<'_, T> {
    type Error = LabError;

    fn map(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        let request = MapRequest::anonymous(bytes, RW).at(place(at), MapFlags::FIXED_NOREPLACE);
        self.site.run(|| self.space.mmap(&request))?;
        Ok(())
    }

    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Result<(), LabError> {
        self.map(at, bytes)?;
        let had = self.site.folios_made(folios.order);
        self.touch(at, bytes, stride, Access::Write)?;
        let (wanted, got) = (folios.in_bytes(bytes), self.site.folios_made(folios.order) - had);
        if folios.order > Order::ZERO && got != wanted {
            return Err(LabError::OtherFolios { order: folios.order, wanted, got });
        }
        Ok(())
    }

    fn touch(&mut self, at: u64, bytes: u64, stride: u64, access: Access) -> Result<(), LabError> {
        self.program.inside(|guest| {
            (0..pages(bytes)).step_by(stride as usize).try_for_each(|page| {
                let addr = place(at + page * PAGE_SIZE);
                guest.touch(addr, access).map_err(|error| LabError::Access(addr, error))
            })
        })
    }

    fn dont_need(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        Ok(self.site.run(|| self.space.madvise(place(at), bytes, Advice::DontNeed))?)
    }

    fn free(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        Ok(self.site.run(|| self.space.madvise(place(at), bytes, Advice::Free))?)
    }

    fn reclaim(&mut self, _at: u64, _bytes: u64) -> Result<(), LabError> {
        let memory = self.site.machine().memory();
        while self.site.run(|| memory.reclaim(MemcgId::ROOT, self.space.figures().resident / PAGE_SIZE)) > 0 {
        }
        Ok(())
    }

    fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        Ok(self.site.run(|| self.space.munmap(place(at), bytes))?)
    }

    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Result<(), LabError> {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        self.site.run(|| self.space.mremap(place(at), bytes, bytes, flags, place(to)))?;
        Ok(())
    }

    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Result<u64, LabError> {
        let flags = RemapFlags::MAYMOVE;
        let moved = self.site.run(|| self.space.mremap(place(at), bytes, new, flags, VirtAddr(0)))?;
        Ok(moved.0.wrapping_sub(START.0))
    }

    fn sizes(&mut self) -> Result<[u64; 2], LabError> {
        let figures = self.space.figures();
        Ok([figures.page_tables / 1024, figures.resident / 1024])
    }
}
