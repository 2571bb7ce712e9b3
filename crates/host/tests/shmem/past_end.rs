//! What large folios have past the end of their file.

use crate::common::*;
use crate::large::{AREA, set};
use quire_frame::FailPlan;
use quire_mm::file::{File, FileError, PageBytes, PageError, ShmemOwner, UserCopy};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// What is done with a file. All figures are pages of a quarter.
#[derive(Clone, Debug)]
enum Step {
    Write(Range<u64>),
    /// The bytes cannot be read.
    WriteNothing(Range<u64>),
    Punch(Range<u64>),
    Size(u64),
    Allocate(Range<u64>),
    AllocateKeepingSize(Range<u64>),
    /// COLD of a part, by a mapping.
    Cold(Range<u64>),
}

use Step::{Allocate, AllocateKeepingSize, Cold, Punch, Size, Write, WriteNothing};

struct Nothing(u64);

impl UserCopy for Nothing {
    fn left(&self) -> u64 {
        self.0
    }

    fn fault_in(&mut self, _: usize) -> usize {
        0
    }

    fn copy(&mut self, _: PageBytes<'_>) -> usize {
        0
    }

    fn advance(&mut self, _: usize) {}
}

/// In quarters of pages.
const fn quarters(pages: Range<u64>) -> Range<u64> {
    4 * pages.start..4 * pages.end
}

const fn bytes(quarters: &Range<u64>) -> Range<u64> {
    quarters.start * PAGE / 4..quarters.end * PAGE / 4
}

fn make(step: &Step, file: &File<'_, HostPlatform>, space: &HostSpace<'_>, cpu: &Vcpu) {
    match step {
        Write(range) => {
            let bytes = bytes(range);
            write_file(file, bytes.start, &vec![1; (bytes.end - bytes.start) as usize]);
        }
        WriteNothing(range) => {
            let bytes = bytes(range);
            let done = file.write(bytes.start, &mut Nothing(bytes.end - bytes.start));
            assert_eq!((done.bytes, done.stopped), (0, Some(PageError::BadAddress)));
        }
        Punch(range) => file.punch(bytes(range), |_| Ok(())).unwrap(),
        Size(quarters) => file.set_size(quarters * PAGE / 4).unwrap(),
        Allocate(range) => file.allocate(bytes(range), false).unwrap(),
        AllocateKeepingSize(range) => file.allocate(bytes(range), true).unwrap(),
        Cold(range) => {
            let pages = file.size() / PAGE;
            let area = space.mmap_file(&file_request(0, pages, RW, MapFlags::SHARED), file).unwrap();
            (0..pages).for_each(|at| write(cpu, space, page(area, at), 1));
            let Range { start, end } = bytes(range);
            space.madvise(VirtAddr(area.0 + start), end - start, Advice::Cold).unwrap();
            space.munmap(area, pages * PAGE).unwrap();
        }
    }
}

/// What Linux 6.18 did with a file of a tmpfs with `huge=always`: how many pages it had after each step.
fn cases() -> Vec<Vec<(Step, u64)>> {
    let nine = || (Write(quarters(0..9)), 512);
    vec![
        vec![nine(), (Punch(quarters(2..3)), 15)],
        vec![nine(), (Punch(quarters(15..16)), 12)],
        vec![nine(), (Punch(9..10), 16)],
        vec![nine(), (Punch(9..15), 16)],
        vec![nine(), (Punch(quarters(0..4)), 12)],
        vec![nine(), (Punch(quarters(4..6)), 14)],
        vec![nine(), (Punch(quarters(0..9)), 0)],
        vec![nine(), (Punch(quarters(0..16)), 0)],
        vec![nine(), (Punch(quarters(12..14)), 12)],
        vec![nine(), (Size(128), 512), (Punch(quarters(2..3)), 31)],
        vec![nine(), (Size(36), 9)],
        vec![nine(), (Size(18), 5)],
        vec![(Write(quarters(0..32)), 512), (Size(32), 8), (Size(128), 8)],
        vec![(Write(0..18), 512), (Punch(quarters(0..4)), 1)],
        vec![(Write(quarters(0..3)), 512), (Punch(0..2), 4)],
        vec![(Write(quarters(0..3)), 512), (Punch(quarters(0..2)), 1)],
        vec![(Write(0..2066), 1024), (Punch(quarters(511..516)), 512)],
        vec![(Write(0..2082), 1024), (Punch(quarters(0..516)), 12)],
        vec![(AllocateKeepingSize(quarters(0..16)), 512), (Punch(quarters(2..3)), 15)],
        vec![nine(), (AllocateKeepingSize(quarters(0..4)), 512), (Punch(quarters(2..3)), 15)],
        vec![nine(), (AllocateKeepingSize(quarters(8..12)), 512), (Punch(quarters(2..3)), 15)],
        vec![
            (AllocateKeepingSize(quarters(0..32)), 512),
            (Write(quarters(0..5)), 512),
            (Punch(quarters(20..40)), 20),
            (Punch(quarters(2..3)), 19),
        ],
        vec![
            (AllocateKeepingSize(quarters(0..32)), 512),
            (Write(quarters(0..5)), 512),
            (Punch(quarters(16..20)), 28),
            (Punch(quarters(2..3)), 27),
        ],
        vec![(AllocateKeepingSize(quarters(0..32)), 512), (Size(20), 512), (Punch(quarters(2..3)), 31)],
        vec![(Allocate(quarters(0..32)), 512), (Size(20), 5), (Write(quarters(8..9)), 13), (Size(34), 6)],
        vec![nine(), (Cold(quarters(1..2)), 9)],
        vec![(WriteNothing(quarters(0..9)), 512), (Punch(quarters(4..6)), 4)],
        vec![
            (WriteNothing(quarters(512..521)), 512),
            (Punch(quarters(520..521)), 8),
            (Size(4096), 8),
            (Punch(quarters(513..514)), 7),
        ],
        vec![(WriteNothing(quarters(1..10)), 512)],
        vec![nine(), (WriteNothing(quarters(32..41)), 512)],
    ]
}

