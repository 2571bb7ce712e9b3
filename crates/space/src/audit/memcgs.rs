//! The memcgs' spaces, pages and slots, each recounted and compared with the memcgs' counts.

use super::{Report, SpaceViolation};
use crate::space::for_each_space;
use crate::spaces::Spaces;
use quire_arch::{Order, Platform};
use quire_frame::{Frame, FrameFlags, Kind};
use quire_memcg::{Belonging, MemcgId, MemcgViolation};
use quire_vma::SpaceCore;

/// Looks for wrong memcg counts, and for anything whose memcg is gone. A memcg that was removed exists as
/// long as something belongs to it.
pub(super) fn audit_memcgs<P: Platform>(spaces: &Spaces<P>, report: Report<'_>) {
    let memcgs = spaces.memcgs();
    let report = &mut |violation| report(SpaceViolation::Memcg(violation));
    memcgs.audit().recount(
        Belonging::Spaces,
        |tell| for_each_space(spaces, |core| tell(core.memcg(), 1)),
        report,
    );
    let killed = |core: &SpaceCore| u64::from(core.is_killed());
    memcgs.audit().recount(
        Belonging::KilledSpaces,
        |tell| for_each_space(spaces, |core| tell(core.memcg(), killed(core))),
        report,
    );
    let recount = |what, is_counted: &dyn Fn(&Frame) -> bool, report: &mut dyn FnMut(MemcgViolation)| {
        let tell = |tell: &mut dyn FnMut(MemcgId, u64)| {
            spaces.frames().audit().for_each_frame(|_, frame| {
                if is_counted(frame) {
                    let memcg = MemcgId::from_bits(frame.as_folio().memcg());
                    tell(memcg, frame.word().order().pages());
                }
            });
        };
        memcgs.audit().recount(what, tell, report);
    };
    recount(Belonging::Pages, &|frame| frame.kind().is_given_out(), report);
    // Shared memory that has left the cache of its file does not count, though a swap device may write it.
    let is_file_page = |frame: &Frame| match frame.kind() {
        Kind::Shmem => frame.word().flags().contains(FrameFlags::SHARED_BY_NAME),
        kind => kind.is_of_file(),
    };
    recount(Belonging::FilePages, &is_file_page, report);
    let is_cached = |frame: &Frame, kind| frame.kind() == kind && frame.as_folio().file().is_some();
    recount(Belonging::ShmemPages, &|frame| is_cached(frame, Kind::Shmem), report);
    for (what, kind) in [(Belonging::FileThpPages, Kind::File), (Belonging::ShmemThpPages, Kind::Shmem)] {
        let is_huge = |frame: &Frame| frame.word().order() == Order::PMD && is_cached(frame, kind);
        recount(what, &is_huge, report);
    }
    memcgs.audit().recount(
        Belonging::Slots,
        |tell| spaces.swap().audit().for_each_named(|named| tell(MemcgId::from_bits(named.memcg), 1)),
        report,
    );
}
