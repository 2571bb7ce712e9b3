//! Memcgs by parent and name.
//!
//! A memcg is in the chain that its parent and its name choose, from its creation until it leaves the tree.
//! So a child is found among tens of thousands without a look at each. A removed memcg stays in its chain and
//! is not found: a new one may have its name.

use crate::id::MemcgId;
use crate::memcg::Memcg;
use crate::table::{CHAINS, MemcgTable};
use core::sync::atomic::{AtomicU16, Ordering};
use quire_arch::Platform;

/// The chains. Behind the lock of the memcgs; where each begins is in the page at the root of the table.
#[derive(Debug, Default)]
pub(crate) struct Names(());

/// The chain of a child of `parent` called `name`: FNV-1a of both.
fn chain(parent: MemcgId, name: impl Iterator<Item = u8>) -> usize {
    let bytes = parent.get().to_le_bytes().into_iter().chain(name);
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ((hash >> 16 ^ hash) as usize) % CHAINS
}

impl Names {
    /// The child of `parent` called `name`, if there is one that is not removed.
    pub(crate) fn find<'t, P: Platform>(
        &self,
        table: &'t MemcgTable<P>,
        parent: MemcgId,
        name: &str,
    ) -> Option<&'t Memcg<P>> {
        let mut next = first_of(table.chain(chain(parent, name.bytes())));
        while !next.is_root() {
            let memcg = table.get(next)?;
            if memcg.life.is_online() && memcg.parent() == parent && memcg.name.is(name) {
                return Some(memcg);
            }
            next = next_of(memcg);
        }
        None
    }

    /// Adds a memcg that has its parent and its name.
    pub(crate) fn add<P: Platform>(&mut self, table: &MemcgTable<P>, memcg: &Memcg<P>) {
        let first = table.chain(chain(memcg.parent(), memcg.name.bytes()));
        memcg.links.next_named.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        first.store(memcg.id.get(), Ordering::Relaxed);
    }

    /// Takes a memcg off its chain that leaves the tree.
    pub(crate) fn remove<P: Platform>(&mut self, table: &MemcgTable<P>, memcg: &Memcg<P>) {
        let first = table.chain(chain(memcg.parent(), memcg.name.bytes()));
        let mut at = first_of(first);
        if at == memcg.id {
            first.store(next_of(memcg).get(), Ordering::Relaxed);
            return;
        }
        while let Some(before) = table.get(at).filter(|_| !at.is_root()) {
            at = next_of(before);
            if at == memcg.id {
                before.links.next_named.store(next_of(memcg).get(), Ordering::Relaxed);
                return;
            }
        }
        debug_assert!(false, "a memcg is in no chain of names");
    }
}

/// The first memcg of a chain, or the root's number for none.
fn first_of(first: &AtomicU16) -> MemcgId {
    MemcgId::from_bits(first.load(Ordering::Relaxed))
}

/// The memcg behind `memcg` in its chain. Changes under the lock of the memcgs.
fn next_of<P: Platform>(memcg: &Memcg<P>) -> MemcgId {
    MemcgId::from_bits(memcg.links.next_named.load(Ordering::Relaxed))
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    /// The names that programs number through, below one parent and below many.
    #[test]
    fn names_are_spread_over_the_chains() {
        for of_one in [true, false] {
            let mut chains = [0; CHAINS];
            for number in 0..30_000_u16 {
                let parent = MemcgId::from_bits(if of_one { 1 } else { number });
                let name = if of_one { format!("session-{number}.scope") } else { "payload".into() };
                chains[chain(parent, name.bytes())] += 1;
            }
            let longest = chains.into_iter().max().unwrap_or(0);
            assert!(longest < 2 * 30_000 / CHAINS, "a chain of {longest}");
        }
    }
}
