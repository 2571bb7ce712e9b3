//! What was unmapped is not lost.
#![cfg(debug_assertions)]

use crate::common::*;
use quire_frame::{AllocRequest, Kind};
use quire_pagetable::{FlushCause, SpaceId, SpaceTables, Tables, Unmapper, page_of};

/// An unmapper of a space without mappings, with a flush pending, given to `end`.
fn with_unmapper(end: impl FnOnce(Unmapper<'_, HostPlatform>)) {
    let machine = Setup::mib(8).build();
    let _cpu = machine.vcpu(0).unwrap();
    let memory = machine.memory().spaces().memory();
    let request = AllocRequest::table().kind(Kind::Table).zeroed();
    let root = memory.frames().allocate(&memory.platform().pin(), request).unwrap();
    // SAFETY: the root is a zeroed frame of kind `Table`, which is freed at the end.
    let space = unsafe { SpaceTables::new(SpaceId::new(u64::MAX), root, Asid::NONE) };
    let mut unmapper = Unmapper::new(Tables::new(memory, &space), FlushCause::Unmap);
    unmapper.gather().add_stale(page_of(VirtAddr(0)));
    end(unmapper);
    memory.memcgs().folios().release_unused(&memory.platform().pin(), root, Order::ZERO);
}

#[test]
#[should_panic(expected = "an unmapper was dropped before it was finished")]
fn an_unmapper_that_is_dropped_unfinished_is_caught() {
    with_unmapper(|unmapper| drop(unmapper));
}

#[test]
fn an_unmapper_that_is_finished_is_not() {
    with_unmapper(|mut unmapper| unmapper.finish());
}
