//! Writing back.

use crate::common::*;
use crate::mapped::numbered;
use std::sync::atomic::Ordering;

#[test]
fn an_error_is_told_to_each_opening_once() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::new(numbered(4));
    let file = machine.memory().create_file(backing, 4 * PAGE).unwrap();
    let other = file.open(Access::Write).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 4, RW, MapFlags::SHARED), &file).unwrap();
    write(&cpu, &space, addr, 5);
    store.fails_writes.store(true, Ordering::Relaxed);
    assert_eq!(space.msync(addr, PAGE, SyncFlags::SYNC), Err(Error::File(FileError::Io)));
    store.fails_writes.store(false, Ordering::Relaxed);
    // As in Linux the page is clean, and the error is told once to each.
    assert_eq!(file.figures().dirty, 0);
    assert_eq!(space.msync(addr, PAGE, SyncFlags::SYNC), Ok(()));
    assert_eq!((other.sync(ALL, false), other.sync(ALL, false)), (Err(FileError::Io), Ok(())));
    assert_eq!(file.open(Access::Write).unwrap().sync(ALL, false), Ok(()));
    write(&cpu, &space, addr, 6);
    assert_eq!(space.msync(addr, PAGE, SyncFlags::ASYNC), Ok(()));
    assert_eq!((file.figures().dirty, store.writes.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(space.msync(addr, PAGE, SyncFlags::SYNC), Ok(()));
    assert_eq!(&store.bytes.lock().unwrap()[..8], 6_u64.to_le_bytes());
    // As Linux's, `msync` is content with the data; `fsync` is not.
    let syncs = || (store.syncs.load(Ordering::Relaxed), store.data_syncs.load(Ordering::Relaxed));
    assert_eq!(syncs(), (6, 3));
}

#[test]
fn a_pinned_page_stays_dirty_and_is_written() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::new(numbered(2));
    let file = machine.memory().create_file(backing, 2 * PAGE).unwrap();
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
    let pinned = space.pin_page(addr, Access::Write).unwrap();
    assert_eq!(file.figures().dirty, 1);
    file.sync(ALL, false).unwrap();
    assert_eq!(file.figures().dirty, 1, "the device may write at any time");
    drop(pinned);
    file.sync(ALL, false).unwrap();
    assert_eq!((file.figures().dirty, store.written.load(Ordering::Relaxed) >= PAGE), (0, true));
    // What a device writes after the last mapping has gone is the file's, too.
    let pinned = space.pin_page(page(addr, 1), Access::Write).unwrap();
    drop(file);
    space.munmap(addr, 2 * PAGE).unwrap();
    // SAFETY: the page is pinned, and no other thread uses it.
    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().write(77) };
    assert_eq!(store.files.load(Ordering::Relaxed), 1);
    drop(pinned);
    assert_eq!(store.files.load(Ordering::Relaxed), 0);
    assert_eq!(&store.bytes.lock().unwrap()[PAGE as usize..][..8], 77_u64.to_le_bytes());
}

#[test]
fn a_page_that_a_device_reads_stays_clean() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::new(numbered(2));
    let file = machine.memory().create_file(backing, 2 * PAGE).unwrap();
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
    let pinned = space.pin_page(addr, Access::Read).unwrap();
    drop(pinned);
    assert_eq!(file.figures().dirty, 0);
}

#[test]
fn a_write_by_a_mapping_needs_space() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::new(numbered(2));
    let file = machine.memory().create_file(backing, 2 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
    let private = space.mmap_file(&file_request(0, 2, RW, MapFlags::empty()), &file).unwrap();
    write(&cpu, &space, addr, 5);
    assert_eq!(read(&cpu, &space, page(addr, 1)), 2);
    store.full.store(true, Ordering::Relaxed);
    let refused = Err(AccessError::Fault(FaultError::Bus));
    assert_eq!(cpu.program(&space).write_u64(page(addr, 1), 6), refused);
    assert_eq!((file.figures().dirty, read(&cpu, &space, page(addr, 1))), (1, 2));
    // A page that is dirty has its space, and a copy needs none.
    write(&cpu, &space, addr, 7);
    write(&cpu, &space, page(private, 1), 8);
    store.full.store(false, Ordering::Relaxed);
    write(&cpu, &space, page(addr, 1), 9);
    assert_eq!(file.figures().dirty, 2);
}
