//! The rmap: walks against calls that change mappings. A page that stays mapped is found at one place,
//! always.

use crate::machines::*;
use quire_frame::Kind;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Far from it, with other tables.
const ELSEWHERE: VirtAddr = VirtAddr(1 << 40);

/// Every private page of the machine.
fn private_pages(machine: &Machine) -> Vec<Pfn> {
    let mut pages = Vec::new();
    as_one_step(|| {
        machine.memory().frames().audit().for_each_frame(|pfn, frame| {
            if frame.kind() == Kind::Anonymous {
                pages.push(pfn);
            }
        });
    });
    pages
}

/// Maps `pages` pages at `addr`, writes to the last one, and returns its frame: the only private page of the
/// machine.
fn written(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, pages: u64) -> Pfn {
    map(space, addr, pages);
    let last = VirtAddr(addr.0 + (pages - 1) * PAGE);
    as_one_step(|| on_cpu(machine, 0, space, |program| program.write_u64(last, 7))).expect("mapped");
    private_pages(machine)[0]
}

/// Where the page is, by the rmap.
fn places(machine: &Machine, page: Pfn) -> Vec<VirtAddr> {
    let mut places = Vec::new();
    machine.memory().spaces().rmap().for_each_map(page, |_, addr| places.push(addr));
    places
}

/// The page moves away and back. On the way back its mapping grows, so that a walk visits the new place
/// first: only the Rmap lock keeps the page from moving from the old place to the new one behind the walk.
#[test]
fn shuttle_a_walk_against_a_move() {
    check_space(2, |machine, space| {
        let page = written(machine, space, BEFORE, 2);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let places = places(machine, page);
                    assert!(places == [ELSEWHERE] || places == [ADDR], "found at {places:?}");
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                for (from, to) in [(ADDR, ELSEWHERE), (ELSEWHERE, ADDR)] {
                    space.mremap(from, PAGE, PAGE, MOVE, to).expect("there is memory enough");
                }
            });
        });
        assert_eq!(space.figures().mappings, 1);
    });
}

/// The mapping is split and merged around the page, which stays where it is.
#[test]
fn shuttle_a_walk_against_splits_and_merges() {
    check_space(2, |machine, space| {
        let page = written(machine, space, BEFORE, 2);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(places(machine, page), [ADDR]);
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.mprotect(BEFORE, PAGE, READ, false).expect("there is memory enough");
                space.mprotect(BEFORE, PAGE, RW, false).expect("there is memory enough");
                space.munmap(BEFORE, PAGE).expect("the end of a mapping can go");
            });
        });
    });
}

/// The page is unmapped, its tables and its anon_vma are freed, and all of that may be reused.
#[test]
fn shuttle_a_walk_against_an_unmapping() {
    check_space(3, |machine, space| {
        let page = written(machine, space, ADDR, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let places = places(machine, page);
                    assert!(places.is_empty() || places == [ADDR] || places == [ELSEWHERE], "{places:?}");
                }
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
                map(space, ELSEWHERE, 1);
                program.write_u64(ELSEWHERE, 1).expect("mapped");
            });
            spawn_on(scope, machine, 2, space, |_| {
                let pin = machine.memory().platform().pin();
                for _ in 0..3 {
                    machine.memory().frames().limbo().reap_all(&pin);
                    machine.memory().frames().caches().reap(&pin);
                }
            });
        });
    });
}

/// Children of the page's anon_vma are made and exit; the last of them frees the tree beside a walk.
#[test]
fn shuttle_a_walk_against_a_fork_and_an_exit() {
    check_space(2, |machine, space| {
        let page = written(machine, space, ADDR, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let places = places(machine, page);
                    // The parent's, and the child's as long as it shares the page.
                    let right = matches!(places[..], [ADDR] | [ADDR, ADDR]);
                    assert!(right, "{places:?}");
                }
            });
            scope.spawn(|| {
                let child = fork_on(machine, 1, space);
                write(machine, 1, &child, ADDR, 5);
            });
        });
    });
}

/// The child of a page's anon_vma exits, with its pages: the walk that is under way finds them or nothing.
#[test]
fn shuttle_a_walk_against_the_exit_of_a_child() {
    check_space(2, |machine, space| {
        let page = written(machine, space, ADDR, 1);
        let child = fork(space);
        as_one_step(|| write(machine, 0, &child, ADDR, 5));
        let pages = private_pages(machine);
        let own = pages.into_iter().find(|&pfn| pfn != page).expect("the child has its own");
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let of_the_child = places(machine, own);
                    assert!(of_the_child.is_empty() || of_the_child == [ADDR], "{of_the_child:?}");
                    assert_eq!(places(machine, page), [ADDR]);
                }
            });
            scope.spawn(move || exit(child));
        });
    });
}

/// Two processes in one anon_vma exit at once. The last one to leave the anon_vma may have finished before
/// the other has taken its page out of the tables: a walk from that page finds it, or nothing.
#[test]
fn shuttle_a_walk_against_two_exits_from_one_anon_vma() {
    check_space(3, |machine, space| {
        let (parent, child, page) = as_one_step(|| {
            written(machine, space, ADDR, 1);
            // Generations that fork and exit leave more anon_vmas without VMAs than VMAs: the last child
            // joins.
            let second = fork(space);
            space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
            let third = fork(&second);
            drop(second);
            let before = private_pages(machine);
            let fourth = fork(&third);
            write(machine, 0, &third, ADDR, 5);
            let page = private_pages(machine).into_iter().find(|page| !before.contains(page));
            (third, fourth, page.expect("the parent has its own"))
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..4 {
                    let places = places(machine, page);
                    assert!(places.is_empty() || places == [ADDR], "{places:?}");
                }
            });
            scope.spawn(move || exit(parent));
            // In one step: what matters is where the parent is meanwhile.
            scope.spawn(move || drop(child));
        });
    });
}

/// Two faults give one mapping its anon_vma; a walk comes as soon as there is a page.
#[test]
fn shuttle_a_walk_against_the_first_page_of_a_mapping() {
    check_space(2, |machine, space| {
        map(space, BEFORE, 2);
        thread::scope(|scope| {
            for (cpu, addr) in [BEFORE, ADDR].into_iter().enumerate() {
                scope.spawn(move || {
                    on_cpu(machine, cpu, space, |program| program.write_u64(addr, 1)).expect("mapped");
                    let pages = private_pages(machine).into_iter();
                    let found: Vec<_> = pages.flat_map(|page| places(machine, page)).collect();
                    assert!(found.contains(&addr), "found at {found:?}");
                });
            }
        });
    });
}
