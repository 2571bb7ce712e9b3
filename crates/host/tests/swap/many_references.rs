//! Pages with as many references as can be.

use crate::common::*;
use quire_frame::MAX_REFS;
use quire_host::swap::{Completion, HostRam, SlowConfig, SlowDevice};

/// Hazard: a page is taken off its list to be paged out, and there can be no reference for that. It is on no
/// list for ever, and never reclaimed.
#[test]
fn a_page_that_can_have_no_more_references_stays_on_its_list() {
    let machine: Machine = Setup::mib(16).swap(64).build();
    let (cpu, space, area) = filled(&machine, 1, 1);
    let pfn = space.pin_page(area, Access::Read).unwrap().pfn();
    let frame = machine.memory().frames().known(pfn);
    let refs = frame.refs();
    assert!(frame.get(MAX_REFS - refs));
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!((frame.refs(), space.figures().resident), (MAX_REFS, PAGE));
    assert!(machine.memory().memcgs().folios().list_of(pfn).is_some(), "it is on no list");
    frame.put(MAX_REFS - refs);
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, PAGE);
    assert_filled(&cpu, &space, area, 0..1, 1);
    assert_audit(&machine);
}

/// Hazard: a page in the swap cache is mapped, and there can be no reference for that, which is dropped all
/// the same when it is unmapped: the page is freed while it is in use.
#[test]
fn a_page_that_can_have_no_more_references_is_not_mapped() {
    let machine: Machine = Setup::mib(16).build();
    // What is being written is in the cache until it is reaped.
    let config = SlowConfig { completion: Completion::AfterReaps(1000), ..SlowConfig::default() };
    swap_on(&machine, SlowDevice::new(HostRam::new(64).unwrap(), config));
    let (cpu, space, area) = filled(&machine, 1, 1);
    let pfn = space.pin_page(area, Access::Read).unwrap().pfn();
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, PAGE);
    let frame = machine.memory().frames().known(pfn);
    let refs = frame.refs();
    // One more is for the thread that wants to map it.
    assert!(frame.get(MAX_REFS - refs - 1));
    let refused = cpu.program(&space).read_u64(area);
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!((frame.refs(), space.figures().swapped), (MAX_REFS - 1, PAGE));
    frame.put(MAX_REFS - refs - 1);
    assert_filled(&cpu, &space, area, 0..1, 1);
    assert_audit(&machine);
    drop(space);
    assert_audit(&machine);
}
