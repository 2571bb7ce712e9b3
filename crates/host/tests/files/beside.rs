//! Faults beside calls that change what is mapped, or what the file has.

use crate::common::*;
use crate::mapped::numbered;
use quire_frame::FrameFlags;
use quire_host::swap::HostRam;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PRIVATE: MapFlags = MapFlags::empty();

/// Requests of one direction tell the test that they come, and wait until they are let on, once it is armed.
struct Gate {
    direction: Direction,
    is_armed: AtomicBool,
    came: AtomicU64,
    goes_on: AtomicBool,
}

impl Gate {
    fn of(direction: Direction) -> Arc<Self> {
        let [is_armed, goes_on] = [(); 2].map(|()| AtomicBool::new(false));
        Arc::new(Self { direction, is_armed, came: AtomicU64::new(0), goes_on })
    }

    /// A request for this frame.
    fn pass(&self, direction: Direction, frame: Pfn) {
        if direction == self.direction && self.is_armed.load(Ordering::Acquire) {
            self.came.store(frame.0, Ordering::Release);
            while !self.goes_on.swap(false, Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }

    /// Waits for a request, and returns its frame.
    fn wait(&self) -> Pfn {
        loop {
            match self.came.swap(0, Ordering::Acquire) {
                0 => std::thread::yield_now(),
                frame => return Pfn(frame),
            }
        }
    }

    fn let_on(&self) {
        self.goes_on.store(true, Ordering::Release);
    }
}

struct GatedFile(MemoryFile, Arc<Gate>);

impl<P: Platform> FileBacking<P> for GatedFile {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        self.1.pass(io.direction, io.frames[0].start());
        // SAFETY: the caller's promise.
        unsafe { self.0.submit(memory, io) }
    }

    fn limits(&self) -> IoLimits {
        IoLimits { stable_writes: true, readahead: 0, ..FileBacking::<P>::limits(&self.0) }
    }
}

struct GatedSwap(HostRam, Arc<Gate>);

impl SwapDevice<HostPlatform> for GatedSwap {
    fn kind(&self) -> &'static str {
        "gated"
    }

    fn slots(&self) -> u64 {
        SwapDevice::<HostPlatform>::slots(&self.0)
    }

    fn flags(&self) -> DeviceFlags {
        SwapDevice::<HostPlatform>::flags(&self.0)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, HostPlatform>, io: PageIo) -> Submitted {
        self.1.pass(io.direction, io.pfn);
        // SAFETY: the caller's promise.
        unsafe { self.0.submit(memory, io) }
    }
}

/// A file of pages that are numbered, and the gate of its reads.
fn gated<'m>(machine: &'m Machine, pages: u64) -> (File<'m, HostPlatform>, Arc<FileStore>, Arc<Gate>) {
    gated_at(machine, pages, Direction::Read)
}

fn gated_at<'m>(
    machine: &'m Machine,
    pages: u64,
    direction: Direction,
) -> (File<'m, HostPlatform>, Arc<FileStore>, Arc<Gate>) {
    let (backing, store) = MemoryFile::new(numbered(pages));
    let gate = Gate::of(direction);
    let file = machine.memory().create_file(GatedFile(backing, gate.clone()), pages * PAGE).unwrap();
    (file, store, gate)
}

/// What a program gets is of what it has mapped: not an error of a file that it had mapped before.
#[test]
fn a_fault_whose_mapping_goes_while_it_reads_tells_no_error_of_that() {
    for shrinks in [false, true] {
        let machine = machine(16, 2);
        let (old, store, gate) = gated(&machine, 8);
        let (backing, _) = MemoryFile::new(numbered(16));
        let new = machine.memory().create_file(backing, 16 * PAGE).unwrap();
        let (_cpu, space) = cpu_and_space(&machine);
        let addr = space.mmap_file(&file_request(0, 8, READ, PRIVATE), &old).unwrap();
        gate.is_armed.store(true, Ordering::Release);
        store.fails_reads.store(true, Ordering::Relaxed);
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let cpu = machine.vcpu(1).unwrap();
                cpu.program(&space).read_u64(page(addr, 5))
            });
            gate.wait();
            // Of another page of the new file, or the same one.
            let first = if shrinks { 8 } else { 0 };
            let request = file_request(first, 8, READ, PRIVATE).at(addr, MapFlags::FIXED);
            assert_eq!(space.mmap_file(&request, &new), Ok(addr));
            gate.let_on();
            reader.join().unwrap()
        });
        assert_eq!(read, Ok(if shrinks { 14 } else { 6 }));
        assert_eq!(old.figures().cached, 0);
    }
}

