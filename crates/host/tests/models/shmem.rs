//! Shared memory that is paged out and in while programs access it, cut it, and drop it.

use crate::common::{file_request, write_file};
use crate::files::PAST_END;
use crate::machines::*;
use crate::taken::Taken;
use quire_mm::file::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// A page of shared memory that has 1, mapped at [`ADDR`] by a program and its child.
pub(crate) fn shared(machine: &Machine, space: &HostSpace<'_>) {
    as_one_step(|| {
        let request = MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(PAGE, RW) };
        space.mmap(&request.at(ADDR, MapFlags::FIXED)).expect("there is memory enough");
        write(machine, 0, space, ADDR, 1);
    });
}

/// A page of shared memory with a name that has 1, mapped at [`ADDR`].
fn named<'m>(machine: &'m Machine, space: &HostSpace<'_>) -> File<'m, HostPlatform> {
    as_one_step(|| {
        let file = machine.memory().create_shmem((), PAGE).expect("there is memory enough");
        let request = file_request(0, 1, RW, MapFlags::SHARED).at(ADDR, MapFlags::FIXED);
        space.mmap_file(&request, &file).expect("there is memory enough");
        write(machine, 0, space, ADDR, 1);
        file
    })
}

/// The page is on the device only.
fn out(machine: &Machine, space: &HostSpace<'_>) {
    as_one_step(|| {
        page_out(space, ADDR, PAGE);
        assert_eq!(machine.memory().file_totals().shmem, 0, "the page is not out");
    });
}

/// The first or the second of two programs writes 1, 2 and 3 to its word of the page at `addr`, behind the
/// first one: none is lost, and what the other one writes is seen in its order.
pub(crate) fn write_beside_another(machine: &Machine, cpu: usize, space: &HostSpace<'_>, addr: VirtAddr) {
    let (own, other) = (addr.0 + 8 + 8 * cpu as u64, addr.0 + 16 - 8 * cpu as u64);
    let mut last = 0;
    for value in 1..4 {
        write(machine, cpu, space, VirtAddr(own), value);
        assert_eq!(read(machine, cpu, space, VirtAddr(own)), value, "a lost write");
        let seen = read(machine, cpu, space, VirtAddr(other));
        assert!(seen >= last, "{seen} after {last}");
        last = seen;
    }
}

/// Two programs write to the words of a page in turn while others page it out: no write is lost, and each
/// sees what the other wrote.
#[test]
fn shuttle_a_page_out_of_shared_memory_against_two_writers() {
    with_swap(3).check(SOME, |machine, space| {
        shared(machine, space);
        let child = fork(space);
        thread::scope(|scope| {
            for (cpu, space) in [(0, space), (1, &*child)] {
                scope.spawn(move || write_beside_another(machine, cpu, space, ADDR));
            }
            scope.spawn(|| {
                reclaim(machine, 2);
                reclaim(machine, 2);
            });
        });
        let seen = as_one_step(|| [0, 8, 16].map(|at| read(machine, 0, &child, VirtAddr(ADDR.0 + at))));
        assert_eq!(seen, [1, 3, 3]);
    });
}

/// Two programs fault on a page that is out: it comes once, for both.
#[test]
fn shuttle_two_swap_ins_of_one_page_of_shared_memory() {
    with_swap(3).check(SOME, |machine, space| {
        shared(machine, space);
        let child = fork(space);
        out(machine, space);
        thread::scope(|scope| {
            for (cpu, space) in [(0, space), (1, &*child)] {
                scope.spawn(move || {
                    assert_eq!(read(machine, cpu, space, ADDR), 1);
                    write(machine, cpu, space, VirtAddr(ADDR.0 + 8 + 8 * cpu as u64), 7);
                });
            }
            scope.spawn(|| reclaim(machine, 2));
        });
        let seen = as_one_step(|| [0, 8, 16].map(|at| read(machine, 2, space, VirtAddr(ADDR.0 + at))));
        assert_eq!(seen, [1, 7, 7], "two pages for one");
    });
}

/// A hole takes the page wherever it is, and nothing brings it back.
#[test]
fn shuttle_a_hole_against_page_out_and_swap_in() {
    for is_out in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            shared(machine, space);
            if is_out {
                out(machine, space);
            }
            let gone = Fact::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let late = gone.is_told();
                        let seen = read(machine, 0, space, ADDR);
                        assert!(seen == 0 || seen == 1 && !late, "{seen}");
                    }
                });
                scope.spawn(|| reclaim(machine, 2));
                spawn_on(scope, machine, 1, space, |_| {
                    space.madvise(ADDR, PAGE, Advice::Remove).expect("it is shared memory");
                    gone.tell();
                });
            });
            assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 0);
        });
    }
}

/// A file is cut to nothing, and grows again, while its page goes out and comes back.
#[test]
fn shuttle_a_truncation_against_page_out_and_swap_in() {
    for is_out in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            let file = named(machine, space);
            if is_out {
                out(machine, space);
            }
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    for _ in 0..3 {
                        let seen = program.read_u64(ADDR);
                        assert!(matches!(seen, Ok(0 | 1)) || seen == Err(PAST_END), "{seen:?}");
                    }
                });
                scope.spawn(|| reclaim(machine, 2));
                scope.spawn(|| {
                    as_cpu(machine, 1, || {
                        file.set_size(0).expect("a file can be empty");
                        assert_eq!(file.figures().swapped + file.figures().cached, 0, "past the end");
                        file.set_size(PAGE).expect("a file can have a page");
                    });
                });
            });
            assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 0);
            as_one_step(|| {
                space.munmap(ADDR, PAGE).expect("it is mapped");
                drop(file);
            });
        });
    }
}

