//! Trying what a call would return in another order, without a trace in the program's own space.
//!
//! A trial is a space of a machine of its own, so that it takes nothing of the programs' memory and counts in
//! none of their figures. It has the state that results depend on: the mappings at hand, where the program
//! break is, and what the limits leave when that which lies elsewhere is counted.

use super::args::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_HUGETLB, MAP_LOCKED, MAP_NORESERVE, MAP_POPULATE,
    MAP_SHARED, MLOCK_ONFAULT, MREMAP_FIXED, MREMAP_MAYMOVE,
};
use super::asked::Asked;
use super::failed::on_fault;
use super::overlap::meet;
use super::touch;
use crate::space::HostSpace;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, VirtAddr, VirtRange};
use quire_host::{HostConfig, Machine, Vcpu};
use quire_mm::MemoryConfig;
use quire_mm::abi::{self, CallNumber, FaultIn, NoFiles};
use quire_mm::space::{
    ExecGain, Layout, Limits, LockAll, Mapping, Overcommit, Rights, SpaceFigures, VmFlags, without_population,
};
use quire_mm::thp::HugeDisable;
use quire_trace::event::{Call, Fault};
use std::ops::Range;

/// RAM of the machine of trials: for mappings, and for what calls bring in.
const RAM: u64 = 64 << 20;

/// The machine of trials.
pub(super) struct Trials {
    machine: Machine,
    vcpu: Vcpu,
    config: MemoryConfig,
}

impl Trials {
    /// With the settings of the replay. `None` if the host has no memory for it.
    pub(super) fn new(config: MemoryConfig) -> Option<Self> {
        let machine = Machine::new(&HostConfig::with_ram(RAM), config).ok()?;
        let vcpu = machine.vcpu(0).ok()?;
        Some(Self { machine, vcpu, config })
    }

    /// What `of` finds in a space like `scene`, whose program break is at `program_break`, and what that cost
    /// beside the mappings. `None` if there is no such space.
    pub(super) fn run<R>(
        &self,
        scene: &Scene,
        program_break: u64,
        of: impl FnOnce(&Trial<'_>) -> R,
    ) -> Option<(R, u64)> {
        self.vcpu.run(|| {
            let trial = Trial::new(self, scene, program_break)?;
            let found = of(&trial);
            Some((found, trial.brought_in()))
        })
    }
}

/// Who makes a call: the limits of the process and the rights of the thread.
#[derive(Clone, Copy)]
pub(super) struct Actor {
    pub(super) limits: Limits,
    pub(super) rights: Rights,
}

/// A space, as far as the result of a call depends on it.
pub(super) struct Scene {
    layout: Layout,
    program_break: u64,
    exec_gain: ExecGain,
    huge_disable: HugeDisable,
    /// Lock flags of what will be mapped.
    locks: VmFlags,
    /// The mappings at hand.
    mappings: Vec<Mapping>,
    figures: SpaceFigures,
    /// Pages that all programs have committed.
    committed: u64,
}

impl Scene {
    /// The parts of `space` that meet one of `ranges`, of a machine with so many committed pages.
    pub(super) fn of(space: &HostSpace<'_>, ranges: &[Range<u64>], committed: u64) -> Self {
        Self {
            layout: space.layout(),
            program_break: space.program_break().0,
            exec_gain: space.prctl().exec_gain(),
            huge_disable: space.prctl().huge_disable(),
            locks: space.locks_future(),
            mappings: mappings_in(space, ranges),
            figures: space.figures(),
            committed,
        }
    }

    /// Where the program break is.
    pub(super) fn program_break(&self) -> u64 {
        self.program_break
    }

    /// How many of the mappings at hand meet `range`.
    pub(super) fn meeting(&self, range: &Range<u64>) -> u64 {
        let from = self.mappings.partition_point(|mapping| mapping.range.end().0 <= range.start);
        let to = self.mappings.partition_point(|mapping| mapping.range.start().0 < range.end);
        to.saturating_sub(from) as u64
    }

