//! Splitting a folio that a program maps.

use crate::caller::Caller;
use quire_arch::{Entry, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtAddr};
use quire_fault::hold_page;
use quire_frame::SplitError;
use quire_pagetable::{Found, Tables};

pub(crate) fn split_folio<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    to: Order,
) -> Result<u64, SplitError> {
    let head = hold_mapped(caller, addr).ok_or(SplitError::NotAnonymous)?;
    let result = caller.spaces.thp().split_held(head, to, false);
    caller.spaces.memcgs().folios().release_folio(head);
    result
}

/// Takes a reference to the folio of private memory that is mapped at `addr`, and returns its first
/// frame.
fn hold_mapped<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr) -> Option<Pfn> {
    // Above lies the kernel's half of the root, which is not walked here.
    if addr >= P::Paging::USER_END {
        return None;
    }
    let _guard = caller.core.mmap_lock.read(caller.spaces.platform());
    let tables = caller.tables();
    let pin = caller.spaces.platform().pin();
    let held = match tables.lookup(addr) {
        Found::Nothing => return None,
        Found::Table(table) => {
            let locked = tables.lock(&pin, table, Level::PTE);
            match locked.get(P::Paging::index(addr, Level::PTE)) {
                Entry::Leaf(leaf) if !leaf.flags.contains(LeafFlags::SPECIAL) => {
                    hold_page(&tables, leaf.pfn)?
                }
                _ => return None,
            }
        }
        Found::Huge(slot) => {
            let locked = tables.lock_slot(&pin, slot);
            let leaf = Tables::huge_leaf(&locked, slot)?;
            if leaf.flags.contains(LeafFlags::SPECIAL) {
                return None;
            }
            hold_page(&tables, leaf.pfn)?
        }
    };
    Some(held.head())
}
