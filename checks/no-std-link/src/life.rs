//! A short memory life: map, touch, move, protect, fork, drop, run out of memory, unmap, page out and in,
//! exit; audited on the way.

use crate::machine::{Toy, access, has_kernel_half};
use crate::runtime::Output;
use crate::{names, pair};
use core::fmt::Write;
use core::sync::atomic::Ordering;
use quire_mm::abi::{self, CallNumber, FaultIn, NoFiles};
use quire_mm::platform::{Access, PAGE_SIZE, VirtAddr};
use quire_mm::{
    BuildError, Memory, MemoryConfig, Techniques,
    frame::{BootError, VmEvent},
    proc,
    space::{Advice, FaultError, MapFlags, MapRequest, Protection, RemapFlags, Space},
    swap::{SwapDevice, SwapOnOptions},
};

const RW: Protection = Protection::READ.union(Protection::WRITE);
/// More than one bottom table covers.
const PAGES: u64 = 600;
const LEN: u64 = PAGES * PAGE_SIZE;

fn at(base: VirtAddr, page: u64) -> VirtAddr {
    VirtAddr(base.0 + page * PAGE_SIZE)
}

fn read(space: &Space<'_, Toy>, addr: VirtAddr) -> Result<u64, FaultError> {
    access(space, addr, Access::Read, |word| word.load(Ordering::Relaxed))
}

fn write(space: &Space<'_, Toy>, addr: VirtAddr, value: u64) -> Result<(), FaultError> {
    access(space, addr, Access::Write, |word| word.store(value, Ordering::Relaxed))
}

fn spaces(memory: &Memory<Toy>) -> usize {
    let mut count = 0;
    memory.for_each_resident(|_, _| count += 1);
    count
}

fn audit(memory: &Memory<Toy>) {
    let summary = memory.audit(|violation| {
        // The panic below says that something is wrong; this says what.
        let _ = writeln!(Output(2), "audit: {violation}");
    });
    assert!(summary.is_ok(), "the audit found {} violations", summary.violations);
}

/// Builds a machine, leads the life, and takes the machine down.
pub(crate) fn lead(techniques: Techniques) {
    let config = MemoryConfig { techniques, ..MemoryConfig::default() };
    let memory = Memory::new(Toy, config).expect("16 MiB are enough to start");
    // The machine is one, however many values stand for it.
    assert_eq!(Memory::new(Toy, config).map(drop), Err(BuildError::Boot(BootError::RamTaken)));
    audit(&memory);
    {
        let space = memory.create_space().expect("a space");
        let base = contents(&space);
        audit(&memory);
        family(&memory, &space, base);
        audit(&memory);
        scarcity(&space);
        audit(&memory);
        let disk = memory.create_ram_disk(2 * PAGES).expect("room for a device");
        paging(&memory, &space, disk, PAGES / 2);
        // More than there is RAM for.
        let zram = memory.create_compressed_ram(8192).expect("room for a device");
        paging(&memory, &space, zram, 5000);
        let mut out = Output(1);
        writeln!(out, "{techniques:?}").expect("stdout");
        proc::status(&space.figures(), &mut out).expect("stdout");
        proc::meminfo(&memory, &mut out).expect("stdout");
        proc::swaps(&memory, &mut out).expect("stdout");
    }
    assert_eq!(spaces(&memory), 0);
    audit(&memory);
    names::run(&memory);
    audit(&memory);
    pair::run(&memory);
    assert_eq!(spaces(&memory), 0);
    audit(&memory);
}

/// What is written is read, wherever it moves, and only where it is allowed.
fn contents(space: &Space<'_, Toy>) -> VirtAddr {
    let base = space.mmap(&MapRequest::anonymous(LEN, RW)).expect("mmap");
    assert_eq!(read(space, base), Ok(0));
    for page in 0..PAGES {
        write(space, at(base, page), page + 1).expect("room for a page");
    }
    // Growth in place is blocked, so it moves.
    let block = MapRequest::anonymous(PAGE_SIZE, Protection::empty());
    let _ = space.mmap(&block.at(at(base, PAGES), MapFlags::FIXED_NOREPLACE));
    let moved = space.mremap(base, LEN, 2 * LEN, RemapFlags::MAYMOVE, None).expect("mremap");
    assert_ne!(moved, base);
    assert_eq!(read(space, base), Err(FaultError::NotMapped));
    for page in 0..PAGES {
        assert_eq!(read(space, at(moved, page)), Ok(page + 1));
    }
    assert_eq!(read(space, at(moved, PAGES)), Ok(0));
    space.mprotect(moved, PAGE_SIZE, Protection::READ, false).expect("mprotect");
    assert_eq!(write(space, moved, 7), Err(FaultError::AccessDenied));
    assert_eq!(read(space, moved), Ok(1));
    space.mprotect(moved, PAGE_SIZE, RW, false).expect("mprotect");
    moved
}