    /// How many mappings a trial gets.
    pub(super) fn mappings(&self) -> u64 {
        self.mappings.len() as u64
    }
}

/// The mappings of `space` that meet one of `ranges` or lie beside it, so that they may merge.
pub(super) fn mappings_in(space: &HostSpace<'_>, ranges: &[Range<u64>]) -> Vec<Mapping> {
    let wider = |range: &Range<u64>| range.start.saturating_sub(1)..range.end.saturating_add(1);
    let ranges: Vec<Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).map(wider).collect();
    let mut found = Vec::new();
    space.mappings().for_each(|mapping| {
        let addrs = mapping.range.start().0..mapping.range.end().0;
        if ranges.iter().any(|range| meet(range, &addrs)) {
            found.push(mapping);
        }
    });
    found
}

/// The parts of mappings inside of `range`.
fn inside(mappings: &[Mapping], range: &Range<u64>) -> Vec<Mapping> {
    let part = |mapping: &Mapping| {
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        let (from, to) = (start.max(range.start), end.min(range.end));
        let page_offset = mapping.page_offset + ((from.max(start) - start) >> PAGE_SHIFT);
        let range = || VirtRange::new(VirtAddr(from), VirtAddr(to));
        (from < to).then(|| Mapping { range: range(), page_offset, ..*mapping })
    };
    mappings.iter().filter_map(part).collect()
}

/// A space with mappings of another one and none of its pages.
pub(super) struct Trial<'m> {
    space: HostSpace<'m>,
    /// What the other one has elsewhere.
    elsewhere: SpaceFigures,
    /// Holds the pages that others have committed, where that counts.
    _others: Option<HostSpace<'m>>,
}

impl<'m> Trial<'m> {
    fn new(trials: &'m Trials, scene: &Scene, program_break: u64) -> Option<Self> {
        const UNLIMITED: Limits = Limits {
            address_space: u64::MAX,
            data: u64::MAX,
            stack: u64::MAX,
            locked: u64::MAX,
            mappings: u64::MAX,
        };
        let memory = trials.machine.memory();
        let layout = Layout { brk: VirtAddr(program_break), ..scene.layout };
        let space = memory.create_space_with(layout, UNLIMITED).ok()?;
        if !scene.mappings.iter().all(|mapping| space.install(mapping).is_ok()) {
            return None;
        }
        let (all, here) = (&scene.figures, space.figures());
        let elsewhere = SpaceFigures {
            mapped: all.mapped.saturating_sub(here.mapped),
            data: all.data.saturating_sub(here.data),
            locked: all.locked.saturating_sub(here.locked),
            mappings: all.mappings.saturating_sub(here.mappings),
            ..SpaceFigures::default()
        };
        let others = match trials.config.overcommit {
            Overcommit::Never { .. } => {
                let own = memory.spaces().commit().promised();
                Some(committed(trials, scene.committed.saturating_sub(own))?)
            }
            Overcommit::Guess { .. } | Overcommit::Always => None,
        };
        space.prctl().set_huge_disable(scene.huge_disable);
        space.prctl().set_exec_gain(scene.exec_gain).ok()?;
        if scene.locks.contains(VmFlags::LOCKED) {
            space.mlockall(LockAll::FUTURE | LockAll::ONFAULT).ok()?;
        }
        Some(Self { space, elsewhere, _others: others })
    }

    /// What is left of the limits here.
    fn limits(&self, of: &Limits) -> Limits {
        let less =
            |limit: u64, taken: u64| if limit == u64::MAX { limit } else { limit.saturating_sub(taken) };
        Limits {
            address_space: less(of.address_space, self.elsewhere.mapped),
            data: less(of.data, self.elsewhere.data),
            stack: of.stack,
            // A limit of zero refuses otherwise than one that is used up.
            locked: less(of.locked, self.elsewhere.locked).max(of.locked.min(1)),
            mappings: less(of.mappings, self.elsewhere.mappings),
        }
    }

