//! A folio of the PMD order is swapped in whole: one insertion and one store for 512 slots, against faults
//! on, and unmaps of, a part of it.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Each schedule fills and pages out 2 MiB.
const FEWER: u64 = 150;
const BLOCK: VirtAddr = VirtAddr(1 << 40);

fn machine(cpus: usize) -> Model {
    with_swap(cpus).mib(12).slots(1024)
}

/// Pages of it that are written to and looked at.
fn at(nth: u64) -> VirtAddr {
    page(BLOCK, nth)
}

/// Maps the folio, writes to some pages, and pages it out.
fn out(machine: &Machine, space: &HostSpace<'_>) {
    as_one_step(|| {
        map_huge(space, BLOCK);
        for nth in [1, 5, 9] {
            write(machine, 0, space, at(nth), 10 + nth);
        }
        page_out(space, BLOCK, PMD);
        assert_eq!(space.figures().swapped, PMD, "the folio is not out");
    });
    assert_eq!(count(machine, VmEvent::Pswpout), 512, "it did not go whole");
}

/// A part is unmapped, or all of it, while all of it is swapped in.
#[test]
fn shuttle_a_whole_swap_in_against_the_unmapping_of_its_pages() {
    for pages in [8, 512] {
        machine(3).check(FEWER, move |machine, space| {
            out(machine, space);
            let gone = Fact::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let late = gone.is_told();
                    let seen = read(machine, 0, space, at(9));
                    assert!(seen == 19 && !(late && pages == 512) || seen == 0 && pages == 512, "{seen}");
                });
                spawn_on(scope, machine, 1, space, |program| {
                    space.madvise(BLOCK, pages * PAGE, Advice::DontNeed).expect("mapped");
                    gone.tell();
                    assert_eq!(program.read_u64(at(5)), Ok(0));
                });
                scope.spawn(|| {
                    let late = gone.is_told();
                    let seen = read(machine, 2, space, at(1));
                    assert!(seen == 11 && !late || seen == 0, "{seen}");
                });
            });
            let kept = if pages == 512 { 0 } else { 19 };
            let seen = as_one_step(|| [1, 5, 9].map(|nth| read(machine, 0, space, at(nth))));
            assert_eq!(seen, [0, 0, kept]);
        });
    }
}

/// The parent gets it whole. The child, which has not all of it any more, faults on one page.
#[test]
fn shuttle_a_whole_swap_in_against_one_page_in_a_child() {
    machine(3).check(FEWER, |machine, space| {
        out(machine, space);
        let child = fork(space);
        as_one_step(|| child.madvise(BLOCK, PAGE, Advice::DontNeed)).expect("mapped");
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(read(machine, 0, space, at(5)), 15);
                write(machine, 0, space, at(5), 25);
                assert_eq!(read(machine, 0, space, at(5)), 25, "a lost write");
            });
            scope.spawn(|| {
                assert_eq!(read(machine, 1, &child, at(5)), 15, "the parent's write");
                write(machine, 1, &child, at(5), 35);
                assert_eq!(read(machine, 1, &child, at(5)), 35, "a lost write");
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            assert_eq!([1, 5, 9].map(|nth| read(machine, 0, space, at(nth))), [11, 25, 19]);
            assert_eq!([0, 1, 5, 9].map(|nth| read(machine, 1, &child, at(nth))), [0, 11, 35, 19]);
        });
    });
}

/// swapoff reads page by page what a fault reads whole.
#[test]
fn shuttle_a_whole_swap_in_against_swapoff() {
    machine(2).check(FEWER / 5, |machine, space| {
        out(machine, space);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, at(5), 25);
                assert_eq!(read(machine, 0, space, at(9)), 19);
            });
            spawn_on(scope, machine, 1, space, |_| swap_off(machine).expect("memory holds it"));
        });
        as_one_step(|| {
            assert_eq!(space.figures().swapped, 0);
            assert_eq!([1, 5, 9].map(|nth| read(machine, 0, space, at(nth))), [11, 25, 19]);
        });
    });
}
