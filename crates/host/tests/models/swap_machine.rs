//! Machines with a swap device, and what the models of swap do with them.

use crate::common::{HostSpace, PAGE, RW, Setup, in_use, map_at, swap_on_ram};
use crate::harness::{SpaceModel, audit, check_seeded, seed_of};
pub(crate) use crate::harness::{fork, read, small_folios, write};
use quire_arch::{Access, Platform, VirtAddr};
use quire_host::{HostConfig, HostPlatform, Machine};
use quire_mm::{
    MemoryConfig,
    frame::VmEvent,
    memcg::MemcgId,
    space::{Advice, Overcommit, PinnedPage, RemapTechnique},
    swap::{DeviceId, SwapOffError},
};
use quire_sync::atomic::as_one_step;
use std::mem::ManuallyDrop;

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

/// How a machine of a model is built.
#[derive(Clone, Copy)]
pub(crate) struct Swapping {
    pub(crate) cpus: usize,
    pub(crate) mib: u64,
    pub(crate) slots: u64,
    pub(crate) mremap: RemapTechnique,
}

impl Swapping {
    pub(crate) fn on(cpus: usize) -> Self {
        Self { cpus, mib: 2, slots: SLOTS, mremap: RemapTechnique::default() }
    }

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

    /// Runs `model` with a space on this machine, and a device of RAM. In the end every slot must be free,
    /// the device can be removed, and nothing leaks.
    pub(crate) fn run(self, model: impl FnOnce(&Machine, &HostSpace<'_>)) {
        let mut config = MemoryConfig { overcommit: Overcommit::Always, ..MemoryConfig::default() };
        config.techniques.mremap = self.mremap;
        let host = HostConfig::with_ram(self.mib << 20).cpus(self.cpus);
        let machine = as_one_step(|| Setup::of(host.paranoid()).memory(config).build());
        let before = as_one_step(|| in_use(&machine));
        if self.slots > 0 {
            as_one_step(|| swap_on_ram(&machine, self.slots));
        }
        // A space whose model has failed stays: its exit may find what the failure left, and panic once more.
        let space = as_one_step(|| machine.memory().create_space().expect("there is memory enough"));
        let space = ManuallyDrop::new(space);
        model(&machine, &space);
        audit(&machine);
        as_one_step(|| drop(ManuallyDrop::into_inner(space)));
        audit(&machine);
        as_one_step(|| {
            let swap = machine.memory().swap();
            assert_eq!(swap.free_slots(), swap.total_slots(), "a slot is lost");
            let off = swap_off(&machine);
            assert!(matches!(off, Ok(()) | Err(SwapOffError::NotOn)), "{off:?}");
        });
        audit(&machine);
        assert_eq!(as_one_step(|| in_use(&machine)), before, "a page, a table or an object is lost");
    }
}

/// Removes the device.
pub(crate) fn swap_off(machine: &Machine) -> Result<(), SwapOffError> {
    machine.memory().swapoff(DeviceId::new(0).expect("the first one"), || true)
}

/// Maps `bytes` that end behind `addr`, and writes `value` there. CPU 0 has the translation; the accessed bit
/// is clear, so that reclaim takes the page at its first look.
pub(crate) fn written(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, bytes: u64, value: u64) {
    as_one_step(|| {
        map_at(space, addr.0 + PAGE - bytes, bytes, RW);
        write(machine, 0, space, addr, value);
        let pinned = space.pin_page_fast(addr, Access::Read).expect("it is there");
        machine.memory().spaces().referenced(pinned.pfn()).expect("no other thread runs");
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
    let cpu = machine.vcpu(cpu).expect("each CPU has one thread");
    cpu.run(|| machine.memory().reclaim(MemcgId::ROOT, 1));
}

/// How often `event` was counted.
pub(crate) fn count(machine: &Machine, event: VmEvent) -> u64 {
    as_one_step(|| machine.memory().frames().events().sum(event))
}

/// What a device does with a page that it has pinned.
pub(crate) fn device_writes(machine: &Machine, pinned: &PinnedPage<'_, HostPlatform>, value: u64) {
    // SAFETY: the page is pinned, so it is a page of a program, whose first word this is.
    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().write_volatile(value) };
}

pub(crate) fn device_reads(machine: &Machine, pinned: &PinnedPage<'_, HostPlatform>) -> u64 {
    // SAFETY: as above.
    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().read_volatile() }
}
