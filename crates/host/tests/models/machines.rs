//! Machines of the models, with a swap device or without, and what the models do with them.

pub(crate) use crate::harness::*;
use quire_pageout::referenced;
use quire_sync::atomic::as_one_step;

/// The last page below a border of every level of tables.
pub(crate) const ADDR: VirtAddr = VirtAddr((1 << 39) - PAGE);
/// The page before.
pub(crate) const BEFORE: VirtAddr = VirtAddr(ADDR.0 - PAGE);
/// As near to borders as `ADDR`, behind other tables of every level.
pub(crate) const ELSEWHERE: VirtAddr = VirtAddr((1 << 40) - PAGE);
/// Schedules of the models that have about a thousand steps, and of those with many more.
pub(crate) const SOME: u64 = 1500;
pub(crate) const FEW: u64 = 300;

/// An aligned place for a folio of four pages.
pub(crate) const FOUR: VirtAddr = VirtAddr((1 << 39) - 4 * PAGE);

/// Slots of the device, unless a model wants fewer.
const SLOTS: u64 = 64;

/// A model's machine that overcommits memory, and a space in it.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    cpus: usize,
    mib: u64,
    slots: u64,
    mremap: RemapTechnique,
}

/// A machine of 2 MiB with a swap device.
pub(crate) fn with_swap(cpus: usize) -> Model {
    Model { cpus, mib: 2, slots: SLOTS, mremap: RemapTechnique::default() }
}

impl Model {
    /// With a device of so many slots; with none if that is zero.
    pub(crate) fn slots(self, slots: u64) -> Self {
        Self { slots, ..self }
    }

    pub(crate) fn mib(self, mib: u64) -> Self {
        Self { mib, ..self }
    }

    pub(crate) fn mremap(self, mremap: RemapTechnique) -> Self {
        Self { mremap, ..self }
    }

    /// Checks `model` under `schedules` schedules, each with such a machine of its own.
    pub(crate) fn check(self, schedules: u64, model: impl SpaceModel) {
        check_seeded(schedules, seed_of(&model), move || self.run(&model));
    }

    /// Runs `model` with a space on this machine. In the end every slot must be free, the device can be
    /// removed, and nothing leaks.
    pub(crate) fn run(self, model: impl FnOnce(&Machine, &HostSpace<'_>)) {
        let setup = Setup::mib(self.mib).cpus(self.cpus).overcommit();
        let setup = setup.with(|memory| memory.techniques.mremap = self.mremap);
        with_spaces(&setup, |machine, [space]| {
            if self.slots > 0 {
                as_one_step(|| swap_on_ram(machine, self.slots));
            }
            model(machine, space);
        });
    }
}

/// Maps `bytes` that end behind `addr`, and writes `value` there. CPU 0 has the translation; the accessed bit
/// is clear, so that reclaim takes the page at its first look.
pub(crate) fn written(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, bytes: u64, value: u64) {
    as_one_step(|| {
        map_at(space, addr.0 + PAGE - bytes, bytes, RW);
        write(machine, 0, space, addr, value);
        let pinned = space.pin_page_fast(addr, Access::Read).expect("it is there");
        referenced(machine.memory().spaces().rmap(), pinned.pfn(), None).expect("no other thread runs");
    });
}

/// The same, and the page is on the device only.
pub(crate) fn swapped(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, bytes: u64, value: u64) {
    written(machine, space, addr, bytes, value);
    as_one_step(|| {
        let before = space.figures().swapped;
        page_out(space, addr, PAGE);
        assert_eq!(space.figures().swapped, before + PAGE, "the page is not out");
    });
}

/// Pages out what can be paged out, under the mmap lock.
pub(crate) fn page_out(space: &HostSpace<'_>, addr: VirtAddr, bytes: u64) {
    space.madvise(addr, bytes, Advice::PageOut).expect("the mapping is there");
}

/// Pages out whatever was not referenced recently, as CPU `cpu`, with no lock on any space.
pub(crate) fn reclaim(machine: &Machine, cpu: usize) {
    as_cpu(machine, cpu, || machine.memory().reclaim(MemcgId::ROOT, 1));
}

/// How often `event` was counted.
pub(crate) fn count(machine: &Machine, event: VmEvent) -> u64 {
    as_one_step(|| machine.memory().frames().events().sum(event))
}

/// What a PTE table, and what a PMD table, covers.
pub(crate) const PMD: u64 = 2 << 20;
pub(crate) const PUD: u64 = 1 << 30;

/// Moves the `bytes` that end behind `from` to where they end behind `to`.
pub(crate) fn move_end(space: &HostSpace<'_>, from: VirtAddr, to: VirtAddr, bytes: u64) {
    let start = |end: VirtAddr| VirtAddr(end.0 + PAGE - bytes);
    space.mremap(start(from), bytes, bytes, MOVE, start(to)).expect("there is memory enough");
}

/// Maps 2 MiB at `addr` that come in one folio.
pub(crate) fn map_huge(space: &HostSpace<'_>, addr: VirtAddr) {
    map_at(space, addr.0, MIB2, RW);
    space.madvise(addr, MIB2, Advice::HugePage).expect("the mapping is there");
}