/// As in Linux: the first write to private memory of a file takes the mmap lock, but not while the file is
/// read.
#[test]
fn mappings_can_change_while_a_fault_reads_a_file() {
    let machine = machine(16, 3);
    let (file, _, gate) = gated(&machine, 2);
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, PRIVATE), &file).unwrap();
    let other = space.mmap(&MapRequest::anonymous(PAGE, RW)).unwrap();
    gate.is_armed.store(true, Ordering::Release);
    let (wrote, is_free) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            cpu.program(&space).write_u64(addr, 9)
        });
        gate.wait();
        let unmaps = scope.spawn(|| {
            let _cpu = machine.vcpu(2).unwrap();
            space.munmap(other, PAGE)
        });
        let is_free = within_reason(|| unmaps.is_finished());
        gate.let_on();
        assert_eq!(unmaps.join().unwrap(), Ok(()));
        (writer.join().unwrap(), is_free)
    });
    assert!(wrote.is_ok() && is_free, "{wrote:?}");
}

/// A hazard of docs/hazards.md: the lock of a folio that was swapped in is kept while another page, or the
/// mmap lock, is waited for.
#[test]
fn a_folio_that_was_swapped_in_is_let_go_before_a_page_of_the_file_is_read() {
    let machine = machine(16, 2);
    let swap_gate = Gate::of(Direction::Read);
    swap_on(&machine, GatedSwap(HostRam::new(64).unwrap(), swap_gate.clone()));
    let (file, store, gate) = gated(&machine, 2);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, PRIVATE), &file).unwrap();
    write(&cpu, &space, addr, 9);
    space.madvise(addr, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident_anonymous, 0);
    gate.is_armed.store(true, Ordering::Release);
    swap_gate.is_armed.store(true, Ordering::Release);
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            cpu.program(&space).read_u64(addr)
        });
        let swapped = swap_gate.wait();
        // The copy goes, though it is being read; then there is the page of the file again.
        file.set_size(0).unwrap();
        store.bytes.lock().unwrap().clear();
        file.set_size(2 * PAGE).unwrap();
        swap_gate.let_on();
        let page = gate.wait();
        let flags = machine.memory().frames().known(swapped).word().flags();
        // Once it is free it may be the page that is being read.
        let is_kept = page != swapped && flags.contains(FrameFlags::LOCKED);
        gate.let_on();
        assert!(!is_kept, "{swapped:?} is locked while {page:?} is read");
        reader.join().unwrap()
    });
    assert_eq!(read, Ok(0));
}

/// A page that is pinned stays dirty while it is written. A program does not change it then, if the backing
/// has a checksum beside it, for one.
#[test]
fn a_pinned_page_is_not_written_to_while_its_contents_must_stay() {
    let machine = machine(16, 3);
    let (file, store, gate) = gated_at(&machine, 2, Direction::Write);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
    for mapped in [true, false] {
        write(&cpu, &space, addr, 5);
        let pinned = space.pin_page(addr, Access::Write).unwrap();
        if !mapped {
            space.madvise(addr, PAGE, Advice::DontNeed).unwrap();
        }
        gate.is_armed.store(true, Ordering::Release);
        let has_written = AtomicBool::new(false);
        let is_early = std::thread::scope(|scope| {
            let syncs = scope.spawn(|| {
                let _cpu = machine.vcpu(1).unwrap();
                file.sync(ALL, false)
            });
            gate.wait();
            scope.spawn(|| {
                let cpu = machine.vcpu(2).unwrap();
                write(&cpu, &space, addr, 9);
                has_written.store(true, Ordering::Release);
            });
            let is_early = (0..20_000).any(|_| {
                std::thread::yield_now();
                has_written.load(Ordering::Acquire)
            });
            gate.is_armed.store(false, Ordering::Release);
            gate.let_on();
            assert_eq!(syncs.join().unwrap(), Ok(()));
            is_early
        });
        assert!(!is_early, "the page was written to, mapped {mapped}");
        assert_eq!(store.bytes.lock().unwrap()[..8], 5_u64.to_le_bytes());
        drop(pinned);
        file.sync(ALL, false).unwrap();
        assert_eq!(store.bytes.lock().unwrap()[..8], 9_u64.to_le_bytes());
    }
}