#[test]
fn what_is_past_the_end_goes_where_a_folio_is_split() {
    for case in cases() {
        let machine = machine(32, 1);
        set(&machine, "shmem_enabled", "always");
        let (cpu, space) = cpu_and_space(&machine);
        let file = machine.memory().create_shmem((), 0).unwrap();
        for (nth, (step, pages)) in case.iter().enumerate() {
            make(step, &file, &space, &cpu);
            let figures = file.figures();
            assert_eq!(figures.cached, *pages, "step {nth} of {case:?}");
            assert_audit(&machine);
        }
    }
}

/// A folio that crosses the end gets no slots for what is behind it, as in Linux.
#[test]
fn a_folio_in_which_its_file_ends_is_split_where_it_is_paged_out() {
    let machine = swapping(32, 1, 2048);
    set(&machine, "shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 0).unwrap();
    write_file(&file, 0, &[3; 9 * PAGE as usize]);
    let area = space.mmap_file(&file_request(0, 512, RW, MapFlags::SHARED), &file).unwrap();
    write(&cpu, &space, area, 4);
    space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((file.figures().cached, file.figures().swapped), (0, 9));
    assert_audit(&machine);
    assert_eq!(read(&cpu, &space, area), 4);
    assert_eq!(read_file(&file, 8 * PAGE, 4), [3; 4]);
    // What was allocated there stays, and goes in one piece.
    let file = machine.memory().create_shmem((), 0).unwrap();
    file.allocate(0..512 * PAGE, true).unwrap();
    write_file(&file, 0, &[3; 9 * PAGE as usize]);
    let area = space.mmap_file(&file_request(0, 512, RW, MapFlags::SHARED), &file).unwrap();
    write(&cpu, &space, area, 4);
    space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((file.figures().cached, file.figures().swapped), (0, 512));
    assert_audit(&machine);
}

#[test]
fn a_split_without_memory_keeps_what_is_past_the_end() {
    let machine = swapping(32, 1, 2048);
    set(&machine, "shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 0).unwrap();
    write_file(&file, 0, &[3; 9 * PAGE as usize]);
    let area = space.mmap_file(&file_request(0, 9, RW, MapFlags::SHARED), &file).unwrap();
    for (plan, cached) in [(FailPlan::every(1), 512), (FailPlan::OFF, 9)] {
        (0..9).for_each(|at| write(&cpu, &space, page(area, at), at + 1));
        failing(&machine, plan, || space.madvise(area, PAGE, Advice::Cold)).unwrap();
        assert_eq!(file.figures().cached, cached);
        assert_audit(&machine);
        (0..9).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), at + 1));
    }
}

/// A file system with room for so many pages.
#[derive(Clone)]
struct Room(Arc<AtomicU64>);

