//! What is mapped when the first device is added: from then on it can be paged out.

use crate::common::*;

/// Reclaims until nothing more comes, and returns how many pages of `space` are out.
fn reclaimed(machine: &Machine, space: &HostSpace<'_>) -> u64 {
    while machine.memory().reclaim(MemcgId::ROOT, 100) > 0 {}
    space.figures().swapped / PAGE
}

/// A device has a page pinned, for long or for a moment, while the first swap device is added.
#[test]
fn a_page_pinned_at_the_first_swapon_is_reclaimed_later() {
    for order in [0, 2] {
        let machine = Setup::mib(16).overcommit().folios(orders(&[order])).build();
        let (cpu, space, area) = filled(&machine, 8, 1);
        let pinned = space.pin_page(page(area, 1), Access::Write).unwrap();
        swap_on_ram(&machine, 64);
        let held = 1 << order;
        assert_eq!(reclaimed(&machine, &space), 8 - held, "all but the pinned folio of order {order}");
        drop(pinned);
        assert_eq!(reclaimed(&machine, &space), 8, "folios of order {order}");
        assert_filled(&cpu, &space, area, 0..8, 1);
    }
}

/// A page that a program has given up lies where reclaim looks first, and one that it has mlocked where
/// reclaim does not look.
#[test]
fn what_is_there_at_the_first_swapon_is_listed_by_its_marks() {
    let machine = Setup::mib(16).overcommit().build::<X86_64Level4>();
    let (_cpu, space, area) = filled(&machine, 3, 1);
    space.madvise(page(area, 1), PAGE, Advice::Free).unwrap();
    let list = |nth| {
        let pfn = space.pin_page_fast(page(area, nth), Access::Read).unwrap().pfn();
        machine.memory().memcgs().folios().list_of(pfn)
    };
    assert_eq!([0, 1, 2].map(list), [None, Some(LruList::InactiveFile), None]);
    swap_on_ram(&machine, 64);
    assert_eq!([0, 1].map(list), [Some(LruList::InactiveAnon), Some(LruList::InactiveFile)]);
    // A second device changes nothing.
    space.mlock(page(area, 2), PAGE, false).unwrap();
    assert_eq!(list(2), Some(LruList::Unevictable));
    swap_on_ram(&machine, 64);
    assert_eq!([0, 2].map(list), [Some(LruList::InactiveAnon), Some(LruList::Unevictable)]);
}
