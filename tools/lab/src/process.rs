//! A process that makes the same calls on Quire and on the host's Linux.

use crate::clock::now;
use crate::crew::on_threads;
use crate::error::{Done, LabError};
use crate::folios::{Folios, pages};
use crate::patterns::Patterns;
use crate::rounds::RoundFigures;
use crate::site::{Flushes, HostSpace, RW, START, Site, page_at};
use core::ops::Range;
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

/// Some calls of a process.
pub(crate) type Calls<'c> = &'c mut dyn FnMut(&mut dyn Process) -> Done;
/// The work of a thread, which gets its number.
pub(crate) type ThreadWork<'w> = &'w (dyn Fn(usize, &mut dyn Process) -> Done + Sync);

/// The work of a process in rounds, the same for Quire and for Linux: does a round and returns its figures.
pub(crate) trait Job: FnMut(&mut dyn Process) -> Done<RoundFigures> {}
impl<F: FnMut(&mut dyn Process) -> Done<RoundFigures>> Job for F {}

/// The calls and accesses of a process. Places are bytes from the start of its area: a border of PUD entries,
/// with nothing mapped near it but its own.
pub(crate) trait Process {
    /// Maps `bytes` of private memory at `at`, where nothing is mapped.
    fn map(&mut self, at: u64, bytes: u64) -> Done;
    /// The same of shared memory, which a child has, too.
    fn share(&mut self, at: u64, bytes: u64) -> Done;
    /// Maps them and writes to every `stride`th page, in `folios`, of which each is written to.
    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Done;
    /// Accesses every `stride`th page.
    fn touch(&mut self, at: u64, bytes: u64, stride: u64, access: Access) -> Done;
    /// Fills pages of mapped memory, in `folios`.
    fn fill(&mut self, pages: Range<u64>, folios: Folios, patterns: &Patterns) -> Done;
    /// Reads a word of each of these pages, and returns how many are not what was filled in.
    fn wrong(&mut self, pages: Range<u64>, patterns: &Patterns) -> Done<u64>;
    /// `madvise` with `DONTNEED`, `FREE`, `PAGEOUT` or `REMOVE`.
    fn advise(&mut self, at: u64, bytes: u64, advice: Advice) -> Done;
    /// Reclaims everything that can be reclaimed, at least in this range.
    fn reclaim(&mut self, at: u64, bytes: u64) -> Done;
    /// `munmap`.
    fn unmap(&mut self, at: u64, bytes: u64) -> Done;
    /// `mremap` to that place.
    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Done;
    /// `mremap` to another size, at any free address. Returns the place.
    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Done<u64>;
    /// Page tables (`VmPTE`) and resident memory (`VmRSS`) in KiB.
    fn sizes(&mut self) -> Done<[u64; 2]>;
    /// Calls `work` on `threads` threads of the process at once.
    fn together(&mut self, threads: usize, work: ThreadWork<'_>) -> Done;
    /// `fork`: what it took, and the nanoseconds of the exit of the child, which touched nothing.
    fn fork(&mut self) -> Done<(Cost, u64)>;
    /// What the exit of another process with this populated memory took.
    fn exit(&mut self, bytes: u64, folios: Folios) -> Done<Cost>;
    /// What a child takes that reads and writes each of these pages, from its fork until it has exited.
    fn client(&mut self, at: u64, bytes: u64) -> Done<u64>;
    /// Calls `work` while a child maps all memory, too.
    fn beside_child(&mut self, work: Calls<'_>) -> Done;
    /// Calls `work` with the calling thread in the kernel, where each call of the process begins and ends.
    fn in_kernel(&mut self, work: Calls<'_>) -> Done;

    /// Base pages that are free or on the CPUs' lists. Not known of Linux.
    fn available(&self) -> u64 {
        0
    }

    /// Shootdowns so far. Not known of Linux.
    fn flushes(&self) -> Flushes {
        Flushes::default()
    }
}

/// Calls `work`, after which `available` pages should be available.
pub(crate) fn cost_of(process: &mut dyn Process, available: u64, work: Calls<'_>) -> Done<Cost> {
    let mut cost = Cost::default();
    process.in_kernel(&mut |process| {
        let flushes = process.flushes();
        let start = now();
        work(process)?;
        cost.time = now() - start;
        cost.flushes = process.flushes().since(flushes);
        cost.waiting = available.saturating_sub(process.available());
        Ok(())
    })?;
    Ok(cost)
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
    pub(crate) fn new(site: &'s Site, space: &'s HostSpace<'s>) -> Self {
        Self::on(&site.machine, &site.vcpu, space)
    }

    fn on(machine: &'s Machine, vcpu: &'s Vcpu, space: &'s HostSpace<'s>) -> Self {
        Self { machine, vcpu, space, program: vcpu.program(space) }
    }

    /// Folios of `order` that faults have made so far.
    fn folios_made(&self, order: Order) -> u64 {
        self.machine.memory().frames().events().folios(order, FolioCounter::AnonFaultAlloc)
    }

    /// Replaces every PMD entry by a table, with the folios left whole.
    fn split_entries(&self, at: u64, bytes: u64) -> Done {
        for block in (at..at + bytes).step_by(Order::PMD.bytes() as usize).map(place) {
            for protection in [Protection::READ, RW] {
                self.vcpu.run(|| self.space.mprotect(block, PAGE_SIZE, protection, false))?;
            }
        }
        Ok(())
    }
}

impl Process for Quire<'_> {
    fn map(&mut self, at: u64, bytes: u64) -> Done {
        let request = MapRequest::anonymous(bytes, RW).at(place(at), MapFlags::FIXED_NOREPLACE);
        Ok(self.vcpu.run(|| self.space.mmap(&request)).map(|_| ())?)
    }

    fn share(&mut self, at: u64, bytes: u64) -> Done {
        let flags = MapFlags::FIXED_NOREPLACE | MapFlags::SHARED;
        let request = MapRequest::anonymous(bytes, RW).at(place(at), flags);
        Ok(self.vcpu.run(|| self.space.mmap(&request)).map(|_| ())?)
    }

    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Done {
        self.map(at, bytes)?;
        let had = self.folios_made(folios.order);
        self.touch(at, bytes, stride, Access::Write)?;
        let (wanted, got) = (folios.in_bytes(bytes), self.folios_made(folios.order) - had);
        if folios.order > Order::ZERO && got != wanted {
            return Err(LabError::OtherFolios(folios.order, wanted, got));
        }
        if folios.order == Order::PMD && !folios.by_pmd { self.split_entries(at, bytes) } else { Ok(()) }
    }

    fn touch(&mut self, at: u64, bytes: u64, stride: u64, access: Access) -> Done {
        self.program.inside(|guest| {
            (0..pages(bytes)).step_by(stride as usize).try_for_each(|page| {
                let addr = place(at + page * PAGE_SIZE);
                guest.touch(addr, access).map_err(|error| LabError::Access(addr, error))
            })
        })
    }

    fn fill(&mut self, pages: Range<u64>, _folios: Folios, patterns: &Patterns) -> Done {
        self.program.inside(|guest| {
            for page in pages {
                let (addr, word) = (page_at(page), patterns.first_word(page));
                let written = patterns.page(page).map_or(Ok(()), |bytes| guest.write(addr, bytes));
                let written = written.and_then(|()| guest.write_u64(addr, word));
                written.map_err(|error| LabError::Access(addr, error))?;
            }
            Ok(())
        })
    }

    fn wrong(&mut self, pages: Range<u64>, patterns: &Patterns) -> Done<u64> {
        self.program.inside(|guest| {
            let mut wrong = 0;
            for page in pages {
                let addr = page_at(page);
                let word = guest.read_u64(addr).map_err(|error| LabError::Access(addr, error))?;
                wrong += u64::from(word != patterns.first_word(page));
            }
            Ok(wrong)
        })
    }

    fn advise(&mut self, at: u64, bytes: u64, advice: Advice) -> Done {
        Ok(self.vcpu.run(|| self.space.madvise(place(at), bytes, advice))?)
    }

    fn reclaim(&mut self, _at: u64, _bytes: u64) -> Done {
        let memory = self.machine.memory();
        let resident = || self.space.figures().resident / PAGE_SIZE;
        while self.vcpu.run(|| memory.reclaim(MemcgId::ROOT, resident())) > 0 {}
        Ok(())
    }

    fn unmap(&mut self, at: u64, bytes: u64) -> Done {
        Ok(self.vcpu.run(|| self.space.munmap(place(at), bytes))?)
    }

    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Done {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let moved = self.vcpu.run(|| self.space.mremap(place(at), bytes, bytes, flags, place(to)));
        Ok(moved.map(|_| ())?)
    }

    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Done<u64> {
        let flags = RemapFlags::MAYMOVE;
        let moved = self.vcpu.run(|| self.space.mremap(place(at), bytes, new, flags, None))?;
        Ok(moved.0.wrapping_sub(START.0))
    }

    fn sizes(&mut self) -> Done<[u64; 2]> {
        let figures = self.space.figures();
        Ok([figures.page_tables / 1024, figures.resident / 1024])
    }

    /// On vCPUs of their own, behind that of the process itself.
    fn together(&mut self, threads: usize, work: ThreadWork<'_>) -> Done {
        let (machine, space) = (self.machine, self.space);
        let vcpus = (1..=threads).map(|number| Ok(Mutex::new(machine.vcpu(number)?)));
        let vcpus = vcpus.collect::<Done<Vec<_>>>()?;
        let worked = on_threads(threads, |thread, _| {
            let vcpu = vcpus[thread].lock().unwrap_or_else(PoisonError::into_inner);
            work(thread, &mut Quire::on(machine, &vcpu, space))
        });
        worked.into_iter().collect()
    }

    fn fork(&mut self) -> Done<(Cost, u64)> {
        let (space, available) = (self.space, self.available());
        let (mut cost, mut exit) = (Cost::default(), 0);
        self.in_kernel(&mut |process| {
            let mut child = None;
            cost = cost_of(process, 0, &mut |_| {
                child = Some(space.fork()?);
                Ok(())
            })?;
            let start = now();
            drop(child);
            exit = now() - start;
            cost.waiting = available.saturating_sub(process.available());
            Ok(())
        })?;
        Ok((cost, exit))
    }

    fn exit(&mut self, bytes: u64, folios: Folios) -> Done<Cost> {
        let available = self.available();
        let space = self.vcpu.run(|| self.machine.memory().create_space())?;
        Quire::on(self.machine, self.vcpu, &space).populate(0, bytes, 1, folios)?;
        let mut space = Some(space);
        cost_of(self, available, &mut |_| {
            drop(space.take());
            Ok(())
        })
    }

    fn client(&mut self, at: u64, bytes: u64) -> Done<u64> {
        let start = now();
        let child = self.vcpu.run(|| self.space.fork())?;
        Quire::on(self.machine, self.vcpu, &child).touch(at, bytes, 1, Access::Write)?;
        self.vcpu.run(|| drop(child));
        Ok(now() - start)
    }

    fn beside_child(&mut self, work: Calls<'_>) -> Done {
        let child = self.vcpu.run(|| self.space.fork())?;
        let worked = work(self);
        self.vcpu.run(|| drop(child));
        worked
    }

    fn in_kernel(&mut self, work: Calls<'_>) -> Done {
        let vcpu = self.vcpu;
        vcpu.run(|| work(self))
    }

    fn available(&self) -> u64 {
        let frames = self.machine.memory().frames();
        frames.reports().free_frames() + frames.reports().zone_reports().map(|zone| zone.pcp).sum::<u64>()
    }

    fn flushes(&self) -> Flushes {
        Flushes::of(self.machine)
    }
}
