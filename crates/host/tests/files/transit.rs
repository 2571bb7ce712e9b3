//! Flushes that are not done yet, beside calls that need them.

use crate::common::*;
use crate::large::{HUGE, huge_file, map};
use crate::mapped::numbered;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::yield_now;

/// Truncates a file, and lets it grow again, while one thread makes its mapping at 1 GiB unusable and usable,
/// with memory behind it that takes long, and another one reads: none finds the frame of a page that is gone.
fn truncate_beside_mprotect(machine: &Machine, file: &File<'_, HostPlatform>, pages: u64) {
    let space = create_space(machine);
    let addr = map(&space, file, (0, pages), (RW, MapFlags::SHARED));
    let rest = 8 << 10;
    let request = MapRequest::anonymous(rest * PAGE, RW);
    space.mmap(&request.at(page(addr, pages), MapFlags::FIXED | MapFlags::POPULATE)).unwrap();
    let size = file.size();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let _ = cpu.program(&space).read_u64(addr);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.set_size(0).unwrap();
                file.set_size(size).unwrap();
            }
        });
        for _ in 0..300 {
            space.mprotect(addr, (pages + rest) * PAGE, NONE, false).unwrap();
            space.mprotect(addr, (pages + rest) * PAGE, RW, false).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(space);
    assert_audit(machine);
}

/// mprotect has made the entry unusable, and has not flushed yet: who takes the page out of the file must.
#[test]
fn a_truncation_beside_mprotect_flushes_what_it_frees() {
    let machine = machine(128, 3);
    let (backing, _) = MemoryFile::new(numbered(4));
    let file = machine.memory().create_file(backing, 4 * PAGE).unwrap();
    truncate_beside_mprotect(&machine, &file, 4);
}

#[test]
fn a_truncation_of_a_large_folio_beside_mprotect_flushes_what_it_frees() {
    let machine = machine(128, 3);
    let (file, _) = huge_file(&machine, HUGE + 1);
    truncate_beside_mprotect(&machine, &file, HUGE);
}

/// The page may be written to until a CPU has served the flush of an unmapping. An entry that a fork copies
/// meanwhile does not stand for the one in transit.
#[test]
fn a_fork_does_not_hide_a_mapping_in_transit() {
    (0..5).for_each(|_| write_back_beside_forks());
}

fn write_back_beside_forks() {
    let machine = machine(64, 3);
    let (backing, _) = MemoryFile::new(numbered(4));
    let file = machine.memory().create_file(backing, 4 * PAGE).unwrap();
    let (cpu, parent) = cpu_and_space(&machine);
    let other = create_space(&machine);
    let private = parent.mmap_file(&file_request(0, 4, RW, MapFlags::empty()), &file).unwrap();
    write(&cpu, &parent, page(private, 1), 7);
    assert_eq!(read(&cpu, &parent, private), 1);
    let shared = other.mmap_file(&file_request(0, 4, RW, MapFlags::SHARED), &file).unwrap();
    let [is_in, let_on, stop] = [(); 3].map(|()| AtomicBool::new(false));
    let forks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine.vcpu(1).unwrap().program(&other).inside(|guest| {
                guest.write_u64(shared, 100).unwrap();
                is_in.store(true, Ordering::Release);
                while !let_on.load(Ordering::Acquire) {
                    yield_now();
                }
            });
        });
        while !is_in.load(Ordering::Acquire) {
            yield_now();
        }
        scope.spawn(|| other.munmap(shared, 4 * PAGE).unwrap());
        // Mostly enough for it to be in transit. If it is not, the page cannot be clean either.
        (0..1000).for_each(|_| yield_now());
        let syncing = scope.spawn(|| file.sync(ALL, false));
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Of the machine's own kind: it is not audited, which needs that nothing else runs.
                drop((*parent).fork().unwrap());
                forks.fetch_add(1, Ordering::Relaxed);
            }
        });
        // A fork waits where the entry is still being made clean.
        let (mut seen, mut waited) = (0, 0);
        while seen < 3000 && waited < 2000 && !syncing.is_finished() {
            yield_now();
            let now = forks.load(Ordering::Relaxed);
            waited = if now == seen { waited + 1 } else { 0 };
            seen = now;
        }
        stop.store(true, Ordering::Relaxed);
        let is_hidden = syncing.is_finished();
        let_on.store(true, Ordering::Release);
        syncing.join().unwrap().unwrap();
        assert!(!is_hidden, "the page is clean, and may be written to");
    });
    drop((parent, other));
    assert_audit(&machine);
}
