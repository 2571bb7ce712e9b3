//! Guard pages against faults, page-out, fast pins and splits of folios.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

fn install(space: &HostSpace<'_>) {
    space.madvise(ADDR, PAGE, Advice::GuardInstall).expect("it takes guards");
}

/// Hazard: a page is mapped where a guard is being installed, and stays. An access sees the page as it was,
/// or is refused; after the call it is refused.
#[test]
fn shuttle_a_guard_against_faults_and_page_out() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        let installed = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 8..10 {
                    let late = installed.is_told();
                    let seen = program.read_u64(ADDR);
                    assert!(seen == Err(NOT_MAPPED) || !late && matches!(seen, Ok(7 | 8)), "{seen:?}");
                    let late = installed.is_told();
                    let wrote = program.write_u64(ADDR, value);
                    assert!(wrote == Err(NOT_MAPPED) || !late && wrote == Ok(()), "{wrote:?}");
                }
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| install(space));
                installed.tell();
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            assert_eq!(space.figures().resident + space.figures().swapped, 0);
            space.madvise(ADDR, PAGE, Advice::GuardRemove).expect("it is there");
            assert_eq!(read(machine, 0, space, ADDR), 0);
        });
    });
}

/// Hazard: guards are removed while faults look at them.
#[test]
fn shuttle_the_removal_of_a_guard_against_a_fault() {
    with_swap(2).check(SOME, |machine, space| {
        as_one_step(|| {
            map_at(space, ADDR.0, PAGE, RW);
            install(space);
        });
        let removed = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                let late = removed.is_told();
                let wrote = program.write_u64(ADDR, 3);
                assert!(wrote == Ok(()) || !late && wrote == Err(NOT_MAPPED), "{wrote:?}");
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| space.madvise(ADDR, PAGE, Advice::GuardRemove))
                    .expect("it is there");
                removed.tell();
            });
        });
    });
}

/// Hazard: a fast pin gets a page whose place a guard has taken.
#[test]
fn shuttle_a_guard_against_a_fast_pin() {
    with_swap(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        let installed = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |_| {
                let late = installed.is_told();
                if let Some(pinned) = space.pin_page_fast(ADDR, Access::Read) {
                    assert!(!late, "a guard was pinned");
                    assert_eq!(device_reads(machine, &pinned), 7);
                }
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| install(space));
                installed.tell();
            });
        });
    });
}

/// Hazard: the folio of a large leaf is split by a relative while guards take the leaf's place.
#[test]
fn shuttle_guards_in_place_of_a_leaf_against_the_split_of_its_folio() {
    with_swap(2).mib(8).check(FEW, |machine, space| {
        let block = VirtAddr(1 << 39);
        as_one_step(|| {
            map_huge(space, block);
            space.fault(block, Access::Write).expect("mapped");
        });
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |_| {
                space.madvise(block, PMD, Advice::GuardInstall).expect("it takes guards");
            });
            scope.spawn(|| reclaim(machine, 1));
        });
        as_one_step(|| {
            let mut guards = 0;
            space.mappings().pagemap(VirtRange::new(block, VirtAddr(block.0 + PMD)), |pages, state| {
                guards += if state == PageState::Guard { pages.pages() } else { 0 };
            });
            assert_eq!(guards, 512);
            assert_eq!(space.figures().resident + space.figures().swapped, 0);
        });
    });
}
