//! Runs of a folio's entries, at the ends where other memory managers had bugs: see docs/hazards.md.

use crate::common::*;

/// A machine where private pages come in folios of `order` wherever they fit.
fn machine_of_order(order: u8) -> Machine {
    Setup::mib(32).folios(orders(&[order])).build()
}

/// Hazard: a run that spans two folios. Neighbours in memory and in the table are two runs all the same.
#[test]
fn a_run_ends_where_its_folio_ends() {
    let machine = machine_of_order(2);
    let (cpu, space, area) = filled(&machine, 128, 1);
    let follows = |at| frame_of(&space, page(area, at)).0 + 4 == frame_of(&space, page(area, at + 4)).0;
    assert!((0..124).step_by(4).any(follows), "no folio follows another");
    let child = space.fork().unwrap();
    child.madvise(page(area, 2), 100 * PAGE, Advice::DontNeed).unwrap();
    assert_audit(&machine);
    space.munmap(page(area, 1), 126 * PAGE).unwrap();
    assert_audit(&machine);
    let kept: Vec<_> = (0..128).map(|at| read(&cpu, &child, page(area, at))).collect();
    let expected: Vec<_> = (0..128).map(|at| if (2..102).contains(&at) { 0 } else { at + 1 }).collect();
    assert_eq!(kept, expected);
}

/// Hazard: a run of zero pages that drops a reference for each, or for all of them.
#[test]
fn zero_pages_are_in_no_run() {
    let machine = machine_of_order(2);
    let cpu = machine.vcpu(0).unwrap();
    let zero = machine.memory().spaces().zero_page();
    let counts = || {
        let frame = machine.memory().frames().frame(zero).unwrap();
        (frame.refs(), frame.word().kind(), machine.memory().frames().folio(zero).order())
    };
    let before = counts();
    let space = create_space(&machine).audited(&machine);
    let area = map_at(&space, GIB, 600 * PAGE, RW);
    for at in 0..600 {
        assert_eq!(read(&cpu, &space, page(area, at)), 0);
    }
    let child = space.fork().unwrap();
    child.madvise(page(area, 10), 300 * PAGE, Advice::DontNeed).unwrap();
    space.munmap(page(area, 1), 598 * PAGE).unwrap();
    drop(child);
    assert_eq!(counts(), before);
}

/// Hazard: a run past the end of the range, of the mapping or of the table: what is outside stays.
#[test]
fn a_run_ends_with_its_range() {
    for order in [4, 9] {
        let machine = machine_of_order(order);
        let (cpu, space) = cpu_and_space(&machine);
        // Over a border of tables, and with a mapping after it.
        let area = map_filled(&cpu, &space, GIB - 512 * PAGE, 1024, 1);
        let child = space.fork().unwrap();
        let mut gone = vec![];
        for (at, len) in [(3, 2), (13, 22), (500, 24), (1000, 24)] {
            space.madvise(page(area, at), len * PAGE, Advice::DontNeed).unwrap();
            gone.extend(at..at + len);
            assert_audit(&machine);
        }
        space.mprotect(page(area, 100), 7 * PAGE, READ, false).unwrap();
        space.munmap(page(area, 100), 7 * PAGE).unwrap();
        assert_audit(&machine);
        for at in (0..1024).filter(|at| !(100..107).contains(at)) {
            let expected = if gone.contains(&at) { 0 } else { at + 1 };
            assert_eq!(read(&cpu, &space, page(area, at)), expected, "order {order}, page {at}");
        }
        assert_filled(&cpu, &child, area, 0..1024, 1);
    }
}

/// Hazard: the run takes the first entry's bits for all. One page in the middle is writable, the first is
/// not.
#[test]
fn each_entry_of_a_run_keeps_its_own_bits() {
    let machine = machine_of_order(4);
    let (cpu, space, area) = filled(&machine, 16, 1);
    drop(space.fork().unwrap());
    // The last owner again: only this entry becomes writable again.
    write(&cpu, &space, page(area, 5), 50);
    let child = space.fork().unwrap();
    fill(&cpu, &space, area, 0..16, 100);
    for at in 0..16 {
        assert_eq!(read(&cpu, &child, page(area, at)), if at == 5 { 50 } else { at + 1 }, "page {at}");
    }
}

/// A folio that is unmapped in part stays whole, with its counts right, until its last page is unmapped.
#[test]
fn a_partly_unmapped_folio_is_freed_with_its_last_page() {
    for order in [2, 4, 9] {
        let machine = machine_of_order(order);
        let (cpu, space) = cpu_and_space(&machine);
        let pages = 1 << order;
        let area = map_at(&space, GIB, pages * PAGE, RW);
        write(&cpu, &space, area, 1);
        write(&cpu, &space, page(area, pages - 1), 2);
        let head = frame_of(&space, area);
        let frames = machine.memory().frames();
        let maps = || {
            let _pin = machine.memory().platform().pin();
            frames.folios().lock_head(head).maps()
        };
        space.munmap(area, PAGE).unwrap();
        assert_eq!((u64::from(maps()), frames.folio(head).order().pages()), (pages - 1, pages));
        assert_audit(&machine);
        space.madvise(page(area, 1), (pages - 2) * PAGE, Advice::DontNeed).unwrap();
        assert_eq!((maps(), read(&cpu, &space, page(area, pages - 1))), (1, 2));
        assert_audit(&machine);
        space.munmap(page(area, 1), (pages - 1) * PAGE).unwrap();
        assert!(!frames.frame(head).unwrap().kind().is_given_out(), "order {order}");
    }
}
