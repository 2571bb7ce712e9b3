//! The first swap device is added: from then on folios are listed, those that are there included.

use crate::machines::*;
use quire_frame::{AllocRequest, Kind, Migratetype};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Panics unless the page at `addr` is on an LRU list.
fn assert_listed(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr) {
    as_one_step(|| {
        let pfn = space.pin_page_fast(addr, Access::Read).expect("it is there").pfn();
        let folio = machine.memory().frames().folio(pfn).head();
        assert!(machine.memory().memcgs().folios().list_of(folio).is_some(), "{addr:?} is on no list");
    });
}

fn swap_on(machine: &Machine, cpu: usize) {
    as_cpu(machine, cpu, || swap_on_ram(machine, 64));
}

/// A page is mapped by a fault, another one by a copy on write, and a third one is pinned for a moment. Each
/// is on a list afterwards.
#[test]
fn shuttle_the_first_swapon_against_faults_copies_and_pins() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        map(space, BEFORE, 1);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| drop(space.pin_page_fast(ADDR, Access::Read)));
                write(machine, 0, space, BEFORE, 2);
            });
            scope.spawn(|| write(machine, 1, &child, ADDR, 3));
            scope.spawn(|| swap_on(machine, 2));
        });
        assert_listed(machine, space, ADDR);
        assert_listed(machine, space, BEFORE);
        assert_listed(machine, &child, ADDR);
        exit(child);
    });
}

/// A folio that is on no list yet is split meanwhile: its parts, which come into being on either side of the
/// scan, are on a list all the same.
#[test]
fn shuttle_the_first_swapon_against_the_split_of_a_folio() {
    with_swap(2).slots(0).check(SOME, |machine, space| {
        as_one_step(|| {
            small_folios(machine);
            map_at(space, FOUR.0, 4 * PAGE, RW);
            // A part that holds only zeros would be freed.
            (0..4).for_each(|nth| write(machine, 0, space, page(FOUR, nth), 1 + nth));
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                // Refused while the scan has a reference.
                on_cpu(machine, 0, space, |_| _ = space.split_folio(FOUR, Order::ZERO));
            });
            scope.spawn(|| swap_on(machine, 1));
        });
        (0..4).for_each(|nth| assert_listed(machine, space, page(FOUR, nth)));
    });
}

/// Hazard: the page that the scan found mapped is freed, and its frame is another owner's, before the scan
/// takes a reference. The frame of a table has no owner but one, who frees it.
#[test]
fn shuttle_the_first_swapon_against_the_reuse_of_a_page_as_a_table() {
    check(|| {
        let machine = machine(2);
        let (frames, platform) = (machine.memory().frames(), machine.memory().platform());
        let memcgs = machine.memory().memcgs();
        let page = as_one_step(|| {
            as_cpu(&machine, 1, || {
                let request = AllocRequest::anonymous().kind(Kind::Anonymous);
                let page = frames.allocate(&platform.pin(), request).expect("there is memory enough");
                frames.known(page).as_folio().set_maps(1);
                page
            })
        });
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(&machine, 0, || _ = memcgs.folios().list_if_mapped(page)));
            scope.spawn(|| {
                as_cpu(&machine, 1, || {
                    let table = as_one_step(|| {
                        frames.known(page).as_folio().set_maps(0);
                        memcgs.folios().release_folio(page);
                        // The list hands out what it got last, if it is of the block's type.
                        let request =
                            AllocRequest::table().kind(Kind::Table).movability(Migratetype::Movable);
                        frames.allocate(&platform.pin(), request).expect("there is memory enough")
                    });
                    frames.free(&platform.pin(), table, Order::ZERO).expect("the table is ours alone");
                });
            });
        });
        audit(&machine);
    });
}
