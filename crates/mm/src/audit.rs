//! The auditor of a whole machine.

use crate::memory::Memory;
use core::fmt;
use quire_arch::Platform;
use quire_frame::FrameViolation;
use quire_space::SpaceViolation;

/// Something that is not as it must be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Violation {
    /// In the frame room.
    Frame(FrameViolation),
    /// In an address space.
    Space(SpaceViolation),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame(violation) => violation.fmt(f),
            Self::Space(violation) => violation.fmt(f),
        }
    }
}

/// What an audit found, in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct AuditSummary {
    /// Number of violations.
    pub violations: u64,
}

impl AuditSummary {
    /// Whether everything is as it must be.
    pub const fn is_ok(self) -> bool {
        self.violations == 0
    }
}

impl<P: Platform> Memory<P> {
    /// Recounts everything from the ground up: each frame is exactly one of free, listed, slab, table or mapped;
    /// counts equal what the tables hold; mappings are sorted and their gaps right; TLBs hold nothing stale.
    /// `report` gets each violation with what was expected and found.
    ///
    /// The machine must be quiet: no call, fault or access runs on any CPU.
    pub fn audit(&self, mut report: impl FnMut(Violation)) -> AuditSummary {
        let mut summary = AuditSummary::default();
        self.frames().audit(&mut |violation| {
            summary.violations += 1;
            report(Violation::Frame(violation));
        });
        self.spaces().audit(&mut |violation| {
            summary.violations += 1;
            report(Violation::Space(violation));
        });
        summary
    }
}
