//! The end of files whose last holder has not closed them.

use crate::common::*;
use crate::mapped::numbered;
use quire_space::{ReclaimHandle, finish_exits};
use std::sync::atomic::Ordering;

/// A space that exits where reclaim drops its last handle may be the last to have a file.
#[test]
fn background_reclaim_closes_the_files_of_spaces_that_exit_there() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::new(numbered(2));
    let file = machine.memory().create_file(backing, 2 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
    write(&cpu, &space, addr, 5);
    let spaces = machine.memory().spaces();
    let handle = ReclaimHandle::next(spaces, None).unwrap();
    drop((file, space));
    drop(handle);
    assert!(finish_exits(spaces) > 0);
    assert_eq!((store.files.load(Ordering::Relaxed), store.writes.load(Ordering::Relaxed)), (1, 0));
    machine.memory().kswapd_step();
    assert_eq!((store.files.load(Ordering::Relaxed), store.writes.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn a_machine_ends_with_its_files() {
    // One that is not asked what is left in use at its end.
    let config = HostConfig::with_ram(16 << 20);
    let machine: quire_host::Machine = quire_host::Machine::new(&config, MemoryConfig::default()).unwrap();
    let stores = [false, true].map(|leaks| {
        let (backing, store) = MemoryFile::new(numbered(2));
        let file = machine.memory().create_file(backing, 2 * PAGE).unwrap();
        let space = machine.memory().create_space().unwrap();
        let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
        machine.vcpu(0).unwrap().program(&space).write_u64(addr, 5).unwrap();
        if leaks {
            std::mem::forget((file, space));
        } else {
            let handle = ReclaimHandle::next(machine.memory().spaces(), None).unwrap();
            drop((file, space));
            drop(handle);
        }
        assert_eq!(store.files.load(Ordering::Relaxed), 1);
        store
    });
    drop(machine);
    let left =
        stores.map(|store| (store.files.load(Ordering::Relaxed), store.writes.load(Ordering::Relaxed)));
    assert_eq!(left, [(0, 1), (0, 0)], "what nothing holds is written; what was leaked ends");
}
