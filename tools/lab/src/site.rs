//! A machine on which programs' mappings are made and removed.

use crate::error::LabError;
use crate::folios::Folios;
use crate::host_memory::check_available;
use crate::report::Compared;
use quire_arch::{Order, VirtAddr};
use quire_host::{HostConfig, HostPlatform, Machine, Vcpu};
use quire_mm::{
    InUse, MemoryConfig,
    frame::VmEvent,
    internals::FlushCause,
    space::{Overcommit, Protection, Space},
    thp::HugeConfig,
};

pub(crate) const RW: Protection = Protection::READ.union(Protection::WRITE);

/// Where memory is mapped: a border of every level of tables, with nothing near.
pub(crate) const START: VirtAddr = VirtAddr(1 << 39);

/// RAM in addition to what programs populate: tables, a child's tables, the memory map, lists and
/// watermarks.
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

/// RAM of a machine for programs that populate `bytes`: its host memory. A 64th is the memory map, and tables
/// take a 512th for each process that maps it.
pub(crate) fn ram_for(bytes: u64) -> u64 {
    (bytes + bytes / 8 + SPARE).next_multiple_of(Order::MAX.bytes())
}

impl<T: Compared> Site<T> {
    /// A machine with enough memory for programs that populate `bytes`, under `technique`.
    pub(crate) fn new(technique: T, bytes: u64, cpus: usize, huge: HugeConfig) -> Result<Self, LabError> {
        let ram = ram_for(bytes);
        check_available(ram)?;
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

    /// Shootdowns so far.
    pub(crate) fn flushes(&self) -> Flushes {
        flushes_of(&self.machine)
    }

    /// Ends an experiment that freed what it took. Returns what is not as it was, or should be.
    pub(crate) fn findings(&self) -> Vec<String> {
        findings_of(&self.machine, self.in_use, self.run(|| self.machine.memory().in_use()))
    }
}

/// What is wrong on a machine of which `before` was in use, and is again.
pub(crate) fn findings_of(machine: &Machine, before: InUse, now: InUse) -> Vec<String> {
    let mut findings: Vec<String> = machine.audit().iter().map(ToString::to_string).collect();
    if now != before {
        findings.push(format!("before it {before:?}, after it {now:?}"));
    }
    findings
}

/// Shootdowns on `machine` so far.
pub(crate) fn flushes_of(machine: &Machine) -> Flushes {
    let events = machine.memory().frames().events();
    let sum = |counter: fn(FlushCause) -> VmEvent| {
        core::array::from_fn(|cause| events.sum(counter(FlushCause::ALL[cause])))
    };
    Flushes { shootdowns: sum(FlushCause::shootdowns), interrupts: sum(FlushCause::interrupts) }
}
