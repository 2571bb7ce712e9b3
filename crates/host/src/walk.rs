//! Walks of the page tables, as the hardware does them: without locks, setting accessed and dirty bits.

use crate::arena::Arena;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, VirtAddr};
use std::sync::atomic::Ordering;

/// The leaf for `addr` and its level, with its accessed bit (and its dirty bit, for a write) set in the
/// tables; or `None`, which is a page fault. Programs run in user mode: there is nothing for them in the
/// kernel's half.
///
/// # Panics
///
/// When the tables are corrupt: a table or a page outside RAM, a leaf at a level or at an alignment that the
/// format does not have.
pub(crate) fn walk<F: PagingFormat>(
    arena: &Arena,
    root: Pfn,
    addr: VirtAddr,
    access: Access,
) -> Option<(Level, Leaf)> {
    let (mut table, mut level) = (root, F::root_level());
    if addr >= F::USER_END {
        return None;
    }
    let (mark, marked) = match access {
        Access::Write => (F::ACCESSED | F::DIRTY, LeafFlags::ACCESSED | LeafFlags::DIRTY),
        Access::Read | Access::Execute => (F::ACCESSED, LeafFlags::ACCESSED),
    };
    loop {
        let entry = arena.entry(table, F::index(addr, level));
        // Acquire pairs with the release by which the memory manager publishes an entry: a table is reached
        // only after it was filled.
        let mut raw = entry.load(Ordering::Acquire);
        loop {
            match F::decode(raw, level) {
                Entry::Table(next) => {
                    table = next;
                    break;
                }
                Entry::Leaf(leaf) if leaf.flags.contains(access.needs()) => {
                    // The bits go into the very value that was checked: if anything changed meanwhile, it is
                    // checked again.
                    if raw & mark != mark
                        && let Err(now) =
                            entry.compare_exchange(raw, raw | mark, Ordering::AcqRel, Ordering::Acquire)
                    {
                        raw = now;
                        continue;
                    }
                    let frames = F::entry_bytes(level) >> quire_arch::PAGE_SHIFT;
                    assert!(
                        F::leaf_allowed(level)
                            && leaf.pfn.0 & (frames - 1) == 0
                            && arena.contains(leaf.pfn, frames),
                        "the page tables map {addr:?} to a page that cannot be: {leaf:?} at {level:?}"
                    );
                    return Some((level, Leaf { pfn: leaf.pfn, flags: leaf.flags | marked }));
                }
                _ => return None,
            }
        }
        level = level.down()?;
    }
}

/// What the tables hold for `addr`, and at which level, with nothing changed.
pub(crate) fn peek<F: PagingFormat>(arena: &Arena, root: Pfn, addr: VirtAddr) -> (Level, Entry) {
    let (mut table, mut level) = (root, F::root_level());
    if addr >= F::USER_END {
        return (level, Entry::None);
    }
    loop {
        // Acquire as in `walk`.
        let raw = arena.entry(table, F::index(addr, level)).load(Ordering::Acquire);
        match (F::decode(raw, level), level.down()) {
            (Entry::Table(next), Some(below)) => (table, level) = (next, below),
            (entry, _) => return (level, entry),
        }
    }
}
