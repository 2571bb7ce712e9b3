//! Reclaim: which pages are freed when memory is short, and how.
//!
//! The policy is Linux's of two lists: folios enter the inactive list and move to its end; there a folio that
//! was referenced meanwhile is activated, the others are paged out. A page whose refault distance is within
//! the active list's length was evicted wrongly, and is activated at once (`workingset`). The lists belong to
//! memcgs; each round of reclaim scans all memcgs below the one that is short, as deep into their lists as
//! its priority says.
//!
//! Everything here is stateless: all state is in the lists, the memcgs and the folios. So [`Policy`] is a
//! zero-sized value, which a machine passes to its spaces ([`quire_space::Reclaim`]).
//!
//! # Modules, lowest first
//!
//! - `oom`: the OOM killer: which program is killed when nothing can be freed.
//! - `shrink`: paging out a batch of folios.
//! - `search`: one reclaim scan: its cause, its target, and how it is counted.
//! - `age`: ageing and scanning the LRU lists of one memcg on one node.
//! - `balance`: reclaim control: priorities, targets, and when to give up.

#![no_std]

#[cfg(test)]
extern crate std;

mod age;
mod balance;
mod oom;
mod search;
mod shrink;

pub use balance::{KswapdStep, kswapd_step, reclaim_memcg, reclaim_to_limit};
pub use oom::{OomScore, badness};

use quire_arch::{Pfn, Platform};
use quire_memcg::MemcgId;
use quire_space::{Need, OomOutcome, Reclaim, Spaces, finish_exits};

/// Linux's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy;

impl<P: Platform> Reclaim<P> for Policy {
    fn make_room(&self, spaces: &Spaces<P>, need: Need) -> u64 {
        // What an exit frees makes a retry worthwhile, too.
        balance::make_room(spaces, need) + finish_exits(spaces)
    }

    fn out_of_memory(&self, spaces: &Spaces<P>, need: Need) -> OomOutcome {
        let outcome = oom::out_of_memory(spaces, need);
        if finish_exits(spaces) > 0 { OomOutcome::Freed } else { outcome }
    }

    fn throttle(&self, spaces: &Spaces<P>, memcg: MemcgId) {
        balance::throttle(spaces, memcg);
        finish_exits(spaces);
    }

    fn page_out(&self, spaces: &Spaces<P>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        let freed = shrink::page_out(spaces, folios);
        finish_exits(spaces);
        freed
    }
}
