//! Reclaim: which pages go when memory is short, and how.
//!
//! The policy is Linux's of two lists: folios enter the inactive list, and come to its end; a folio that was
//! used meanwhile goes to the active list, the others are paged out. What comes back sooner than the active
//! list is long was wrongly paged out, and goes to the active list at once (`workingset`). The lists belong
//! to memcgs; each round of reclaim goes through all memcgs below the one that is short, as deep into their
//! lists as its priority says.
//!
//! Everything here is stateless: what it knows lies in the lists, the memcgs and the folios. So [`Policy`] is
//! a value of no size, which a machine hands down to its spaces ([`quire_space::Reclaim`]).
//!
//! # Modules, lowest first
//!
//! - `oom`: when nothing can be freed: which program ends.
//! - `shrink`: paging a handful of folios out.
//! - `search`: one round of reclaim: for which memcg, on which node, and how it is counted.
//! - `age`: ageing: the LRU lists of one memcg on one node.
//! - `balance`: how hard to try, and where.

#![no_std]

#[cfg(test)]
extern crate std;

mod age;
mod balance;
mod oom;
mod search;
mod shrink;

pub use balance::{KswapdStep, kswapd_step, reclaim_memcg};
pub use oom::{OomScore, badness};

use quire_arch::{Pfn, Platform};
use quire_memcg::MemcgId;
use quire_space::{Need, Reclaim, Spaces};

/// Linux's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy;

impl<P: Platform> Reclaim<P> for Policy {
    fn make_room(&self, spaces: &Spaces<P>, need: Need) -> u64 {
        balance::make_room(spaces, need)
    }

    fn out_of_memory(&self, spaces: &Spaces<P>, need: Need) -> bool {
        oom::out_of_memory(spaces, need)
    }

    fn throttle(&self, spaces: &Spaces<P>, memcg: MemcgId) {
        balance::throttle(spaces, memcg);
    }

    fn page_out(&self, spaces: &Spaces<P>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        shrink::page_out(spaces, folios)
    }
}
