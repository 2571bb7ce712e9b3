//! A machine on which programs' mappings are made and removed.

use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::report::Compared;
use quire_arch::{Order, PAGE_SIZE, VirtAddr};
use quire_host::{HostConfig, HostPlatform, Machine, Vcpu};
use quire_mm::{
    FlushCause, FolioCounter, HugeConfig, InUse, MapFlags, MapRequest, MemoryConfig, Overcommit, Protection,
    Space, VmEvent,
};

pub(crate) const RW: Protection = Protection::READ.union(Protection::WRITE);

/// Where memory is mapped: a border of every level of tables, with nothing near.
pub(crate) const START: VirtAddr = VirtAddr(1 << 39);

/// RAM beside what programs populate: tables, a child's tables, the memory map, lists and watermarks.
const SPARE: u64 = 64 << 20;

pub(crate) type HostSpace<'m> = Space<'m, HostPlatform>;

/// A machine under one strategy, with the handle of its first vCPU; it can give out the others.
#[derive(Debug)]
pub(crate) struct Site<T> {
    pub(crate) technique: T,
    machine: Machine,
    vcpu: Vcpu,
    /// What was in use at the start.
    in_use: InUse,
}

/// Shootdowns, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flushes {
    /// How many, in the order of [`FlushCause::ALL`].
    pub(crate) shootdowns: [u64; FlushCause::ALL.len()],
    /// CPUs that were interrupted for them.
    pub(crate) interrupts: [u64; FlushCause::ALL.len()],
}

impl Flushes {
    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let zip = |own: [u64; _], other: [u64; _]| core::array::from_fn(|nth| f(own[nth], other[nth]));
        Self {
            shootdowns: zip(self.shootdowns, other.shootdowns),
            interrupts: zip(self.interrupts, other.interrupts),
        }
    }

    /// What happened since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        self.zip(before, |now, before| now - before)
    }

    /// Both together.
    pub(crate) fn plus(self, more: Self) -> Self {
        self.zip(more, |own, more| own + more)
    }
}

impl<T: Compared> Site<T> {
    /// A machine with enough memory for programs that populate `bytes`, under `technique`.
    pub(crate) fn new(technique: T, bytes: u64, cpus: usize, huge: HugeConfig) -> Result<Self, LabError> {
        // A 64th of RAM is the memory map, and tables take a 512th for each process that maps it.
        let ram = (bytes + bytes / 8 + SPARE).next_multiple_of(Order::MAX.bytes());
        let host = HostConfig { large_pages: true, prefault: true, ..HostConfig::with_ram(ram).cpus(cpus) };
        let techniques = technique.techniques();
        let config =
            MemoryConfig { techniques, huge, overcommit: Overcommit::Always, ..MemoryConfig::default() };
        let machine = Machine::new(&host, config)?;
        let vcpu = machine.vcpu(0)?;
        let in_use = vcpu.run(|| machine.memory().in_use());
        Ok(Self { technique, machine, vcpu, in_use })
    }

    /// One for each strategy.
    pub(crate) fn for_each_strategy(bytes: u64, cpus: usize, folios: Folios) -> Result<Vec<Self>, LabError> {
        T::ALL.iter().map(|&technique| Self::new(technique, bytes, cpus, folios.config())).collect()
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The first vCPU.
    pub(crate) fn vcpu(&self) -> &Vcpu {
        &self.vcpu
    }

    /// Does kernel work on the first vCPU.
    pub(crate) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        self.vcpu.run(work)
    }

    /// A new, empty space.
    pub(crate) fn space(&self) -> Result<HostSpace<'_>, LabError> {
        Ok(self.run(|| self.machine.memory().create_space())?)
    }

    /// Maps `bytes` at [`START`] and writes to each page. Fails if the memory does not come in `folios`.
    pub(crate) fn populate(&self, space: &HostSpace<'_>, bytes: u64, folios: Folios) -> Result<(), LabError> {
        let request = MapRequest::anonymous(bytes, RW).at(START, MapFlags::FIXED_NOREPLACE);
        let had = self.folios_made(folios.order);
        self.run(|| space.mmap(&request))?;
        self.write(space, bytes)?;
        if folios.order > Order::ZERO {
            let (wanted, got) = (folios.in_bytes(bytes), self.folios_made(folios.order) - had);
            if got != wanted {
                return Err(LabError::OtherFolios { order: folios.order, wanted, got });
            }
            if folios.order == Order::PMD && !folios.by_pmd {
                self.split_entries(space, bytes)?;
            }
        }
        Ok(())
    }

    /// Folios of `order` that faults have made so far.
    pub(crate) fn folios_made(&self, order: Order) -> u64 {
        self.machine.memory().frames().events().folios(order, FolioCounter::AnonFaultAlloc)
    }

    /// Writes to each page of what is mapped at [`START`].
    pub(crate) fn write(&self, space: &HostSpace<'_>, bytes: u64) -> Result<(), LabError> {
        self.vcpu.program(space).inside(|guest| {
            (0..pages(bytes)).try_for_each(|page| {
                let addr = VirtAddr(START.0 + page * PAGE_SIZE);
                guest.write_u64(addr, page).map_err(|error| LabError::Access(addr, error))
            })
        })
    }

    /// Replaces every PMD entry by a table, with the folios as whole as before.
    fn split_entries(&self, space: &HostSpace<'_>, bytes: u64) -> Result<(), LabError> {
        let blocks = (0..bytes / Order::PMD.bytes()).map(|nth| VirtAddr(START.0 + nth * Order::PMD.bytes()));
        for block in blocks {
            for protection in [Protection::READ, RW] {
                self.run(|| space.mprotect(block, PAGE_SIZE, protection, false))?;
            }
        }
        Ok(())
    }

    /// Shootdowns so far.
    pub(crate) fn flushes(&self) -> Flushes {
        flushes_of(&self.machine)
    }

    /// Base pages that are free or on the CPUs' lists.
    pub(crate) fn available(&self) -> u64 {
        let frames = self.machine.memory().frames();
        frames.free_frames() + frames.zone_reports().map(|zone| zone.pcp).sum::<u64>()
    }

    /// Ends an experiment that freed what it took. Returns what is not as it was, or should be.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let mut findings: Vec<String> = self.machine.audit().iter().map(ToString::to_string).collect();
        let now = self.run(|| self.machine.memory().in_use());
        if now != self.in_use {
            findings.push(format!("before it {:?}, after it {now:?}", self.in_use));
        }
        let technique = self.technique.name();
        findings.into_iter().map(move |finding| format!("{technique}: {finding}"))
    }
}

/// Shootdowns on `machine` so far.
pub(crate) fn flushes_of(machine: &Machine) -> Flushes {
    let events = machine.memory().frames().events();
    let sum = |counter: fn(FlushCause) -> VmEvent| {
        core::array::from_fn(|cause| events.sum(counter(FlushCause::ALL[cause])))
    };
    Flushes { shootdowns: sum(FlushCause::shootdowns), interrupts: sum(FlushCause::interrupts) }
}
