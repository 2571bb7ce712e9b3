//! Paranoid mode: every TLB hit is compared with the page tables.
//!
//! A hit through a translation that differs from the tables (another frame, more permission, a dirty bit that
//! was cleared) is legal for a while: from the moment at which the memory manager changes the entry until its
//! flush is acknowledged by this CPU. The start of this window cannot be seen from here, because the machine
//! is not told about a change before the flush is posted. Hence two rules, neither of which ever accuses a
//! correct memory manager:
//!
//! 1. **At once.** A hit or a fill whose frame the embedder's query
//!    ([`HostPlatform::set_frame_query`](crate::HostPlatform::set_frame_query)) calls free panics in the
//!    vCPU's thread with a [`StaleHit`] report. A frame may be freed only after every CPU that runs the space
//!    has acknowledged the flush, and this CPU acknowledges nothing between the hit and the query.
//! 2. **Later.** A stale hit that no pending flush covers becomes a *suspect*. A covering flush that this CPU
//!    does afterwards clears it. A suspect that is left when the machine is quiet (no call into the memory
//!    manager is under way) was never flushed:
//!    [`HostPlatform::check_suspects`](crate::HostPlatform::check_suspects) reports it. A CPU that has
//!    meanwhile switched to other tables is not accused: the memory manager may have left it out and rely on
//!    its flush when it returns. So its suspects count again when it is back on the same root and tag; the
//!    flush must then have come before the first access.
//!
//! What this finds: a missing flush, a flush of the wrong range or space or of too few CPUs, a flush before
//! the change of the entry, a frame freed before its flush, permissions or dirty bits taken away without a
//! flush, a mapping of a free frame; all of them only if an access really used the stale translation. What it
//! cannot find: a stale translation that no access used (that is for the auditor, by
//! [`for_each_cached_translation`](quire_arch::Platform::for_each_cached_translation), if a space could still
//! use it); a missing flush whose suspect a later, unrelated flush happens to cover before the check (so
//! check often, e.g. after each call when one thread drives the machine); an early free of a frame that
//! already has its next owner, unless the query can tell the owners apart (it becomes a suspect); stale
//! copies of upper-level entries, since this MMU caches only leaves. That a translation outlives an
//! acknowledged flush cannot happen here (it would be a bug of this crate's TLB, which the property test of
//! `tlb.rs` excludes).

mod report;

pub use report::{StaleHit, Staleness};

use crate::tlb::TlbSlot;
use quire_arch::{Asid, CachedTranslation, CpuId, Pfn, TlbFlush};
use std::collections::VecDeque;

/// Flushes that a CPU remembers for reports.
const REMEMBERED: usize = 8;

/// One CPU's suspects and its last flushes; part of what its door guards.
#[derive(Debug, Default)]
pub(crate) struct Paranoia {
    suspects: Vec<(TlbSlot, StaleHit)>,
    recent: VecDeque<TlbFlush>,
}

impl Paranoia {
    /// The CPU did `flush`.
    pub(crate) fn flushed(&mut self, flush: TlbFlush) {
        self.suspects.retain(|(slot, _)| !slot.is_covered_by(flush));
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(flush);
    }

    /// The last flushes, oldest first.
    pub(crate) fn recent(&self) -> Vec<TlbFlush> {
        self.recent.iter().copied().collect()
    }

    /// Takes out the suspects of the tables that are current.
    pub(crate) fn convict(&mut self, current: Option<(Pfn, Asid)>) -> Vec<StaleHit> {
        let guilty = |slot: &TlbSlot, hit: &StaleHit| current == Some((hit.root, slot.asid));
        self.suspects.extract_if(.., |(slot, hit)| guilty(slot, hit)).map(|(_, hit)| hit).collect()
    }

    /// Keeps a stale hit that no flush covers yet.
    pub(crate) fn suspect(&mut self, slot: TlbSlot, hit: StaleHit) {
        let known = |(other, old): &(TlbSlot, StaleHit)| other.is_same_page(&slot) && old.root == hit.root;
        if !self.suspects.iter().any(known) {
            self.suspects.push((slot, hit));
        }
    }
}

/// What `slot` says, for people.
pub(crate) fn describe(slot: &TlbSlot, cpu: CpuId) -> CachedTranslation {
    CachedTranslation {
        cpu,
        asid: slot.asid,
        addr: slot.range().start(),
        level: slot.level,
        leaf: slot.leaf(),
    }
}