/// The end of a file in a page that is going out, or coming back: what is behind it is zeros.
#[test]
fn shuttle_a_cut_page_against_page_out_and_swap_in() {
    with_swap(3).check(SOME, |machine, space| {
        let file = named(machine, space);
        as_one_step(|| write_file(&file, 8, &7_u64.to_le_bytes()));
        thread::scope(|scope| {
            scope.spawn(|| reclaim(machine, 2));
            scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), 1));
            scope.spawn(|| {
                as_cpu(machine, 1, || file.set_size(8).expect("there is memory enough"));
            });
        });
        as_one_step(|| {
            file.set_size(PAGE).expect("a file can have a page");
            assert_eq!([ADDR, VirtAddr(ADDR.0 + 8)].map(|at| read(machine, 0, space, at)), [1, 0]);
            space.munmap(ADDR, PAGE).expect("it is mapped");
            drop(file);
        });
    });
}

/// The device is removed while the page is read, paged out, and dropped by its last mapping.
#[test]
fn shuttle_a_swapoff_against_the_end_of_shared_memory() {
    for unmaps in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            shared(machine, space);
            out(machine, space);
            thread::scope(|scope| {
                scope.spawn(|| as_cpu(machine, 0, || swap_off(machine).expect("there is memory enough")));
                scope.spawn(|| reclaim(machine, 2));
                spawn_on(scope, machine, 1, space, |program| match unmaps {
                    true => space.munmap(ADDR, PAGE).expect("it is mapped"),
                    false => assert_eq!(program.read_u64(ADDR), Ok(1)),
                });
            });
            if !unmaps {
                assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 1);
            }
        });
    }
}

/// Two calls each unmap the last mapping of a file: what it had is gone when its call returns.
#[test]
fn shuttle_a_file_is_gone_when_the_call_that_unmapped_it_returns() {
    with_swap(2).check(SOME, |machine, space| {
        let maps = [ADDR, ELSEWHERE].map(|addr| {
            as_one_step(|| {
                let taken = Taken::default();
                let file =
                    machine.memory().create_shmem(taken.clone(), PAGE).expect("there is memory enough");
                let request = file_request(0, 1, RW, MapFlags::SHARED).at(addr, MapFlags::FIXED);
                space.mmap_file(&request, &file).expect("there is memory enough");
                write(machine, 0, space, addr, 1);
                (addr, taken)
            })
        });
        thread::scope(|scope| {
            for (cpu, (addr, taken)) in maps.iter().enumerate() {
                scope.spawn(move || {
                    as_cpu(machine, cpu, || space.munmap(*addr, PAGE).expect("it is mapped"));
                    assert_eq!(taken.pages(), 0, "its page is there still");
                });
            }
        });
    });
}

/// One program unmaps the page, which its CPU's TLB has until the flush, while it is paged out: what it wrote
/// before is in the page for the other.
#[test]
fn shuttle_a_page_out_against_a_mapping_in_transit() {
    with_swap(3).check(SOME, |machine, space| {
        shared(machine, space);
        let child = fork(space);
        as_one_step(|| _ = read(machine, 0, &child, ADDR));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, &child, |program| {
                let mut written = 1;
                for value in 2..5 {
                    if program.write_u64(ADDR, value).is_ok() {
                        written = value;
                    }
                }
                let _ = written;
            });
            scope.spawn(|| {
                as_cpu(machine, 1, || child.munmap(ADDR, PAGE).expect("it is mapped"));
                let first = read(machine, 1, space, ADDR);
                assert_eq!(read(machine, 1, space, ADDR), first, "a write after the unmapping");
            });
            scope.spawn(|| reclaim(machine, 2));
        });
    });
}

/// A page that was only read is paged out while two programs write to it for the first time, one through the
/// entry that it has, and one of them unmaps it: no write is lost.
#[test]
fn shuttle_a_page_that_was_only_read_is_dropped_beside_its_first_write() {
    with_swap(3).check(SOME, |machine, space| {
        as_one_step(|| {
            let request = MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(PAGE, RW) };
            space.mmap(&request.at(ADDR, MapFlags::FIXED)).expect("there is memory enough");
        });
        let child = fork(space);
        as_one_step(|| assert_eq!([space, &*child].map(|space| read(machine, 0, space, ADDR)), [0, 0]));
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, VirtAddr(ADDR.0 + 8), 7);
                assert_eq!(read(machine, 0, space, VirtAddr(ADDR.0 + 8)), 7, "a lost write");
            });
            spawn_on(scope, machine, 1, &child, |program| {
                program.write_u64(VirtAddr(ADDR.0 + 16), 8).expect("mapped");
                child.munmap(ADDR, PAGE).expect("it is mapped");
            });
            scope.spawn(|| {
                reclaim(machine, 2);
                reclaim(machine, 2);
            });
        });
        let seen = as_one_step(|| [0, 8, 16].map(|at| read(machine, 0, space, VirtAddr(ADDR.0 + at))));
        assert_eq!(seen, [0, 7, 8], "a lost write");
    });
}