    /// Puts back what was mapped in `ranges` before a change. Returns whether that was possible.
    pub(super) fn put_back(&self, ranges: &[Range<u64>], before: &[Mapping]) -> bool {
        ranges.iter().all(|range| {
            let len =
                range.end.min(<quire_arch::paging::X86_64Level4 as quire_arch::PagingFormat>::USER_END.0);
            let len = len.saturating_sub(range.start);
            (len == 0 || self.space.munmap(VirtAddr(range.start), len).is_ok())
                && inside(before, range).iter().all(|part| self.space.install(part).is_ok())
        })
    }

    /// Asks again what is passed. Returns whether it has its recorded result.
    pub(super) fn again(&self, asked: &Asked, by: &Actor) -> bool {
        match asked.change() {
            Some(call) => self.change(call, by),
            None => self.agrees(asked, by),
        }
    }

    /// Makes a call that took effect, where Linux made it. Returns whether it has its recorded result.
    fn change(&self, call: &Call, by: &Actor) -> bool {
        let [first, second, protection, flags, ..] = call.args;
        let result = call.result as u64;
        let raw = match i64::from(call.number) {
            libc::SYS_mmap => {
                let mut how = (flags | MAP_FIXED | MAP_ANONYMOUS)
                    & !(MAP_FIXED_NOREPLACE | MAP_POPULATE | MAP_LOCKED | MAP_HUGETLB);
                if flags & MAP_ANONYMOUS == 0 && flags & MAP_SHARED != 0 {
                    how |= MAP_NORESERVE;
                }
                let raw = self.raw(CallNumber::Mmap, [result, second, protection, how, u64::MAX, 0], by);
                if flags & MAP_LOCKED != 0 {
                    let args = [result, second, MLOCK_ONFAULT, 0, 0, 0];
                    let _ = self.raw(CallNumber::Mlock2, args, by);
                }
                raw
            }
            libc::SYS_mremap if result != first => {
                let how = flags | MREMAP_MAYMOVE | MREMAP_FIXED;
                self.raw(CallNumber::Mremap, [first, second, protection, how, result, 0], by)
            }
            _ => self.result(call, by),
        };
        raw == Some(call.result)
    }

    /// Asks what is tried. Returns whether it has its recorded result.
    pub(super) fn agrees(&self, asked: &Asked, by: &Actor) -> bool {
        match asked {
            Asked::Call(call) => self.result(call, by) == Some(call.result),
            Asked::Touch(fault) => self.refuses(fault, by),
        }
    }

    /// Whether a touch is refused as Linux refused it.
    fn refuses(&self, fault: &Fault, by: &Actor) -> bool {
        self.space.set_limits(self.limits(&by.limits));
        touch::is_refused_by(&self.space, fault)
    }

    /// The result of a call, which brings in as little as can be.
    fn result(&self, call: &Call, by: &Actor) -> Option<i64> {
        let (number, args) = on_fault(CallNumber::from_raw(call.number), call.args);
        self.raw(number, args, by)
    }

    fn raw(&self, number: CallNumber, args: [u64; 6], by: &Actor) -> Option<i64> {
        self.space.set_limits(self.limits(&by.limits));
        let space = without_population(&self.space.acting_with(by.rights));
        abi::call(&space, number, args, &NoFiles, &FaultIn(&space)).raw()
    }

    /// Pages that it has, with its tables.
    fn brought_in(&self) -> u64 {
        let figures = self.space.figures();
        (figures.resident + figures.page_tables) >> PAGE_SHIFT
    }
}

/// A space that has committed so many pages.
fn committed(trials: &Trials, pages: u64) -> Option<HostSpace<'_>> {
    let memory = trials.machine.memory();
    let space = memory.create_space().ok()?;
    if pages > 0 {
        let end = PAGE_SIZE.checked_add(pages.checked_mul(PAGE_SIZE)?)?;
        let range = VirtRange::new(VirtAddr(PAGE_SIZE), VirtAddr(end));
        let flags = VmFlags::MAY_ACCESS | VmFlags::ACCOUNT;
        space.install(&Mapping { range, flags, page_offset: 0, file: None }).ok()?;
    }
    Some(space)
}
