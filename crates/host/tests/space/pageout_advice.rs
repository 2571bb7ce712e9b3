//! What a program that pages out its own pages has off their lists, beside one that needs memory.

use crate::common::*;
use crate::short_pins::machine::{Machine, let_time_fly};
use crate::shortage::{Looks, create, spaces_of};
use quire_space::Spaces;
use std::sync::Mutex;

/// A machine without time. There is nothing to free, but at the second look what the test has taken.
fn spaces(policy: HugePolicy) -> (&'static Spaces<Machine>, &'static Looks) {
    let_time_fly();
    let (spaces, looks) = spaces_of(2048, 1, policy);
    looks.at_each(move |nth| {
        if nth > 0 {
            looks.give_back(spaces);
        }
        0
    });
    (spaces, looks)
}

/// Hazard: pages that a program pages out are off their lists before the thread says that it reclaims.
/// Another one finds nothing, and a program is killed beside memory that comes at once.
#[test]
fn a_program_is_not_killed_beside_pages_that_another_is_about_to_page_out() {
    const PAGES: u64 = 8;
    let (spaces, looks) = spaces(HugePolicy::default());
    let [space, other] = [(); 2].map(|()| {
        let space = create(spaces);
        space.fault(map_at(space, GIB, PAGES * PAGE, RW), Access::Write).unwrap();
        space
    });
    looks.take_all(spaces);
    // Another program wants a page when some are just about to be paged out.
    looks.before_page_out(move || assert_eq!(other.fault(page(VirtAddr(GIB), 1), Access::Write), Ok(())));
    space.madvise(VirtAddr(GIB), PAGES * PAGE, Advice::PageOut).unwrap();
    assert_eq!(looks.counts()[1], 0, "a program would have been killed");
    assert_eq!((space.figures().swapped, other.figures().resident_anonymous), (PAGE, 2 * PAGE));
}

/// Hazard: a thread has folios off their lists while it waits for the lock of one that is to be split, and
/// the holder of that lock waits for those that reclaim.
#[test]
fn what_was_collected_is_paged_out_before_a_folio_is_split() {
    const FOLIO: u64 = 16;
    let order = Order::new(4).unwrap();
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let (spaces, looks) = spaces(policy.with_sizes(orders(&[4]), SizeEnabled::Always));
    let space = create(spaces);
    let area = map_at(space, GIB, 2 * FOLIO * PAGE, RW);
    let heads = [area, page(area, FOLIO)].map(|at| {
        space.fault(at, Access::Write).unwrap();
        space.pin_page_fast(at, Access::Read).unwrap().pfn()
    });
    let order_of = move |nth: usize| spaces.frames().folio(heads[nth]).order();
    assert_eq!([0, 1].map(order_of), [order; 2]);
    let sent: &'static Mutex<Vec<Order>> = Box::leak(Box::default());
    looks.before_page_out(move || sent.lock().unwrap().push(order_of(1)));
    // All of the first folio, and a part of the second.
    space.madvise(area, (FOLIO + 4) * PAGE, Advice::PageOut).unwrap();
    assert_eq!(*sent.lock().unwrap(), [order]);
    // There are only zeros, and the split has freed those of the other one.
    assert_eq!((order_of(1), space.figures().swapped), (Order::ZERO, FOLIO * PAGE));
}

/// Hazard: a program that was killed pages out all of its memory first, with the mmap lock that its reaper
/// needs.
#[test]
fn a_killed_program_pages_out_no_more() {
    const PAGES: u64 = 64;
    /// That many are paged out at a time.
    const BATCH: u64 = 32;
    let (spaces, looks) = spaces(HugePolicy::default().with_enabled(HugeEnabled::Never));
    let space = create(spaces);
    let area = map_at(space, GIB, PAGES * PAGE, RW);
    (0..PAGES).for_each(|at| space.fault(page(area, at), Access::Write).unwrap());
    looks.before_page_out(move || _ = space.oom().kill());
    space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, BATCH * PAGE);
}
