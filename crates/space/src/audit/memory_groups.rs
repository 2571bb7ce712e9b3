//! What belongs to memcgs: spaces, pages and slots, each recounted and compared with what the memcgs count.

use super::{Report, SpaceViolation};
use crate::spaces::Spaces;
use core::sync::atomic::Ordering;
use quire_arch::Platform;
use quire_group::{Belonging, GroupId};

impl<P: Platform> Spaces<P> {
    /// Looks for what memcgs count wrongly, and for what belongs to no memcg any more. A memcg that was
    /// removed exists as long as something belongs to it.
    pub(super) fn audit_memory_groups(&self, report: Report<'_>) {
        let groups = self.memory_groups();
        let report = &mut |violation| report(SpaceViolation::MemoryGroup(violation));
        groups.recount(Belonging::Spaces, |tell| self.for_each(|core| tell(core.memory_group(), 1)), report);
        groups.recount(
            Belonging::Pages,
            |tell| {
                self.frames().for_each_frame(|_, frame| {
                    if frame.kind().is_given_out() {
                        let group = GroupId::from_bits(frame.memory_group().load(Ordering::Relaxed));
                        tell(group, frame.word().order().pages());
                    }
                });
            },
            report,
        );
        groups.recount(
            Belonging::Slots,
            |tell| self.swap().for_each_named(|named| tell(GroupId::from_bits(named.group), 1)),
            report,
        );
    }
}
