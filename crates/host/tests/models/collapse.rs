//! A collapse of shared memory against what programs and reclaim do with its pages.

use crate::common::file_request;
use crate::machines::*;
use crate::shmem::write_beside_another;
use quire_mm::file::File;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Where a large leaf may be.
const BLOCK: VirtAddr = VirtAddr(1 << 39);
/// The second page of it.
const NEXT: VirtAddr = VirtAddr(BLOCK.0 + PAGE);

/// A block of shared memory that is mapped at [`BLOCK`], with 1 and 2 in its first pages.
fn block<'m>(machine: &'m Machine, space: &HostSpace<'_>) -> File<'m, HostPlatform> {
    as_one_step(|| {
        let file = machine.memory().create_shmem((), MIB2).expect("there is memory enough");
        let request = file_request(0, 512, RW, MapFlags::SHARED).at(BLOCK, MapFlags::FIXED);
        space.mmap_file(&request, &file).expect("there is memory enough");
        write(machine, 0, space, BLOCK, 1);
        write(machine, 0, space, NEXT, 2);
        file
    })
}

fn collapse(machine: &Machine, cpu: usize, space: &HostSpace<'_>) -> bool {
    on_cpu(machine, cpu, space, |_| space.madvise(BLOCK, MIB2, Advice::Collapse)).is_ok()
}

/// What is told in the end: nothing is left of the file when it is dropped.
fn end(space: &HostSpace<'_>, file: File<'_, HostPlatform>) {
    as_one_step(|| {
        space.munmap(BLOCK, MIB2).expect("it is mapped");
        drop(file);
    });
}

/// Two programs write to words of a page in turn: no write is lost, and each sees what the other wrote.
#[test]
fn shuttle_a_collapse_of_shared_memory_against_two_writers() {
    with_swap(3).mib(8).check(FEW, |machine, space| {
        let file = block(machine, space);
        let child = fork(space);
        thread::scope(|scope| {
            for (cpu, space) in [(0, space), (1, &*child)] {
                scope.spawn(move || write_beside_another(machine, cpu, space, NEXT));
            }
            scope.spawn(|| collapse(machine, 2, space));
        });
        let seen = as_one_step(|| [0, 8, 16].map(|at| read(machine, 0, &child, VirtAddr(NEXT.0 + at))));
        assert_eq!(seen, [2, 3, 3]);
        drop(child);
        end(space, file);
    });
}

/// A hole takes the page, also of the new folio, and nothing brings it back.
#[test]
fn shuttle_a_collapse_of_shared_memory_against_a_hole() {
    with_swap(3).mib(8).check(FEW, |machine, space| {
        let file = block(machine, space);
        let gone = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let late = gone.is_told();
                    let seen = read(machine, 0, space, BLOCK);
                    assert!(seen == 0 || seen == 1 && !late, "{seen}");
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.madvise(BLOCK, PAGE, Advice::Remove).expect("it is shared memory");
                gone.tell();
            });
            scope.spawn(|| collapse(machine, 2, space));
        });
        assert_eq!(as_one_step(|| [BLOCK, NEXT].map(|at| read(machine, 0, space, at))), [0, 2]);
        end(space, file);
    });
}

/// The file becomes empty: nothing is left, whatever was collapsed.
#[test]
fn shuttle_a_collapse_of_shared_memory_against_a_truncation() {
    with_swap(2).mib(8).check(FEW, |machine, space| {
        let file = block(machine, space);
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || file.set_size(0).expect("a file can be empty")));
            scope.spawn(|| collapse(machine, 1, space));
        });
        as_one_step(|| {
            assert_eq!(file.figures().cached + file.figures().swapped, 0, "past the end");
            assert_eq!(machine.memory().file_totals().promised, 0);
        });
        end(space, file);
    });
}

/// Pages go out and come back while others read them.
#[test]
fn shuttle_a_collapse_of_shared_memory_against_page_out() {
    with_swap(3).slots(1024).mib(8).check(FEW, |machine, space| {
        let file = block(machine, space);
        thread::scope(|scope| {
            scope.spawn(|| {
                page_out(space, BLOCK, 2 * PAGE);
                reclaim(machine, 0);
            });
            scope.spawn(|| {
                for _ in 0..2 {
                    assert_eq!([BLOCK, NEXT].map(|at| read(machine, 1, space, at)), [1, 2]);
                }
            });
            scope.spawn(|| collapse(machine, 2, space));
        });
        assert_eq!(as_one_step(|| [BLOCK, NEXT].map(|at| read(machine, 0, space, at))), [1, 2]);
        end(space, file);
    });
}

/// A device writes to the page that it was given, and the program reads that.
#[test]
fn shuttle_a_collapse_of_shared_memory_against_a_pin() {
    with_swap(2).mib(8).check(FEW, |machine, space| {
        let file = block(machine, space);
        thread::scope(|scope| {
            scope.spawn(|| {
                let pinned =
                    on_cpu(machine, 0, space, |_| space.pin_page(BLOCK, Access::Write)).expect("mapped");
                device_writes(machine, &pinned, 5);
                assert_eq!(read(machine, 0, space, BLOCK), 5, "the program lost the page that is pinned");
                device_writes(machine, &pinned, 6);
                assert_eq!(read(machine, 0, space, BLOCK), 6, "the program lost the page that is pinned");
                as_one_step(|| drop(pinned));
            });
            scope.spawn(|| collapse(machine, 1, space));
        });
        assert_eq!(as_one_step(|| [BLOCK, NEXT].map(|at| read(machine, 0, space, at))), [6, 2]);
        end(space, file);
    });
}

/// Two collapses, by programs that share the memory: one folio is made, and both map it in the end.
#[test]
fn shuttle_two_collapses_of_one_block() {
    with_swap(2).mib(12).check(FEW, |machine, space| {
        let file = block(machine, space);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| collapse(machine, 0, space));
            scope.spawn(|| collapse(machine, 1, &child));
        });
        as_one_step(|| {
            for space in [space, &*child] {
                assert_eq!([BLOCK, NEXT].map(|at| read(machine, 0, space, at)), [1, 2]);
            }
            let totals = machine.memory().file_totals();
            assert_eq!((totals.shmem, totals.shmem_huge), (512, 512));
        });
        drop(child);
        end(space, file);
    });
}
