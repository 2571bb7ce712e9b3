//! Fast pins, which find tables without the mmap lock, against what frees, moves and shares them.

use crate::common::file_request;
use crate::machines::*;
use crate::table_setup::{ADDR, ELSEWHERE, FEW, SOME, drop_all, reap, roomy, roomy_with_leaves, written};
use quire_mm::file::{File, Seals};
use quire_mm::proc::HugeFile;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

/// Pins the page at `ADDR` without a lock while `others` runs on CPU 1, which maps `ELSEWHERE` and writes 9
/// there. What the device writes to its page in the end must not be another owner's memory.
fn pin_against(machine: &Machine, space: &HostSpace<'_>, others: impl FnOnce() + Send) {
    let mut pinned = None;
    thread::scope(|scope| {
        scope.spawn(|| pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write)));
        scope.spawn(others);
    });
    as_one_step(|| {
        if let Some(pinned) = &pinned {
            device_writes(machine, pinned, 5);
        }
        assert_eq!(read(machine, 1, space, ELSEWHERE), 9, "a device wrote to another page");
        drop(pinned);
    });
}

/// Hazard: a fast pin reads tables that are being freed, and pins what its frame has become.
#[test]
fn shuttle_a_fast_pin_against_the_freeing_of_its_tables() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PMD, 1);
        // It has its anon_vma, by another page.
        written(machine, space, ELSEWHERE, 2 * PAGE, 1);
        as_one_step(|| space.madvise(ELSEWHERE, PAGE, Advice::DontNeed)).expect("cannot fail");
        pin_against(machine, space, || {
            on_cpu(machine, 1, space, |_| {
                drop_all(space, ADDR, PMD);
                as_one_step(|| reap(machine));
                space.fault(ELSEWHERE, Access::Write).expect("mapped");
            });
            as_one_step(|| write(machine, 1, space, ELSEWHERE, 9));
        });
    });
}

/// The frame is unmapped and reused: as a page, or by a fault that frees it unused, since another was faster.
#[test]
fn shuttle_a_fast_pin_against_the_reuse_of_its_frame() {
    roomy(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        written(machine, space, ELSEWHERE, 2 * PAGE, 1);
        as_one_step(|| space.madvise(ELSEWHERE, PAGE, Advice::DontNeed)).expect("cannot fail");
        pin_against(machine, space, || {
            on_cpu(machine, 1, space, |_| space.munmap(ADDR, PAGE)).expect("the end of a mapping can go");
            thread::scope(|scope| {
                for cpu in [1, 2] {
                    scope.spawn(move || {
                        on_cpu(machine, cpu, space, |_| space.fault(ELSEWHERE, Access::Write))
                            .expect("mapped");
                    });
                }
            });
            as_one_step(|| write(machine, 1, space, ELSEWHERE, 9));
        });
    });
}

/// Hazard: a pinned page is never shared, and stays the parent's.
#[test]
fn shuttle_a_fast_pin_against_a_fork() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let (mut pinned, mut child) = (None, None);
        thread::scope(|scope| {
            scope.spawn(|| {
                pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
                if let Some(pinned) = &pinned {
                    device_writes(machine, pinned, 5);
                }
            });
            scope.spawn(|| {
                child = Some(fork_on(machine, 1, space));
            });
        });
        as_one_step(|| {
            let child = child.expect("it was made");
            let seen = read(machine, 1, &child, ADDR);
            assert!(seen == 1 || seen == 5, "{seen}");
            if let Some(pinned) = &pinned {
                device_writes(machine, pinned, 6);
                assert_eq!(read(machine, 0, space, ADDR), 6, "the program lost the page that is pinned");
                write(machine, 0, space, ADDR, 7);
                assert_eq!(device_reads(machine, pinned), 7, "the program got a copy of a pinned page");
            }
            assert_eq!(read(machine, 1, &child, ADDR), seen, "the child sees what the device wrote later");
            drop((pinned, child));
        });
    });
}

/// The page moves with its table, and another comes to be where it was. What is pinned is one of the two.
#[test]
fn shuttle_a_fast_pin_against_a_move_of_its_table() {
    for bytes in [PMD, PUD] {
        roomy(2).check(SOME, move |machine, space| {
            written(machine, space, ADDR, bytes, 1);
            let mut pinned = None;
            thread::scope(|scope| {
                scope.spawn(|| {
                    pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
                });
                spawn_on(scope, machine, 1, space, |program| {
                    move_end(space, ADDR, ELSEWHERE, bytes);
                    map(space, ADDR, 1);
                    program.write_u64(ADDR, 2).expect("mapped");
                });
            });
            as_one_step(|| {
                if let Some(pinned) = &pinned {
                    device_writes(machine, pinned, 7);
                    let seen = [ADDR, ELSEWHERE].map(|addr| read(machine, 0, space, addr));
                    assert!(seen == [7, 1] || seen == [2, 7], "{seen:?}");
                }
            });
        });
    }
}

/// A collapse looks for pins, and a pin may come after that look: one of the two must give up.
#[test]
fn shuttle_a_fast_pin_against_a_collapse() {
    roomy_with_leaves(RemapTechnique::Puds).check(FEW, |machine, space| {
        written(machine, space, ADDR, PMD, 1);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
            });
            scope.spawn(|| {
                // Done, or busy.
                let start = VirtAddr(ADDR.0 + PAGE - PMD);
                let _ = on_cpu(machine, 1, space, |_| space.madvise(start, PMD, Advice::Collapse));
            });
        });
        as_one_step(|| {
            if let Some(pinned) = &pinned {
                device_writes(machine, pinned, 7);
                assert_eq!(read(machine, 0, space, ADDR), 7, "the program lost the page that is pinned");
            } else {
                assert_eq!(read(machine, 0, space, ADDR), 1);
            }
        });
    });
}

