//! Seals: what they refuse, and when they are refused.

use crate::common::*;
use quire_mm::file::{PageError, Seals, Transfer};
use quire_mm::platform::Access;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARED: MapFlags = MapFlags::SHARED;

type HostFile<'m> = File<'m, HostPlatform>;

fn sealed(machine: &Machine, pages: u64, seals: Seals) -> HostFile<'_> {
    let file = machine.memory().create_shmem((), pages * PAGE).unwrap();
    file.add_seals(seals).unwrap();
    file
}

fn map(
    space: &HostSpace<'_>,
    file: &HostFile<'_>,
    protection: Protection,
    flags: MapFlags,
) -> Result<VirtAddr, Error> {
    space.mmap_file(&file_request(0, 2, protection, flags), file)
}

fn written(file: &HostFile<'_>, at: u64, bytes: u64) -> (u64, Option<PageError>) {
    let mut from = vec![1; bytes as usize];
    let Transfer { bytes, stopped } = file.write(at, &mut Buffer::new(&mut from));
    (bytes, stopped)
}

/// The changes that each seal refuses, as measured of Linux: smaller, larger, the same size, a write inside,
/// over the end, at the end, of nothing, a hole inside, and one past the end.
#[test]
fn each_seal_refuses_what_it_does_in_linux() {
    const OK: Result<(), PageError> = Ok(());
    const NO: Result<(), PageError> = Err(PageError::Sealed);
    let rows = [
        (Seals::SEAL, [OK, OK, OK, OK, OK, OK, OK, OK, OK]),
        (Seals::SHRINK, [NO, OK, OK, OK, OK, OK, OK, OK, OK]),
        (Seals::GROW, [OK, NO, OK, OK, NO, NO, OK, OK, OK]),
        (Seals::WRITE, [OK, OK, OK, NO, NO, NO, OK, NO, NO]),
        (Seals::FUTURE_WRITE, [OK, OK, OK, NO, NO, NO, OK, NO, NO]),
        (Seals::EXEC, [OK, OK, OK, OK, OK, OK, OK, OK, OK]),
    ];
    let machine = machine(16, 1);
    let write = |file: &HostFile<'_>, at, bytes| written(file, at, bytes).1.map_or(OK, Err);
    type Call<'c> = &'c dyn Fn(&HostFile<'_>) -> Result<(), PageError>;
    let calls: [Call<'_>; 9] = [
        &|file| file.set_size(PAGE),
        &|file| file.set_size(3 * PAGE),
        &|file| file.set_size(2 * PAGE),
        &|file| write(file, 100, 200),
        &|file| write(file, PAGE, 2 * PAGE),
        &|file| write(file, 2 * PAGE, 1),
        &|file| write(file, 0, 0),
        &|file| file.punch(0..PAGE, |_| Ok(())),
        &|file| file.punch(9 * PAGE..10 * PAGE, |_| Ok(())),
    ];
    for (seal, results) in rows {
        for (number, (call, wanted)) in calls.iter().zip(results).enumerate() {
            let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
            write_file(&file, 0, &[5; 16]);
            file.add_seals(seal).unwrap();
            assert_eq!(call(&file), wanted, "{seal:?}, call {number}");
            if wanted == NO && number != 4 {
                assert_eq!((file.size(), read_file(&file, 0, 16)), (2 * PAGE, vec![5; 16]));
                assert_eq!(file.figures().cached, 1, "a page came for a call that was refused");
            }
            assert_eq!(file.seals(), Some(seal));
        }
    }
    assert_audit(&machine);
}

#[test]
fn a_write_over_the_end_of_a_file_that_may_not_grow_ends_with_the_last_whole_page() {
    let machine = machine(16, 1);
    let file = sealed(&machine, 2, Seals::GROW);
    assert_eq!(written(&file, 100, 3 * PAGE), (2 * PAGE - 100, Some(PageError::Sealed)));
    let file = machine.memory().create_shmem((), PAGE + 100).unwrap();
    file.add_seals(Seals::GROW).unwrap();
    assert_eq!(written(&file, 0, 3 * PAGE), (PAGE, Some(PageError::Sealed)));
    assert_eq!(written(&file, 0, PAGE + 100), (PAGE + 100, None));
}

#[test]
fn what_is_sealed_gets_no_more_seals_and_a_file_with_a_backing_none() {
    let machine = machine(16, 1);
    let file = sealed(&machine, 2, Seals::SEAL | Seals::GROW);
    for seals in [Seals::empty(), Seals::WRITE, Seals::SEAL] {
        let refused = file.add_seals(seals);
        assert_eq!(refused, Err(Error::Sealed));
        assert_eq!(refused.unwrap_err().errno(), Errno::EPERM);
    }
    let (backing, _) = MemoryFile::new(Vec::new());
    let plain = machine.memory().create_file(backing, PAGE).unwrap();
    assert_eq!((plain.seals(), plain.add_seals(Seals::GROW)), (None, Err(Error::NotSealable)));
    assert_eq!(Error::NotSealable.errno(), Errno::EINVAL);
}

#[test]
fn a_shared_mapping_that_may_write_keeps_the_seal_away_wherever_it_is() {
    let machine = machine(16, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    for protection in [RW, READ, NONE] {
        let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
        let area = map(&space, &file, protection, SHARED).unwrap();
        let child = space.fork().unwrap();
        space.munmap(area, 2 * PAGE).unwrap();
        let refused = file.add_seals(Seals::WRITE | Seals::GROW);
        assert_eq!((refused, file.seals()), (Err(Error::InUse), Some(Seals::empty())));
        assert_eq!(Error::InUse.errno(), Errno::EBUSY);
        drop(child);
        assert_eq!(file.add_seals(Seals::WRITE), Ok(()));
    }
    // These count as none: private ones, and what the program may only read.
    let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
    let _private = map(&space, &file, RW, MapFlags::empty()).unwrap();
    let mut read_only = file_request(0, 2, READ, SHARED);
    read_only.file = read_only.file.map(|file| MappedFile { writable: false, ..file });
    let _read_only = space.mmap_file(&read_only, &file).unwrap();
    assert_eq!(file.add_seals(Seals::WRITE), Ok(()));
    assert_audit(&machine);
}

#[test]
fn memory_that_is_sealed_against_writes_is_mapped_for_reading() {
    for seal in [Seals::WRITE, Seals::FUTURE_WRITE] {
        let machine = machine(16, 1);
        let (cpu, space) = cpu_and_space(&machine);
        let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
        write_file(&file, 0, &7_u64.to_le_bytes());
        file.add_seals(seal).unwrap();
        assert_eq!(map(&space, &file, RW, SHARED), Err(Error::Sealed));
        for protection in [READ, NONE] {
            let area = map(&space, &file, protection, SHARED).unwrap();
            let mut flags = VmFlags::empty();
            space.mappings().for_each(|mapping| flags = mapping.flags);
            assert!(
                flags.contains(VmFlags::SHARED | VmFlags::MAYSHARE) && !flags.contains(VmFlags::MAYWRITE)
            );
            assert_eq!(space.mprotect(area, PAGE, RW, false), Err(Error::AccessDenied));
            assert_eq!(space.madvise(area, PAGE, Advice::Remove), Err(Error::AccessDenied));
            space.mprotect(area, 2 * PAGE, READ | Protection::EXECUTE, false).unwrap();
            assert_eq!(read(&cpu, &space, area), 7);
            space.munmap(area, 2 * PAGE).unwrap();
        }
        let private = map(&space, &file, RW, MapFlags::empty()).unwrap();
        write(&cpu, &space, private, 8);
        assert_eq!((read(&cpu, &space, private), read_file(&file, 0, 1)), (8, vec![7]));
        // A mapping that was refused counts no more.
        assert_eq!(file.add_seals(Seals::WRITE | Seals::SEAL), Ok(()));
        assert_audit(&machine);
    }
}

#[test]
fn mappings_from_before_write_on_after_a_seal_against_future_writes() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
    let area = map(&space, &file, RW, SHARED).unwrap();
    file.add_seals(Seals::FUTURE_WRITE).unwrap();
    write(&cpu, &space, area, 3);
    space.mprotect(area, 2 * PAGE, READ, false).unwrap();
    space.mprotect(area, 2 * PAGE, RW, false).unwrap();
    let alias = space.mremap(area, 0, 4 * PAGE, RemapFlags::MAYMOVE, None).unwrap();
    write(&cpu, &space, page(alias, 3), 4);
    assert_eq!(space.madvise(area, PAGE, Advice::Remove), Err(Error::Sealed), "a hole is refused");
    assert_eq!(file.add_seals(Seals::WRITE), Err(Error::InUse));
    assert_eq!(map(&space, &file, RW, SHARED), Err(Error::Sealed));
    assert_eq!(read(&cpu, &space, area), 3);
    space.munmap(area, 2 * PAGE).unwrap();
    space.munmap(alias, 4 * PAGE).unwrap();
    assert_eq!(file.add_seals(Seals::WRITE), Ok(()));
}

#[test]
fn a_page_that_a_device_may_write_to_keeps_the_seal_away() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
    let area = map(&space, &file, RW, SHARED).unwrap();
    write(&cpu, &space, area, 1);
    let pinned = space.pin_page(area, Access::Write).unwrap();
    space.munmap(area, 2 * PAGE).unwrap();
    assert_eq!(file.add_seals(Seals::WRITE), Err(Error::InUse));
    // What was denied meanwhile may come again.
    let area = map(&space, &file, RW, SHARED).unwrap();
    space.munmap(area, 2 * PAGE).unwrap();
    drop(pinned);
    assert_eq!(file.add_seals(Seals::WRITE), Ok(()));
}

