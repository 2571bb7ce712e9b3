//! The check of each TLB hit in paranoid mode.

use crate::cpu::Owner;
use crate::machine::SharedMachine;
use crate::paranoid::{StaleHit, Staleness, describe};
use crate::tlb::TlbSlot;
use crate::walk;
use quire_arch::{Access, Entry, LeafFlags, Level, PAGE_SHIFT, PagingFormat, Pfn, VirtAddr};

/// How `slot` differs from the tables' `entry` at `level` where `access` to `addr` is concerned.
fn compare<F: PagingFormat>(
    slot: &TlbSlot,
    addr: VirtAddr,
    access: Access,
    level: Level,
    entry: Entry,
) -> Staleness {
    let Entry::Leaf(leaf) = entry else { return Staleness::NotMapped };
    if !leaf.flags.contains(LeafFlags::READ) {
        return Staleness::NotMapped;
    }
    let within = (addr.0 & (F::entry_bytes(level) - 1)) >> PAGE_SHIFT;
    if leaf.pfn.offset(within) != slot.translate(addr).0 {
        return Staleness::OtherFrame;
    }
    let permissions = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
    if !leaf.flags.contains(slot.flags & permissions) {
        return Staleness::MorePermission;
    }
    if access == Access::Write && !leaf.flags.contains(LeafFlags::DIRTY) {
        return Staleness::LostDirty;
    }
    Staleness::None
}

/// Judges the use of `slot` for `access` to `addr`; see [`paranoid`](crate::paranoid). `hit` distinguishes a
/// hit from a fill.
///
/// # Safety
///
/// The vCPU is inside, and no reference to its cache lives.
///
/// # Panics
///
/// By the first rule.
#[cold]
pub(crate) unsafe fn check<F: PagingFormat>(
    machine: &SharedMachine,
    owner: Owner<'_>,
    root: Pfn,
    slot: TlbSlot,
    hit: bool,
    addr: VirtAddr,
    access: Access,
) {
    let cpu = owner.cpu();
    let (table_level, table) = walk::peek::<F>(&machine.arena, root, addr);
    // A fill is as fresh as can be: the tables may have changed since, but no access was late.
    let staleness = if hit { compare::<F>(&slot, addr, access, table_level, table) } else { Staleness::None };
    // Pinned, so that the query stays inside whatever it calls, and the CPU acknowledges nothing.
    let frame_is_free = owner.while_inside_pinned(|| machine.is_free(slot.translate(addr).0));
    if staleness == Staleness::None && !frame_is_free {
        return;
    }
    let mail = cpu.door.mail();
    // SAFETY: inside, and the query, which could have used the cache, is over.
    let cached = unsafe { cpu.door.cache() };
    let Some(paranoia) = &mut cached.paranoia else { return };
    let report = StaleHit {
        cached: describe(&slot, cpu.id),
        root,
        addr,
        access,
        table,
        table_level,
        staleness,
        frame_is_free,
        pending: mail.requests().to_vec(),
        recent: paranoia.recent(),
    };
    assert!(!frame_is_free, "{report}");
    if !mail.requests().iter().any(|&flush| slot.is_covered_by(flush)) {
        paranoia.suspect(slot, report);
    }
}
