//! What reclaim has unmapped and locked when it comes to a folio that it has to split.

use crate::common::*;
use crate::pageout_breaks::{FOLIO, with_folios};
use crate::short_pins::machine::after_all_holds;
use quire_frame::FrameFlags;

/// Hazard: a folio is split while others of its batch are unmapped and locked: their programs wait for the
/// locks of all its mappings.
#[test]
fn what_was_unmapped_is_written_before_a_folio_is_split() {
    let memory = with_folios(1);
    let space = memory.create_space().unwrap();
    let [single, large] = [(1, 1), (2, FOLIO)].map(|(at, pages)| {
        let area = map_at(&space, at * GIB, pages * PAGE, RW);
        space.fault(area, Access::Write).unwrap();
        area
    });
    let [in_hand, head] = [single, large].map(|area| space.pin_page_fast(area, Access::Read).unwrap().pfn());
    assert_eq!(space.figures().resident_anonymous, (1 + FOLIO) * PAGE, "one folio");
    space.munmap(page(large, FOLIO - 1), PAGE).unwrap();
    // It was not used, and is paged out at the first look.
    space.madvise(single, PAGE, Advice::Cold).unwrap();
    let found: &'static std::sync::OnceLock<bool> = Box::leak(Box::default());
    let look = move |_| {
        if memory.frames().folio(head).order() == Order::ZERO {
            let flags = memory.frames().known(in_hand).word().flags();
            let _ = found.set(flags.contains(FrameFlags::LOCKED));
        }
    };
    after_all_holds(look, || memory.reclaim(MemcgId::ROOT, 2));
    assert_eq!((space.figures().swapped > 0, found.get()), (true, Some(&false)));
}