#[test]
fn memory_that_is_on_a_swap_device_is_sealed_as_it_is() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
    let area = map(&space, &file, RW, SHARED).unwrap();
    write(&cpu, &space, page(area, 1), 9);
    space.madvise(area, 2 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(file.figures().swapped, 1);
    space.munmap(area, 2 * PAGE).unwrap();
    file.add_seals(Seals::WRITE | Seals::SHRINK | Seals::GROW).unwrap();
    let area = map(&space, &file, READ, SHARED).unwrap();
    assert_eq!(read(&cpu, &space, page(area, 1)), 9);
    assert_eq!(file.set_size(PAGE), Err(PageError::Sealed));
    assert_audit(&machine);
}

/// One thread maps, writes and unmaps as long as it may; the other seals until it succeeds. What it reads
/// then stays.
#[test]
fn nothing_is_written_once_the_seal_is_there() {
    let machine = machine(16, 2);
    for round in 0..setting("QUIRE_ROUNDS", 40) {
        let file = machine.memory().create_shmem((), 2 * PAGE).unwrap();
        let is_sealed = AtomicBool::new(false);
        on_cpus(&machine, 2, |number, cpu| {
            if number == 0 {
                while file.add_seals(Seals::WRITE).is_err() {
                    std::thread::yield_now();
                }
                let before = read_file(&file, 0, PAGE as usize);
                is_sealed.store(true, Ordering::Release);
                for _ in 0..20 {
                    std::thread::yield_now();
                    assert_eq!(read_file(&file, 0, PAGE as usize), before);
                }
                return;
            }
            let space = create_space(&machine);
            for word in 1.. {
                let was_sealed = is_sealed.load(Ordering::Acquire);
                match map(&space, &file, RW, SHARED) {
                    Ok(area) => {
                        assert!(!was_sealed, "a mapping came after the seal");
                        write(cpu, &space, area, word + round);
                        space.munmap(area, 2 * PAGE).unwrap();
                    }
                    Err(Error::Sealed) if was_sealed => break,
                    Err(error) => assert_eq!(error, Error::Sealed),
                }
                let (_, stopped) = written(&file, 8, 8);
                assert!(stopped.is_none() || stopped == Some(PageError::Sealed));
                assert!(stopped.is_some() || !was_sealed, "a call wrote after the seal");
            }
        });
    }
    assert_audit(&machine);
}
