//! What the page cache costs on the host machine. One thread; the file has no bytes of its own.
//!
//! Without arguments: a file of 1 GiB that 100 programs map is truncated; prints nanoseconds, and shootdowns
//! of each program. With `count NAME N`: does the operation NAME of N pages once and prints nothing, to be
//! run under `valgrind --tool=callgrind` (`scripts/instructions.sh`); only what is done in `measured` counts.
#![allow(clippy::unwrap_used, reason = "a failure is the end of a benchmark")]

use quire_arch::{Access, PAGE_SIZE, VirtAddr};
use quire_host::{HostConfig, HostPlatform, Machine};
use quire_mm::{
    MemoryConfig,
    file::{DeviceMemory, File, FileBacking, FileError, FileIo, Submitted, Transferred},
    frame::VmEvent,
    space::{MapFlags, MapRequest, MappedFile, Protection, Space},
};
use std::process::ExitCode;
use std::time::Instant;

/// A file of zeros; what is written to it is lost.
struct Zeros;

impl FileBacking<HostPlatform> for Zeros {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, HostPlatform>,
        _io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        Submitted::Done(Ok(Transferred::Zeros))
    }
}

/// Programs that map the file.
const PROGRAMS: u64 = 100;
/// Pages of the file without arguments: 1 GiB.
const PAGES: u64 = 1 << 18;
/// The most that can be counted.
const MOST_COUNTED: u64 = 16_384;

type HostSpace<'m> = Space<'m, HostPlatform>;

fn machine(pages: u64) -> Machine {
    // The pages, a table for 512 of them in each program, and as much again.
    let ram = (pages + PROGRAMS * pages.div_ceil(512) + 8192) * 2 * PAGE_SIZE;
    Machine::new(&HostConfig::with_ram(ram.next_multiple_of(2 << 20)), MemoryConfig::default()).unwrap()
}

fn map(space: &HostSpace<'_>, file: &File<'_, HostPlatform>, pages: u64) -> VirtAddr {
    let request = MapRequest::anonymous(pages * PAGE_SIZE, Protection::READ);
    let request = MapRequest { flags: MapFlags::SHARED, file: Some(MappedFile::new(0, 0)), ..request };
    space.mmap_file(&request, file).unwrap()
}

/// What counts: nothing of it is inlined elsewhere.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

/// A file of so many pages in a new machine, mapped and present in as many programs as are counted.
fn truncated(pages: u64, around: impl FnOnce(&Machine, &mut dyn FnMut())) {
    let machine = machine(pages);
    let cpu = machine.vcpu(0).unwrap();
    cpu.run(|| {
        let file = machine.memory().create_file(Zeros, pages * PAGE_SIZE).unwrap();
        let spaces: Vec<_> = (0..PROGRAMS).map(|_| machine.memory().create_space().unwrap()).collect();
        for space in &spaces {
            let start = map(space, &file, pages);
            for page in 0..pages {
                let addr = VirtAddr(start.0 + page * PAGE_SIZE);
                // What lies around the first ones is mapped with them.
                if space.figures().resident_file <= page * PAGE_SIZE {
                    space.fault(addr, Access::Read).unwrap();
                }
            }
            assert_eq!(space.figures().resident_file, pages * PAGE_SIZE);
        }
        around(&machine, &mut || file.set_size(0).unwrap());
        assert!(spaces.iter().all(|space| space.figures().resident_file == 0));
    });
}

fn times() {
    truncated(PAGES, |machine, truncate| {
        let shootdowns = || machine.memory().event(VmEvent::TlbShootdownDiscard);
        let (before, start) = (shootdowns(), Instant::now());
        truncate();
        let each = start.elapsed().as_nanos() as f64 / (PAGES * PROGRAMS) as f64;
        let flushes = (shootdowns() - before) as f64 / PROGRAMS as f64;
        println!(
            "truncating 1 GiB in {PROGRAMS} programs: {each:.1} ns a page of each, {flushes:.2} shootdowns"
        );
    });
}

/// Does `name` with so many pages; `None` for an unknown name.
fn count(name: &str, pages: u64) -> Option<()> {
    match name {
        "truncate" => truncated(pages, |_, truncate| measured(truncate)),
        _ => return None,
    }
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", name, number] => {
            let pages = number.parse().ok().filter(|&pages| pages <= MOST_COUNTED);
            if pages.and_then(|pages| count(name, pages)).is_none() {
                eprintln!("count takes truncate, and a number of pages up to {MOST_COUNTED}");
                return ExitCode::from(2);
            }
        }
        _ => times(),
    }
    ExitCode::SUCCESS
}
