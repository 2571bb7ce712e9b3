//! Shared memory in folios of four pages that is paged out and in in one piece, while it is cut in its
//! middle.

use crate::common::{file_request, read_file, write_file};
use crate::machines::*;
use quire_frame::FolioCounter;
use quire_mm::file::*;
use quire_mm::proc::HugeFile;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

fn at(nth: u64) -> VirtAddr {
    VirtAddr(FOUR.0 + nth * PAGE)
}

/// A folio of four pages that have the numbers from 1 on, mapped at [`FOUR`].
fn large<'m>(machine: &'m Machine, space: &HostSpace<'_>) -> File<'m, HostPlatform> {
    as_one_step(|| {
        let size = HugeFile::find("hugepages-16kB/shmem_enabled").expect("a folio can have four pages");
        size.write(machine.memory(), "always").expect("it can be said");
        let file = machine.memory().create_shmem((), 4 * PAGE).expect("there is memory enough");
        let request = file_request(0, 4, RW, MapFlags::SHARED).at(FOUR, MapFlags::FIXED);
        space.mmap_file(&request, &file).expect("there is memory enough");
        (0..4).for_each(|nth| write(machine, 0, space, at(nth), nth + 1));
        let order = Order::new(2).expect("a folio can have four pages");
        let made = machine.memory().frames().events().folios(order, FolioCounter::ShmemAlloc);
        assert_eq!(made, 1, "it is in pages");
        file
    })
}

/// The same, on the device only in one piece, or in memory and unreferenced.
fn large_out<'m>(machine: &'m Machine, space: &HostSpace<'_>, is_out: bool) -> File<'m, HostPlatform> {
    let file = large(machine, space);
    if is_out {
        as_one_step(|| {
            page_out(space, FOUR, 4 * PAGE);
            assert_eq!((file.figures().swapped, file.figures().cached), (4, 0), "it is not out");
        });
    }
    file
}

fn has(machine: &Machine, space: &HostSpace<'_>, wanted: [u64; 4]) {
    let seen = as_one_step(|| [0, 1, 2, 3].map(|nth| read(machine, 0, space, at(nth))));
    assert_eq!(seen, wanted);
}

fn done(space: &HostSpace<'_>, file: File<'_, HostPlatform>) {
    as_one_step(|| {
        space.munmap(FOUR, 4 * PAGE).expect("it is mapped");
        drop(file);
    });
}

/// A hole in the middle while the rest is read, and all is paged out.
#[test]
fn shuttle_a_hole_in_the_middle_of_a_piece_against_page_out_and_swap_in() {
    for is_out in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            let file = large_out(machine, space, is_out);
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    assert_eq!(program.read_u64(at(3)), Ok(4));
                    let seen = program.read_u64(at(2));
                    assert!(seen == Ok(0) || seen == Ok(3), "{seen:?}");
                    assert_eq!(program.read_u64(at(0)), Ok(1));
                });
                scope.spawn(|| {
                    reclaim(machine, 2);
                    reclaim(machine, 2);
                });
                spawn_on(scope, machine, 1, space, |_| {
                    space.madvise(at(1), 2 * PAGE, Advice::Remove).expect("it is shared memory");
                });
            });
            has(machine, space, [1, 0, 0, 4]);
            done(space, file);
        });
    }
}

/// An end in the middle.
#[test]
fn shuttle_an_end_in_the_middle_of_a_piece_against_page_out_and_swap_in() {
    for is_out in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            let file = large_out(machine, space, is_out);
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    let seen = program.read_u64(at(3));
                    assert!(seen == Ok(4) || seen == Ok(0) || seen.is_err(), "{seen:?}");
                    assert_eq!(program.read_u64(at(0)), Ok(1));
                });
                scope.spawn(|| reclaim(machine, 2));
                scope.spawn(|| {
                    as_cpu(machine, 1, || {
                        file.set_size(PAGE).expect("there is memory enough");
                        let figures = file.figures();
                        assert!(figures.swapped + figures.cached <= 4, "{figures:?}");
                        file.set_size(4 * PAGE).expect("a file can have four pages");
                    });
                });
            });
            has(machine, space, [1, 0, 0, 0]);
            done(space, file);
        });
    }
}

