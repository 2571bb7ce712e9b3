//! Machines, places and helpers of the models of page tables.

use crate::machines::*;
use quire_frame::Kind;
use quire_sync::atomic::as_one_step;

/// The last page below a border of every level of tables. What a table of the top level covers begins above
/// the addresses that only privileged callers may map.
pub(crate) const ADDR: VirtAddr = VirtAddr((2 << 39) - PAGE);
/// The page before.
pub(crate) const BEFORE: VirtAddr = VirtAddr(ADDR.0 - PAGE);
/// As near to borders as `ADDR`, behind other tables of every level.
pub(crate) const ELSEWHERE: VirtAddr = VirtAddr((3 << 39) - PAGE);
/// Schedules of models with PMD leaves: each split is a thousand steps.
pub(crate) const FEW: u64 = 600;
/// Of the others: there are many.
pub(crate) const SOME: u64 = 2000;

/// A small machine without swap, and a space in it: tables cover much, so memory is overcommitted.
pub(crate) fn roomy(cpus: usize) -> Model {
    with_swap(cpus).slots(0).mib(1)
}

/// The same with memory for a few folios of 2 MiB.
pub(crate) fn roomy_with_leaves(mremap: RemapTechnique) -> Model {
    roomy(2).mib(8).mremap(mremap)
}

/// Drops the contents of the PTE table of `addr`, of its PMD table, or of its PUD table: the call covers all
/// of it.
pub(crate) fn drop_all(space: &HostSpace<'_>, addr: VirtAddr, bytes: u64) {
    space.madvise(VirtAddr(addr.0 & !(bytes - 1)), bytes, Advice::DontNeed).expect("cannot fail");
}

/// Maps `bytes` that end behind `addr`, and writes `value` there: the mapping has its anon_vma, so a fault
/// takes no mmap lock.
pub(crate) fn written(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, bytes: u64, value: u64) {
    as_one_step(|| {
        map_at(space, addr.0 + PAGE - bytes, bytes, RW);
        write(machine, 0, space, addr, value);
    });
}

/// Frees what waits for an epoch that has passed.
pub(crate) fn reap(machine: &Machine) {
    let pin = machine.memory().platform().pin();
    machine.memory().frames().limbo().reap_all(&pin);
}

/// The only private page of the machine.
pub(crate) fn private_page(machine: &Machine) -> Pfn {
    let mut found = None;
    as_one_step(|| {
        machine.memory().frames().audit().for_each_frame(|pfn, frame| {
            if frame.kind() == Kind::Anonymous {
                found = Some(pfn);
            }
        });
    });
    found.expect("a page was written to")
}
