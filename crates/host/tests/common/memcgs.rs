//! Memcgs of a machine, and the programs in them.

use super::*;

/// A memcg with limits in pages.
pub(crate) fn memcg(machine: &Machine, name: &str, limits: &[(Limit, u64)]) -> MemcgId {
    let memcg = machine.memory().memcgs().lifecycle().create(MemcgId::ROOT, name).expect("memory");
    limits.iter().for_each(|&(limit, pages)| set_limit(machine, memcg, limit, pages));
    memcg
}

pub(crate) fn set_limit(machine: &Machine, memcg: MemcgId, limit: Limit, pages: u64) {
    let _ = machine.memory().memcgs().files().set(memcg, limit, Some(pages * PAGE)).expect("a limit");
}

/// A space for the programs of a memcg. Before it exits the machine is audited.
pub(crate) fn space_in<'m>(machine: &'m Machine, memcg: MemcgId) -> HostSpace<'m> {
    let space = create_space(machine).audited(machine);
    space.set_memcg(memcg).expect("it is there");
    space
}

/// CPU 0, a memcg with limits in pages, and [a space in it](space_in).
pub(crate) fn in_memcg<'m>(
    machine: &'m Machine,
    name: &str,
    limits: &[(Limit, u64)],
) -> (Vcpu, MemcgId, HostSpace<'m>) {
    let memcg = memcg(machine, name, limits);
    (machine.vcpu(0).expect("the CPU is free"), memcg, space_in(machine, memcg))
}

/// Pages charged, without the stock of the CPUs.
pub(crate) fn usage(machine: &Machine, memcg: MemcgId) -> u64 {
    let charges = machine.memory().memcgs().charges();
    charges.drain_stocks(&machine.memory().platform().pin());
    charges.usage(memcg)
}

/// Slots charged.
pub(crate) fn swap_usage(machine: &Machine, memcg: MemcgId) -> u64 {
    machine.memory().memcgs().charges().swap_usage(memcg)
}

/// How often `event` was counted in `memcg` and below it.
pub(crate) fn events(machine: &Machine, memcg: MemcgId, event: MemcgEvent) -> u64 {
    machine.memory().memcgs().counters().events(memcg, event)
}