/// There is no block of slots: it is split while programs write to it.
#[test]
fn shuttle_a_split_at_page_out_against_two_writers() {
    with_swap(3).slots(3).check(SOME, move |machine, space| {
        let file = large(machine, space);
        let child = fork(space);
        thread::scope(|scope| {
            for (cpu, space) in [(0, space), (1, &*child)] {
                scope.spawn(move || {
                    for nth in [1, 2] {
                        let own = VirtAddr(at(nth).0 + 8 + 8 * cpu as u64);
                        write(machine, cpu, space, own, nth);
                        assert_eq!(read(machine, cpu, space, own), nth, "a lost write");
                    }
                });
            }
            scope.spawn(|| {
                reclaim(machine, 2);
                reclaim(machine, 2);
            });
        });
        has(machine, space, [1, 2, 3, 4]);
        as_one_step(|| {
            for (nth, word) in [(1, 8), (1, 16), (2, 8), (2, 16)] {
                assert_eq!(read(machine, 2, space, VirtAddr(at(nth).0 + word)), nth);
            }
        });
        drop(child);
        done(space, file);
    });
}

/// ... or cut at the same time.
#[test]
fn shuttle_a_split_at_page_out_against_a_hole() {
    with_swap(3).slots(3).check(SOME, move |machine, space| {
        let file = large(machine, space);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                assert_eq!(program.read_u64(at(3)), Ok(4));
                assert_eq!(program.write_u64(at(0), 9), Ok(()));
            });
            scope.spawn(|| {
                reclaim(machine, 2);
                reclaim(machine, 2);
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.madvise(at(1), 2 * PAGE, Advice::Remove).expect("it is shared memory");
            });
        });
        has(machine, space, [9, 0, 0, 4]);
        done(space, file);
    });
}

/// ... or the file is written behind its end, in a folio of its own: no part of that is taken for what lies
/// past the end.
#[test]
fn shuttle_a_split_at_page_out_against_a_write_past_the_end() {
    with_swap(3).slots(3).check(SOME, move |machine, space| {
        let file = large(machine, space);
        as_one_step(|| {
            let common = HugeFile::find("shmem_enabled").expect("shared memory has large folios");
            common.write(machine.memory(), "within_size").expect("it can be said");
        });
        let words: Vec<u8> = (0..4 * PAGE / 8).flat_map(u64::to_le_bytes).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                as_cpu(machine, 0, || write_file(&file, 4 * PAGE, &words));
            });
            scope.spawn(|| {
                reclaim(machine, 2);
                reclaim(machine, 2);
            });
        });
        as_one_step(|| {
            assert_eq!(file.size(), 8 * PAGE);
            for nth in 0..4 {
                let first = (nth * PAGE / 8).to_le_bytes();
                assert_eq!(read_file(&file, (4 + nth) * PAGE, 8), first, "page {nth} was lost");
            }
        });
        has(machine, space, [1, 2, 3, 4]);
        done(space, file);
    });
}

/// A piece is read as a whole by one program, and page by page by another, and the device is removed.
#[test]
fn shuttle_a_piece_that_comes_back_in_two_ways_against_a_swapoff() {
    for removes in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            let file = large_out(machine, space, true);
            let child = fork(space);
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    assert_eq!(program.read_u64(at(2)), Ok(3));
                    assert_eq!(program.write_u64(at(1), 7), Ok(()));
                });
                spawn_on(scope, machine, 1, &child, |program| {
                    child.madvise(at(1), PAGE, Advice::WillNeed).expect("it is mapped");
                    let seen = program.read_u64(at(1));
                    assert!(seen == Ok(2) || seen == Ok(7), "{seen:?}");
                });
                scope.spawn(|| match removes {
                    true => as_cpu(machine, 2, || swap_off(machine).expect("there is memory enough")),
                    false => reclaim(machine, 2),
                });
            });
            has(machine, space, [1, 7, 3, 4]);
            drop(child);
            done(space, file);
        });
    }
}