/// A write copies a page that was shared with a child. The child exits meanwhile, so that the page is
/// exclusive, and a device gets a pin of it before the copy takes its place: device and program must use one
/// page.
#[test]
fn shuttle_a_fast_pin_against_a_copy_on_write() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || space.fault(ADDR, Access::Write)).expect("mapped"));
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    as_one_step(|| drop(child));
                    pinned = space.pin_page_fast(ADDR, Access::Read);
                });
            });
        });
        as_one_step(|| {
            write(machine, 0, space, ADDR, 7);
            if let Some(pinned) = &pinned {
                assert_eq!(device_reads(machine, pinned), 7, "device and program use different pages");
            }
            drop(pinned);
        });
    });
}

/// A file of shared memory of one page that has 1, mapped at [`ADDR`].
fn shared<'m>(
    machine: &'m Machine,
    space: &HostSpace<'_>,
    pages: u64,
) -> ManuallyDrop<File<'m, HostPlatform>> {
    ManuallyDrop::new(as_one_step(|| {
        let file = machine.memory().create_shmem((), pages * PAGE).expect("there is memory enough");
        let request = file_request(0, pages, RW, MapFlags::SHARED).at(ADDR, MapFlags::FIXED);
        space.mmap_file(&request, &file).expect("there is memory enough");
        (0..pages).for_each(|at| write(machine, 0, space, VirtAddr(ADDR.0 + at * PAGE), 1));
        file
    }))
}

/// Hazard: a device writes to memory that is sealed against writes.
#[test]
fn shuttle_a_fast_pin_of_shared_memory_against_a_seal() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        let file = shared(machine, space, 1);
        let sealed = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |_| {
                for _ in 0..2 {
                    let Some(pinned) = space.pin_page_fast(ADDR, Access::Write) else { continue };
                    assert!(!sealed.is_told(), "a device can write after the seal");
                    thread::yield_now();
                    assert!(!sealed.is_told(), "a device can write after the seal");
                    drop(pinned);
                }
            });
            spawn_on(scope, machine, 1, space, |_| space.munmap(ADDR, PAGE).expect("a mapping can go"));
            scope.spawn(|| {
                as_cpu(machine, 2, || {
                    if (0..4).any(|_| file.add_seals(Seals::WRITE).is_ok()) {
                        sealed.tell();
                    }
                });
            });
        });
        as_one_step(|| drop(ManuallyDrop::into_inner(file)));
    });
}

/// Hazard: what a device writes to a page that is paged out is lost.
#[test]
fn shuttle_a_fast_pin_of_shared_memory_against_page_out() {
    with_swap(2).check(SOME, |machine, space| {
        let file = shared(machine, space, 1);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write)));
            scope.spawn(|| on_cpu(machine, 1, space, |_| page_out(space, ADDR, PAGE)));
        });
        as_one_step(|| {
            let expected = if let Some(pinned) = &pinned {
                device_writes(machine, pinned, 5);
                5
            } else {
                1
            };
            assert_eq!(read(machine, 1, space, ADDR), expected, "what a device has written is lost");
            drop(pinned);
            page_out(space, ADDR, PAGE);
            assert_eq!(read(machine, 1, space, ADDR), expected, "what a device has written is lost");
            space.munmap(ADDR, PAGE).expect("a mapping can go");
            drop(ManuallyDrop::into_inner(file));
        });
    });
}

/// The page leaves its file, and its frame is reused.
#[test]
fn shuttle_a_fast_pin_of_shared_memory_against_truncation() {
    with_swap(2).slots(0).check(SOME, |machine, space| {
        let file = shared(machine, space, 1);
        written(machine, space, ELSEWHERE, 2 * PAGE, 1);
        as_one_step(|| space.madvise(ELSEWHERE, PAGE, Advice::DontNeed)).expect("cannot fail");
        pin_against(machine, space, || {
            as_cpu(machine, 1, || {
                file.set_size(0).expect("a file can be empty");
                file.set_size(PAGE).expect("a file can have a page");
            });
            on_cpu(machine, 1, space, |_| space.fault(ELSEWHERE, Access::Write)).expect("mapped");
            as_one_step(|| write(machine, 1, space, ELSEWHERE, 9));
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, ADDR), 0, "the file has a page that was cut off");
            space.munmap(ADDR, PAGE).expect("a mapping can go");
            drop(ManuallyDrop::into_inner(file));
        });
    });
}

/// A hole cuts a large folio of which a page is pinned: the pin is of one page that the file has, or had.
#[test]
fn shuttle_a_fast_pin_against_the_split_of_shared_memory() {
    with_swap(2).slots(0).check(SOME, |machine, space| {
        as_one_step(|| {
            let switch = HugeFile::find("hugepages-16kB/shmem_enabled").expect("there is one");
            switch.write(machine.memory(), "always").expect("that can be set");
        });
        let file = shared(machine, space, 4);
        let at = VirtAddr(ADDR.0 + 2 * PAGE);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(at, Access::Write)));
            scope.spawn(|| as_cpu(machine, 1, || file.punch(PAGE..2 * PAGE, |_| Ok(())).expect("a hole")));
        });
        as_one_step(|| {
            if let Some(pinned) = &pinned {
                device_writes(machine, pinned, 5);
                assert_eq!(read(machine, 0, space, at), 5, "the program lost the page that is pinned");
            }
            drop(pinned);
            let seen = [0, 1, 3].map(|nth| read(machine, 0, space, VirtAddr(ADDR.0 + nth * PAGE)));
            assert_eq!(seen, [1, 0, 1]);
            audit(machine);
            space.munmap(ADDR, 4 * PAGE).expect("a mapping can go");
            drop(ManuallyDrop::into_inner(file));
        });
    });
}
