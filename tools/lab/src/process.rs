//! A process that makes the same calls on Quire and on the host's Linux.

use crate::crew::on_threads;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::linux::now;
use crate::report::Compared;
use crate::site::{Flushes, HostSpace, RW, START, Site, flushes_of};
use quire_arch::{Access, Order, PAGE_SIZE, VirtAddr};
use quire_host::{Machine, Program, Vcpu};
use quire_mm::{
    frame::FolioCounter,
    memcg::MemcgId,
    space::{Advice, MapFlags, MapRequest, Protection, RemapFlags},
};
use std::sync::{Mutex, PoisonError};

/// What a call took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Its time in nanoseconds.
    pub(crate) time: u64,
    /// Shootdowns that it sent.
    pub(crate) flushes: Flushes,
    /// Base pages that were to be free and were not yet when it returned.
    pub(crate) waiting: u64,
}

/// The work of a thread, which gets its number.
pub(crate) type ThreadWork<'w, E> = &'w (dyn Fn(usize, &mut dyn Process<Error = E>) -> Result<(), E> + Sync);

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
    /// Calls `work` on `threads` threads of the process at once.
    fn together(&mut self, threads: usize, work: ThreadWork<'_, Self::Error>) -> Result<(), Self::Error>;
    /// `fork`: what it took, and the nanoseconds of the exit of the child, which touched nothing.
    fn fork(&mut self) -> Result<(Cost, u64), Self::Error>;
    /// What the exit of another process with this populated memory took.
    fn exit(&mut self, bytes: u64, folios: Folios) -> Result<Cost, Self::Error>;
    /// Calls `work` while a child maps all memory, too.
    fn beside_child(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Cost, Self::Error>,
    ) -> Result<Cost, Self::Error>
    where
        Self: Sized;

    /// Base pages that are free or on the CPUs' lists. Not known of Linux.
    fn available(&self) -> u64 {
        0
    }

    /// Shootdowns so far. Not known of Linux.
    fn flushes(&self) -> Flushes {
        Flushes::default()
    }

    /// Calls `work` with the calling thread in the kernel, where each call of the process begins and ends.
    fn in_kernel<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R
    where
        Self: Sized,
    {
        work(self)
    }

    /// Calls `work`, after which `available` pages should be available.
    fn timed(
        &mut self,
        available: u64,
        work: impl FnOnce(&mut Self) -> Result<(), Self::Error>,
    ) -> Result<Cost, Self::Error>
    where
        Self: Sized,
    {
        self.in_kernel(|process| {
            let flushes = process.flushes();
            let start = now();
            work(process)?;
            let time = now() - start;
            let flushes = process.flushes().since(flushes);
            Ok(Cost { time, flushes, waiting: available.saturating_sub(process.available()) })
        })
    }
}

/// A process of Quire.
#[derive(Debug)]
pub(crate) struct Quire<'s> {
    machine: &'s Machine,
    vcpu: &'s Vcpu,
    space: &'s HostSpace<'s>,
    program: Program<'s, HostSpace<'s>>,
}

fn place(at: u64) -> VirtAddr {
    VirtAddr(START.0.wrapping_add(at))
}

impl<'s> Quire<'s> {
    /// One whose memory is `space`, on the first vCPU.
    pub(crate) fn new<T: Compared>(site: &'s Site<T>, space: &'s HostSpace<'s>) -> Self {
        Self::on(site.machine(), site.vcpu(), space)
    }

    fn on(machine: &'s Machine, vcpu: &'s Vcpu, space: &'s HostSpace<'s>) -> Self {
        Self { machine, vcpu, space, program: vcpu.program(space) }
    }

    /// Folios of `order` that faults have made so far.
    fn folios_made(&self, order: Order) -> u64 {
        self.machine.memory().frames().events().folios(order, FolioCounter::AnonFaultAlloc)
    }

    /// Replaces every PMD entry by a table, with the folios as whole as before.
    fn split_entries(&self, at: u64, bytes: u64) -> Result<(), LabError> {
        for block in (at..at + bytes).step_by(Order::PMD.bytes() as usize).map(place) {
            for protection in [Protection::READ, RW] {
                self.vcpu.run(|| self.space.mprotect(block, PAGE_SIZE, protection, false))?;
            }
        }
        Ok(())
    }
}

