//! The auditor: recounts everything from the frames up.
//!
//! First every list is walked and each frame on it marked in its descriptor's scratch word; then the whole
//! memory map is swept, and each frame must have been reached as often as its kind demands. What is counted
//! on the way is compared with the numbers that are kept. Users of frames check their own frames the same
//! way, with the scratch word, before or after.

mod lists;
mod sweep;
#[cfg(test)]
mod tests;

pub use lists::ListDemand;

use super::Frames;
use crate::kind::Kind;
use crate::map::Frame;
use crate::violation::FrameViolation;
use core::sync::atomic::Ordering;
use quire_arch::{Pfn, Platform};

/// Where violations go.
type Report<'r> = &'r mut dyn FnMut(FrameViolation);

quire_arch::part_of! {
    /// The audit of a machine's frames.
    pub struct FrameAudit { pub(super) frames: Frames }
}

impl<P: Platform> FrameAudit<'_, P> {
    /// Checks that the frames and all that is kept about them agree: every frame is of one kind and on
    /// exactly the list of that kind, links lead both ways, blocks are aligned and joined, counts are right,
    /// no frame is lost.
    ///
    /// The machine is quiet: no thread uses these frames' allocator meanwhile. What users do with given-out
    /// frames is theirs to check. The scratch words are zero afterwards. `report` may be called in a pinned
    /// section, with locks held: it must not wait, nor use these frames.
    pub fn validate(self, report: &mut dyn FnMut(FrameViolation)) {
        self.clear_audit();
        lists::walk_all(self.frames, report);
        sweep::sweep(self.frames, report);
        self.clear_audit();
    }

    /// Every frame of RAM with its descriptor, lowest first, for auditors of the crates above.
    pub fn for_each_frame(self, mut visit: impl FnMut(Pfn, &Frame)) {
        for (pfn, frame) in self.frames.map().iter() {
            if frame.kind() != Kind::Hole {
                visit(pfn, frame);
            }
        }
    }

    /// Sets the scratch word of every frame to zero.
    pub fn clear_audit(self) {
        for (_, frame) in self.frames.map().iter() {
            frame.audit().store(0, Ordering::Relaxed);
        }
    }
}