/// A child has what its parent had, and neither sees what the other does then.
fn family(memory: &Memory<Toy>, space: &Space<'_, Toy>, base: VirtAddr) {
    let child = space.fork().expect("fork");
    assert!(has_kernel_half(&child));
    write(space, base, 99).expect("the parent's page");
    assert_eq!(read(&child, base), Ok(1));
    child.madvise(base, LEN, Advice::DontNeed).expect("madvise");
    assert_eq!(read(&child, at(base, 5)), Ok(0));
    assert_eq!(read(space, at(base, 5)), Ok(6));
    audit(memory);
    drop(child);
    assert!(has_kernel_half(space));
    assert_eq!(spaces(memory), 1);
    space.munmap(base, 2 * LEN).expect("munmap");
    assert_eq!(read(space, base), Err(FaultError::NotMapped));
    // The same again as a program would ask for it: by number.
    let heap = abi::call(space, CallNumber::from_raw(12), [0; 6], &NoFiles, &FaultIn(space))
        .raw()
        .expect("brk is built");
    let more = [heap as u64 + 4 * PAGE_SIZE, 0, 0, 0, 0, 0];
    assert_eq!(
        abi::call(space, CallNumber::from_raw(12), more, &NoFiles, &FaultIn(space)).raw(),
        Some(more[0] as i64)
    );
    write(space, VirtAddr(heap as u64), 3).expect("the heap");
}

/// When memory ends, a program is told; when it is given back, all is well again.
fn scarcity(space: &Space<'_, Toy>) {
    let len = 16 << 20;
    let request = MapRequest { flags: MapFlags::NORESERVE, ..MapRequest::anonymous(len, RW) };
    let base = space.mmap(&request).expect("mmap");
    let got = (0..len / PAGE_SIZE).find(|&page| write(space, at(base, page), 1).is_err());
    let got = got.expect("16 MiB of RAM do not hold 16 MiB of pages beside all else");
    assert!(got > 2048, "memory ended after {got} pages");
    assert!(matches!(write(space, at(base, got), 1), Err(FaultError::OutOfMemory(_))));
    space.munmap(base, len).expect("munmap needs no memory");
    let again = space.mmap(&MapRequest::anonymous(LEN, RW)).expect("mmap");
    (0..PAGES).for_each(|page| write(space, at(again, page), page).expect("memory is back"));
}

/// Pages go to a swap device, because memory is short or a program wants it so, and come back as they were.
fn paging(memory: &Memory<Toy>, space: &Space<'_, Toy>, device: impl SwapDevice<Toy>, pages: u64) {
    let device = memory.swapon(device, SwapOnOptions::default()).expect("swapon");
    let len = pages * PAGE_SIZE;
    let request = MapRequest { flags: MapFlags::NORESERVE, ..MapRequest::anonymous(len, RW) };
    let base = space.mmap(&request).expect("mmap");
    let out = memory.event(VmEvent::Pswpout);
    for page in 0..pages {
        write(space, at(base, page), page + 1).expect("room for a page, somewhere");
    }
    space.madvise(base, len / 2, Advice::PageOut).expect("madvise");
    assert!(memory.event(VmEvent::Pswpout) >= out + pages / 2);
    assert!(space.figures().swapped >= len / 2);
    audit(memory);
    for page in 0..pages {
        assert_eq!(read(space, at(base, page)), Ok(page + 1));
    }
    audit(memory);
    // What is left fits into RAM.
    let gone = pages / 2;
    space.munmap(base, gone * PAGE_SIZE).expect("munmap");
    memory.swapoff(device, || true).expect("swapoff");
    assert_eq!(space.figures().swapped, 0);
    for page in gone..pages {
        assert_eq!(read(space, at(base, page)), Ok(page + 1));
    }
    space.munmap(base, len).expect("munmap");
    audit(memory);
}