impl Process for Quire<'_> {
    type Error = LabError;

    fn map(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        let request = MapRequest::anonymous(bytes, RW).at(place(at), MapFlags::FIXED_NOREPLACE);
        self.vcpu.run(|| self.space.mmap(&request))?;
        Ok(())
    }

    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Result<(), LabError> {
        self.map(at, bytes)?;
        let had = self.folios_made(folios.order);
        self.touch(at, bytes, stride, Access::Write)?;
        let (wanted, got) = (folios.in_bytes(bytes), self.folios_made(folios.order) - had);
        if folios.order > Order::ZERO && got != wanted {
            return Err(LabError::OtherFolios { order: folios.order, wanted, got });
        }
        if folios.order == Order::PMD && !folios.by_pmd { self.split_entries(at, bytes) } else { Ok(()) }
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
        Ok(self.vcpu.run(|| self.space.madvise(place(at), bytes, Advice::DontNeed))?)
    }

    fn free(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        Ok(self.vcpu.run(|| self.space.madvise(place(at), bytes, Advice::Free))?)
    }

    fn reclaim(&mut self, _at: u64, _bytes: u64) -> Result<(), LabError> {
        let memory = self.machine.memory();
        while self.vcpu.run(|| memory.reclaim(MemcgId::ROOT, self.space.figures().resident / PAGE_SIZE)) > 0 {
        }
        Ok(())
    }

    fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), LabError> {
        Ok(self.vcpu.run(|| self.space.munmap(place(at), bytes))?)
    }

    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Result<(), LabError> {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        self.vcpu.run(|| self.space.mremap(place(at), bytes, bytes, flags, place(to)))?;
        Ok(())
    }

    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Result<u64, LabError> {
        let flags = RemapFlags::MAYMOVE;
        let moved = self.vcpu.run(|| self.space.mremap(place(at), bytes, new, flags, None))?;
        Ok(moved.0.wrapping_sub(START.0))
    }

    fn sizes(&mut self) -> Result<[u64; 2], LabError> {
        let figures = self.space.figures();
        Ok([figures.page_tables / 1024, figures.resident / 1024])
    }

    /// On vCPUs of their own, behind that of the process itself.
    fn together(&mut self, threads: usize, work: ThreadWork<'_, LabError>) -> Result<(), LabError> {
        let (machine, space) = (self.machine, self.space);
        let vcpus = (1..=threads).map(|number| Ok(Mutex::new(machine.vcpu(number)?)));
        let vcpus = vcpus.collect::<Result<Vec<_>, LabError>>()?;
        let worked = on_threads(threads, |thread, _| {
            let vcpu = vcpus[thread].lock().unwrap_or_else(PoisonError::into_inner);
            work(thread, &mut Quire::on(machine, &vcpu, space))
        });
        worked.into_iter().collect()
    }

    fn fork(&mut self) -> Result<(Cost, u64), LabError> {
        let available = self.available();
        self.in_kernel(|process| {
            let mut child = None;
            let cost = process.timed(0, |process| {
                child = Some(process.space.fork()?);
                Ok(())
            })?;
            let start = now();
            drop(child);
            let exit = now() - start;
            Ok((Cost { waiting: available.saturating_sub(process.available()), ..cost }, exit))
        })
    }

    fn exit(&mut self, bytes: u64, folios: Folios) -> Result<Cost, LabError> {
        let available = self.available();
        let space = self.vcpu.run(|| self.machine.memory().create_space())?;
        Quire::on(self.machine, self.vcpu, &space).populate(0, bytes, 1, folios)?;
        self.timed(available, |_| {
            drop(space);
            Ok(())
        })
    }

    fn beside_child(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Cost, LabError>,
    ) -> Result<Cost, LabError> {
        let child = self.vcpu.run(|| self.space.fork())?;
        let cost = work(self);
        self.vcpu.run(|| drop(child));
        cost
    }

    fn available(&self) -> u64 {
        let frames = self.machine.memory().frames();
        frames.reports().free_frames() + frames.reports().zone_reports().map(|zone| zone.pcp).sum::<u64>()
    }

    fn flushes(&self) -> Flushes {
        flushes_of(self.machine)
    }

    fn in_kernel<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let vcpu = self.vcpu;
        vcpu.run(|| work(self))
    }
}
