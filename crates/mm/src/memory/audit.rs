//! The auditor of a whole machine.

use super::Memory;
use quire_arch::Platform;
use quire_frame::{FrameViolation, Kind};
use quire_memcg::MemcgViolation;
use quire_space::SpaceViolation;
use quire_space::audit_spaces;
use quire_swap::SwapViolation;

/// A broken invariant.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum Violation {
    /// In the page-frame allocator.
    #[error("{0}")]
    Frame(FrameViolation),
    /// In an address space.
    #[error("{0}")]
    Space(SpaceViolation),
    /// In the memcgs and the LRU lists.
    #[error("{0}")]
    Memcg(MemcgViolation),
    /// In swap.
    #[error("{0}")]
    Swap(SwapViolation),
}

/// A summary of an audit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct AuditSummary {
    /// Number of violations.
    pub violations: u64,
}

impl AuditSummary {
    /// Whether no violation was found.
    pub const fn is_ok(self) -> bool {
        self.violations == 0
    }
}

/// Memory in use on a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUse {
    /// Allocated frames, without the caches'. (Caches may keep empty slabs.)
    pub frames: u64,
    /// Objects in the caches.
    pub objects: u64,
}

impl<P: Platform> Memory<P> {
    /// Memory in use once nothing waits for an epoch any more, without an unmapped huge zero page. Two equal
    /// values mean that nothing leaked in between.
    ///
    /// The machine must be quiet.
    #[doc(hidden)]
    pub fn in_use(&self) -> InUse {
        let frames = self.parts().frames();
        self.parts().thp().shrink_huge_zero();
        let pin = self.platform().pin();
        // Each pass may retire what the next one frees.
        for _ in 0..4 {
            frames.limbo().reap_all(&pin);
            frames.caches().reap(&pin);
        }
        let mut used = 0;
        frames.audit().for_each_frame(|_, frame| {
            used += u64::from(frame.kind().is_given_out() && frame.kind() != Kind::Slab);
        });
        // The memory of a freed memcg is kept for the next one.
        let caches = quire_slab::cache_reports(frames).filter(|cache| !cache.name.starts_with("memcg"));
        InUse { frames: used, objects: caches.map(|cache| cache.in_use).sum() }
    }

    /// Recounts everything from the ground up: each frame is exactly one of free, listed, slab, table or
    /// mapped; counts equal what the tables hold; mappings are sorted and their gaps right; TLBs hold nothing
    /// stale. `report` gets each violation with what was expected and found.
    ///
    /// The machine must be quiet: no call, fault, access or other audit runs on any CPU. The audit follows
    /// links without locks, so beside one of these it may read what was freed.
    pub fn audit(&self, mut report: impl FnMut(Violation)) -> AuditSummary {
        let mut summary = AuditSummary::default();
        self.parts().frames().audit().validate(&mut |violation| {
            summary.violations += 1;
            report(Violation::Frame(violation));
        });
        audit_spaces(self.parts(), &mut |violation| {
            summary.violations += 1;
            report(Violation::Space(violation));
        });
        self.parts().memcgs().audit().validate(&mut |violation| {
            summary.violations += 1;
            report(Violation::Memcg(violation));
        });
        self.parts().swap().audit().validate(&mut |violation| {
            summary.violations += 1;
            report(Violation::Swap(violation));
        });
        summary
    }
}
