//! The software MMU: translation by TLB and tables, and program data.

mod check;
pub(crate) mod data;

use crate::counters::Event;
use crate::cpu::Owner;
use crate::machine::SharedMachine;
use crate::tlb::TlbSlot;
use crate::walk;
use core::ptr::NonNull;
use quire_arch::{Access, LeafFlags, PagingFormat, VirtAddr};

/// What a cached translation must have for an access to go through without a walk. A first write walks, since
/// the dirty bit in the tables has to be set.
#[inline]
fn cached_needs(access: Access) -> LeafFlags {
    match access {
        Access::Write => access.needs().union(LeafFlags::DIRTY),
        Access::Read | Access::Execute => access.needs(),
    }
}

/// Where the byte at `addr` is for the vCPU's program, or `None`, which is a page fault. The pointer holds
/// for the page until the vCPU polls its mailbox or leaves guest mode.
///
/// # Safety
///
/// The vCPU is inside, and no reference to its cache lives.
#[inline]
pub(crate) unsafe fn translate<F: PagingFormat>(
    machine: &SharedMachine,
    owner: Owner<'_>,
    addr: VirtAddr,
    access: Access,
) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    let cached = unsafe { owner.cpu().door.cache() };
    let (root, asid) = cached.current?;
    let (slot, hit) = match cached.tlb.lookup(asid, addr) {
        Some(slot) if slot.flags.contains(cached_needs(access)) => {
            owner.cpu().counters.add(Event::TlbHit);
            (*slot, true)
        }
        found => {
            owner.cpu().counters.add(Event::TlbMiss);
            if found.is_some() {
                // It does not allow the access, so it goes before the walk, as on a CPU.
                cached.tlb.drop_page(asid, addr);
            }
            let (level, leaf) = walk::walk::<F>(&machine.arena, root, addr, access)?;
            let slot = TlbSlot::new(asid, addr, level, F::shift(level), leaf);
            cached.tlb.insert(addr, slot);
            (slot, false)
        }
    };
    if machine.paranoid {
        // SAFETY: inside, and `cached` is not used any more.
        unsafe { check::check::<F>(machine, owner, root, slot, hit, addr, access) };
    }
    let (pfn, offset) = slot.translate(addr);
    // SAFETY: the walk made sure that the whole page lies in RAM.
    Some(unsafe { machine.arena.direct(pfn).add(offset as usize) })
}