impl ShmemOwner for Room {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pages));
        taken.map(drop).map_err(|_| FileError::NoSpace)
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }

    fn file_system(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

fn full<'m>(machine: &'m Machine) -> (Room, [File<'m, HostPlatform>; 3]) {
    set(machine, "shmem_enabled", "always");
    let room = Room(Arc::new(AtomicU64::new(1024)));
    let files = [(); 3].map(|()| machine.memory().create_shmem(room.clone(), 0).unwrap());
    files[..2].iter().for_each(|file| write_file(file, 0, &[5]));
    assert_eq!(room.0.load(Ordering::Relaxed), 0);
    (room, files)
}

/// First the file that was the first to have a large folio past its end, as on Linux.
#[test]
fn a_full_file_system_frees_what_is_past_the_end_of_its_files() {
    let machine = machine(32, 1);
    let other = machine.memory().create_shmem((), 0).unwrap();
    let (room, [first, second, third]) = full(&machine);
    write_file(&other, 0, &[5]);
    let (cpu, space) = cpu_and_space(&machine);
    let area = space.mmap_file(&file_request(0, 1, RW, MapFlags::SHARED), &first).unwrap();
    write(&cpu, &space, area, 6);
    write_file(&third, 0, &[7]);
    let cached = |files: [&File<'_, HostPlatform>; 4]| files.map(|file| file.figures().cached);
    let now = cached([&first, &second, &third, &other]);
    assert_eq!(now[..2], [1, 512]);
    assert_eq!(room.0.load(Ordering::Relaxed), 511 - now[2]);
    assert_eq!(now[3], 512, "it takes nothing of that file system");
    assert_audit(&machine);
    assert_eq!(read(&cpu, &space, area), 6);
    // A fault, too, that finds no room.
    third.set_size(2048 * PAGE).unwrap();
    let request = file_request(0, 2048, RW, MapFlags::SHARED);
    let area = space.mmap_file(&request, &third).unwrap();
    (0..512).for_each(|at| write(&cpu, &space, page(area, 2 * at), 1));
    assert_eq!(cached([&first, &second, &third, &other])[..2], [1, 1]);
    assert_audit(&machine);
    for file in [first, second, third] {
        file.set_size(0).unwrap();
    }
    assert_eq!(room.0.load(Ordering::Relaxed), 1024);
}

#[test]
fn what_is_pinned_or_gone_is_passed_over() {
    let machine = machine(32, 1);
    let (room, [first, second, third]) = full(&machine);
    let (cpu, space) = cpu_and_space(&machine);
    let area = space.mmap_file(&file_request(0, 1, RW, MapFlags::SHARED), &first).unwrap();
    write(&cpu, &space, area, 6);
    let pin = space.pin_page(area, Access::Write).unwrap();
    write_file(&third, 0, &[7]);
    assert_eq!((first.figures().cached, second.figures().cached), (512, 1), "the search goes on");
    // There is nothing else.
    let is_full = |at: u64| {
        third.set_size(0).unwrap();
        room.0.store(0, Ordering::Relaxed);
        let mut bytes = [7];
        let done = third.write(at, &mut Buffer::new(&mut bytes));
        assert_eq!((done.bytes, done.stopped), (0, Some(PageError::File(FileError::NoSpace))));
        assert_audit(&machine);
    };
    is_full(0);
    drop(pin);
    write_file(&third, 0, &[7]);
    assert_eq!(first.figures().cached, 1, "it is tried another time");
    // A file that has ended is on no list.
    third.set_size(0).unwrap();
    room.0.store(512, Ordering::Relaxed);
    let fourth = machine.memory().create_shmem(room.clone(), 0).unwrap();
    write_file(&fourth, 0, &[7]);
    assert_eq!(fourth.figures().cached, 512);
    drop(fourth);
    is_full(1024 * PAGE);
}

/// They are on one list with those of a full one, which are found behind as many as there are.
#[test]
fn files_of_other_file_systems_are_passed_over() {
    let machine = machine(32, 1);
    set(&machine, "hugepages-16kB/shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let of_four = |owner: Room| {
        let file = machine.memory().create_shmem(owner, PAGE).unwrap();
        let request = file_request(0, 4, RW, MapFlags::SHARED).at(AREA, MapFlags::SHARED | MapFlags::FIXED);
        let area = space.mmap_file(&request, &file).unwrap();
        write(&cpu, &space, area, 5);
        file
    };
    let others = [(); 150].map(|()| of_four(Room(Arc::new(AtomicU64::new(4)))));
    let room = Room(Arc::new(AtomicU64::new(8)));
    let [first, second] = [(); 2].map(|()| of_four(room.clone()));
    assert_eq!(room.0.load(Ordering::Relaxed), 0);
    let third = of_four(room);
    let cached = [&first, &second, &third].map(|file| file.figures().cached);
    assert_eq!((cached[0], cached[1]), (1, 4));
    assert!(others.iter().all(|file| file.figures().cached == 4));
    assert_audit(&machine);
}

#[test]
fn where_memory_is_short_what_is_past_the_end_is_freed() {
    let machine = machine(16, 1);
    set(&machine, "shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 0).unwrap();
    write_file(&file, 0, &[5]);
    assert_eq!(file.figures().cached, 512);
    let request = MapRequest::anonymous(4096 * PAGE, RW).at(AREA, MapFlags::FIXED | MapFlags::NORESERVE);
    let area = space.mmap(&request).unwrap();
    for at in 0..4096 {
        if machine.memory().frames().watermarks().background_target() > 0 {
            break;
        }
        write(&cpu, &space, page(area, at), 1);
    }
    machine.memory().kswapd_step();
    assert_eq!(file.figures().cached, 1);
    assert_eq!(read_file(&file, 0, 1), [5]);
    assert_audit(&machine);
}

/// Each allocation fails once: there is no room, or what is past the end is freed.
#[test]
fn a_full_file_system_without_memory_for_nodes_keeps_what_is_there() {
    for nth in 1.. {
        let machine = machine(32, 1);
        let (_room, [first, second, third]) = full(&machine);
        let mut bytes = [7];
        let done = failing(&machine, FailPlan::nth(nth), || third.write(0, &mut Buffer::new(&mut bytes)));
        assert_audit(&machine);
        assert_eq!((read_file(&first, 0, 1), read_file(&second, 0, 1)), (vec![5], vec![5]));
        if done.stopped.is_none() {
            // Where a split has no memory that of the other file is tried.
            assert_eq!(done.bytes, 1);
            assert!(first.figures().cached == 1 || second.figures().cached == 1);
            if nth > 6 {
                break;
            }
        } else {
            assert!([1, 512].contains(&first.figures().cached), "{done:?}");
        }
    }
}

/// A hole that fails behind a folio that stays keeps what `fallocate` has promised.
#[test]
fn a_hole_that_fails_keeps_what_was_allocated_past_the_end() {
    let mut failed = 0;
    for nth in 1.. {
        let machine = machine(32, 1);
        set(&machine, "shmem_enabled", "always");
        let (cpu, space) = cpu_and_space(&machine);
        let file = machine.memory().create_shmem((), 0).unwrap();
        file.allocate(0..32 * PAGE, true).unwrap();
        write_file(&file, 0, &[3; 5 * PAGE as usize]);
        let area = space.mmap_file(&file_request(0, 1, RW, MapFlags::SHARED), &file).unwrap();
        write(&cpu, &space, area, 4);
        let pin = space.pin_page(area, Access::Write).unwrap();
        let hole = failing(&machine, FailPlan::nth(nth), || file.punch(16 * PAGE..40 * PAGE, |_| Ok(())));
        assert_eq!(file.figures().cached, 512);
        drop(pin);
        assert_audit(&machine);
        if hole.is_ok() {
            break;
        }
        failed += 1;
        file.punch(2 * PAGE..3 * PAGE, |_| Ok(())).unwrap();
        assert_eq!(file.figures().cached, 31, "allocation {nth} of the hole fails");
    }
    assert!(failed > 0);
}

/// The file is closed by another thread while its end is freed.
struct Closed {
    room: Room,
    begins: SyncSender<()>,
    is_closed: Mutex<Receiver<()>>,
    dropped: Arc<AtomicBool>,
}

impl ShmemOwner for Closed {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        self.room.take_pages(pages)
    }

    fn give_back_pages(&self, pages: u64) {
        self.room.give_back_pages(pages);
        // Nothing is received for what goes with the file.
        if self.begins.send(()).is_ok() {
            let _ = self.is_closed.lock().unwrap().recv();
        }
    }

    fn file_system(&self) -> usize {
        self.room.file_system()
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

/// The caller may hold locks that the drop of the owner needs.
#[test]
fn a_file_that_loses_its_last_opening_to_a_search_ends_later() {
    let machine = machine(32, 2);
    set(&machine, "shmem_enabled", "always");
    let room = Room(Arc::new(AtomicU64::new(512)));
    let ((begins, begun), (close, is_closed)) = (sync_channel(1), sync_channel(1));
    let dropped = Arc::new(AtomicBool::new(false));
    let owner =
        Closed { room: room.clone(), begins, is_closed: Mutex::new(is_closed), dropped: dropped.clone() };
    let first = machine.memory().create_shmem(owner, 0).unwrap();
    write_file(&first, 0, &[5]);
    let second = machine.memory().create_shmem(room.clone(), 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            begun.recv().unwrap();
            drop(first);
            close.send(()).unwrap();
        });
        write_file(&second, 0, &[7]);
    });
    assert!(!dropped.load(Ordering::Relaxed), "it ends where locks may be held");
    machine.memory().kswapd_step();
    assert!(dropped.load(Ordering::Relaxed), "it does not end");
    second.set_size(0).unwrap();
    assert_eq!(room.0.load(Ordering::Relaxed), 512);
    assert_audit(&machine);
}
