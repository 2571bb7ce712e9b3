//! What reclaim has unmapped and locked when it comes to a folio that it has to split.

use crate::common::*;
use crate::short_pins::machine::{Machine, after_all_holds, run_on};
use quire_frame::FrameFlags;
use quire_host::swap::HostRam;
use quire_mm::{Memory, MemoryConfig};

/// Hazard: a folio is split while others of its batch are unmapped and locked: their programs wait for the
/// locks of all its mappings.
#[test]
fn what_was_unmapped_is_written_before_a_folio_is_split() {
    const FOLIO: u64 = 16;
    run_on(0);
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let config = MemoryConfig {
        overcommit: Overcommit::Always,
        min_free_kib: Some(0),
        huge: HugeConfig {
            policy: policy.with_sizes(orders(&[4]), SizeEnabled::Always),
            ..HugeConfig::default()
        },
        ..MemoryConfig::default()
    };
    let memory: &'static _ = Box::leak(Box::new(Memory::new(Machine::new(&[(0, 2048)], 1), config).unwrap()));
    memory.swapon(HostRam::new(64).unwrap(), SwapOnOptions::default()).unwrap();
    let space = memory.create_space().unwrap();
    let [single, large] = [(1, 1), (2, FOLIO)].map(|(at, pages)| {
        let request = MapRequest::anonymous(pages * PAGE, RW).at(VirtAddr(at << 30), MapFlags::FIXED);
        let area = space.mmap(&request).unwrap();
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
