//! What allocates reclaims before it fails: fork and new spaces, the calls that split or move mappings, and
//! pins.

use crate::common::*;
use quire_host::swap::HostRam;

const RAM: u64 = 16 << 20;
/// More than RAM: a part is always in swap.
const AREA: u64 = 12 * MIB2;
const PAGES: u64 = AREA / PAGE;
/// Children that live at once. Their tables alone take more than the free reserve.
const CHILDREN: u64 = 60;

fn small_machine(swap_bytes: u64) -> Machine {
    let machine = Setup::of(HostConfig::with_ram(RAM).paranoid()).reserve().overcommit().build();
    if swap_bytes > 0 {
        swap_on(&machine, HostRam::new((swap_bytes / PAGE) as usize).unwrap());
    }
    machine
}

#[test]
fn fork_reclaims_before_it_fails() {
    let machine = small_machine(8 * AREA);
    let (cpu, space, area) = mapped(&machine, GIB, AREA);
    fill(&cpu, &space, area, 0..PAGES, 100);
    let children: Vec<HostSpace<'_>> = (0..CHILDREN).map(|_| space.fork().unwrap()).collect();
    assert_audit(&machine);
    write(&cpu, &space, page(area, 5), 7);
    for (number, child) in children.iter().enumerate() {
        let at = 5 + number as u64 * 40;
        assert_eq!([5, at].map(|at| read(&cpu, child, page(area, at))), [105, 100 + at]);
    }
    assert_eq!(read(&cpu, &space, page(area, 5)), 7);
}

/// Each page becomes a mapping of its own, and then all move to a place without tables.
#[test]
fn calls_that_split_and_move_mappings_reclaim_before_they_fail() {
    let machine = small_machine(8 * AREA);
    let (cpu, space, area) = mapped(&machine, GIB, AREA);
    fill(&cpu, &space, area, 0..PAGES, 100);
    for at in (0..PAGES).step_by(2) {
        space.mprotect(page(area, at), PAGE, Protection::READ, false).unwrap();
    }
    assert_audit(&machine);
    // Each page goes into a table of its own.
    let far = |at: u64| VirtAddr(64 * GIB + at * MIB2);
    for at in 0..PAGES / 4 {
        space.mremap(page(area, at), PAGE, PAGE, MOVE, far(at)).unwrap();
    }
    for at in 0..PAGES / 4 {
        assert_eq!(read(&cpu, &space, far(at)), 100 + at);
    }
    assert_eq!(read(&cpu, &space, page(area, PAGES - 1)), 100 + PAGES - 1);
}

/// Each page becomes a mapping of its own by advice: what the program is told of a shortage then, EAGAIN, is
/// no reason to give up.
#[test]
fn advice_that_splits_mappings_reclaims_before_it_fails() {
    let machine = small_machine(8 * AREA);
    let (cpu, space, area) = mapped(&machine, GIB, AREA);
    fill(&cpu, &space, area, 0..PAGES, 100);
    for at in (0..PAGES).step_by(2) {
        space.madvise(page(area, at), PAGE, Advice::DontFork).unwrap();
    }
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, (0..PAGES).step_by(100), 100);
}

/// Each program that starts takes a frame for its root, and some for the first of its mappings.
#[test]
fn a_new_space_reclaims_before_it_fails() {
    let machine = small_machine(8 * AREA);
    let (cpu, space, area) = mapped(&machine, GIB, AREA);
    fill(&cpu, &space, area, 0..PAGES, 100);
    let others: Vec<HostSpace<'_>> = (0..PAGES / 8).map(|_| create_space(&machine)).collect();
    assert_filled(&cpu, &space, area, (0..PAGES).step_by(100), 100);
    drop(others);
}

/// A pin of a page that a relative maps too copies it first, as a write does.
#[test]
fn a_pin_that_copies_reclaims_before_it_fails() {
    let machine = small_machine(8 * AREA);
    let (cpu, space, area) = mapped(&machine, GIB, AREA);
    fill(&cpu, &space, area, 0..PAGES, 100);
    let child = space.fork().unwrap();
    for at in 0..PAGES / 4 {
        drop(child.pin_page(page(area, at), Access::Read).unwrap());
    }
    assert_filled(&cpu, &child, area, 0..PAGES / 4, 100);
}

#[test]
fn without_swap_fork_fails_and_leaves_nothing_behind() {
    let machine = small_machine(0);
    let (cpu, space, area) = mapped(&machine, GIB, RAM / 2);
    fill(&cpu, &space, area, 0..RAM / 2 / PAGE, 100);
    let mut children: Vec<HostSpace<'_>> = Vec::new();
    let error = loop {
        match space.fork() {
            Ok(child) => children.push(child),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoFrames(_)), "{error:?}");
    assert_audit(&machine);
    assert_eq!(read(&cpu, &children[0], page(area, 9)), 109);
    drop(children);
    assert!(space.fork().is_ok());
}
