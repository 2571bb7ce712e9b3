//! A machine on which programs' mappings are made and removed.

use crate::error::{Done, LabError};
use crate::folios::Folios;
use crate::host_memory::check_available;
use quire_arch::{Order, PAGE_SIZE, Platform, VirtAddr};
use quire_host::{HostConfig, HostPlatform, Machine, Vcpu};
use quire_mm::{
    InUse, MemoryConfig, Techniques,
    frame::VmEvent,
    internals::FlushCause,
    memcg::{Limit, MemcgId},
    space::{Overcommit, Protection, Space},
    swap::{SwapDevice, SwapOnOptions, SwapReport},
};

pub(crate) const RW: Protection = Protection::READ.union(Protection::WRITE);

/// Where memory is mapped: a border of every level of tables, with nothing near.
pub(crate) const START: VirtAddr = VirtAddr(1 << 39);

/// The place of a page.
pub(crate) fn page_at(page: u64) -> VirtAddr {
    VirtAddr(START.0 + page * PAGE_SIZE)
}

/// RAM in addition to what programs populate: tables, a child's tables, the memory map, lists and
/// watermarks.
const SPARE: u64 = 64 << 20;

pub(crate) type HostSpace<'m> = Space<'m, HostPlatform>;

/// RAM of a machine for programs that populate `bytes`: its host memory. A 64th is the memory map, and tables
/// take a 512th for each process that maps it.
pub(crate) fn ram_for(bytes: u64) -> u64 {
    (bytes + bytes / 8 + SPARE).next_multiple_of(Order::MAX.bytes())
}

/// A count for each of [`FlushCause::ALL`].
type ByCause = [u64; FlushCause::ALL.len()];

/// Shootdowns, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flushes {
    pub(crate) shootdowns: ByCause,
    /// CPUs that were interrupted for them.
    pub(crate) interrupts: ByCause,
}

impl Flushes {
    /// Those on `machine` so far.
    pub(crate) fn of(machine: &Machine) -> Self {
        let events = machine.memory().frames().events();
        let sum = |counter: fn(FlushCause) -> VmEvent| {
            core::array::from_fn(|cause| events.sum(counter(FlushCause::ALL[cause])))
        };
        Self { shootdowns: sum(FlushCause::shootdowns), interrupts: sum(FlushCause::interrupts) }
    }

    /// What happened since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let less = |now: ByCause, before: ByCause| core::array::from_fn(|nth| now[nth] - before[nth]);
        Self {
            shootdowns: less(self.shootdowns, before.shootdowns),
            interrupts: less(self.interrupts, before.interrupts),
        }
    }
}

/// A machine under one strategy, with the handle of its first vCPU; it can give out the others.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) machine: Machine,
    pub(crate) vcpu: Vcpu,
    /// What was in use at the start.
    in_use: InUse,
}

/// The memcg of a program whose memory is limited.
const LIMITED: &str = "limited";

impl Site {
    /// A machine with enough memory for programs that populate `bytes`.
    pub(crate) fn new(techniques: Techniques, bytes: u64, cpus: usize, folios: Folios) -> Done<Self> {
        let ram = ram_for(bytes);
        check_available(ram)?;
        let host = HostConfig { large_pages: true, prefault: true, ..HostConfig::with_ram(ram).cpus(cpus) };
        let config = MemoryConfig {
            techniques,
            huge: folios.config(),
            overcommit: Overcommit::Always,
            ..MemoryConfig::default()
        };
        let machine = Machine::new(&host, config)?;
        let vcpu = machine.vcpu(0)?;
        let in_use = vcpu.run(|| machine.memory().in_use());
        Ok(Self { machine, vcpu, in_use })
    }

    /// The same with the swap device that `make` makes.
    pub(crate) fn with_swap<D: SwapDevice<HostPlatform>>(
        self,
        make: impl FnOnce(&Machine) -> Done<D>,
    ) -> Done<Self> {
        self.run(|| {
            let made = make(&self.machine)?;
            self.machine.memory().swapon(made, SwapOnOptions::default()).map_err(LabError::SwapOn)
        })?;
        Ok(self)
    }

    /// Does kernel work on the first vCPU.
    pub(crate) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        self.vcpu.run(work)
    }

    /// A new, empty space.
    pub(crate) fn space(&self) -> Done<HostSpace<'_>> {
        Ok(self.run(|| self.machine.memory().create_space())?)
    }

    /// Limits the memory of a space to which nothing is charged yet.
    pub(crate) fn limit(&self, space: &HostSpace<'_>, bytes: u64) -> Done {
        self.run(|| {
            let memcgs = self.machine.memory().memcgs();
            let memcg = memcgs.lifecycle().create(MemcgId::ROOT, LIMITED).map_err(LabError::Memcg)?;
            let _ = memcgs.files().set(memcg, Limit::Max, Some(bytes)).map_err(LabError::Memcg)?;
            space.set_memcg(memcg).map_err(LabError::Memcg)
        })
    }

    /// The figures of the swap device, if it has one.
    pub(crate) fn swap(&self) -> Option<SwapReport> {
        self.run(|| self.machine.memory().swap().devices().reports().next())
    }

    /// Returns what is not as it was, or should be, where everything was freed.
    pub(crate) fn findings(&self) -> Vec<String> {
        findings_of(&self.machine, self.in_use, self.run(|| self.machine.memory().in_use()))
    }

    /// Ends the experiment, after all spaces have exited. Returns what is wrong.
    pub(crate) fn end(self) -> Vec<String> {
        let memory = self.machine.memory();
        let mut findings = Vec::new();
        if let Some(device) = self.swap()
            && let Err(error) = self.run(|| memory.swapoff(device.id, || true))
        {
            findings.push(format!("swapoff: {error}"));
        }
        if let Some(memcg) = memory.memcgs().tree().find(&format!("/{LIMITED}")) {
            // A space that has exited drops its memcg when no reader can have it any more.
            self.run(|| memory.frames().limbo().reap_all(&memory.platform().pin()));
            if let Err(error) = self.run(|| memory.memcgs().lifecycle().remove(memcg)) {
                findings.push(format!("the memcg: {error}"));
            }
            // A look may have to leave the end of the memcg to the next one.
            (0..4).for_each(|_| self.run(|| memory.memcgs().lifecycle().sweep()));
        }
        findings.extend(self.findings());
        findings
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
