//! What the memory manager costs on the host machine: faults, calls, teardown. One thread; RAM is backed
//! before the clock starts.
//!
//! Without arguments: minimum and median of nanoseconds per operation, zeroing beside faulting. With
//! `count NAME N`: does the operation NAME N times and prints nothing, to be run under
//! `valgrind --tool=callgrind`; the difference between two counts is the cost of the operations
//! (`scripts/instructions.sh`).
#![allow(clippy::unwrap_used, reason = "a failure is the end of a benchmark")]

use quire_arch::{Access, Order, PAGE_SIZE, Pfn, Platform, VirtAddr};
use quire_frame::AllocRequest;
use quire_host::{HostConfig, HostPlatform, Machine, Program};
use quire_mm::{
    MemoryConfig,
    space::{MapRequest, Protection, Space},
};
use std::hint::black_box;
use std::process::ExitCode;
use std::slice;
use std::time::Instant;

const RW: Protection = Protection::READ.union(Protection::WRITE);
/// Pages in one round: 16 MiB, far more than the host's caches keep of page contents.
const PAGES: u64 = 4096;
const ROUNDS: usize = 40;
const RAM: u64 = 128 << 20;
/// The most operations that can be counted: each takes a page of its own.
const MOST_COUNTED: u64 = 24_000;

type HostSpace<'m> = Space<'m, HostPlatform>;

fn machine() -> Machine {
    let host = HostConfig { large_pages: true, prefault: true, ..HostConfig::with_ram(RAM) };
    Machine::new(&host, MemoryConfig::default()).unwrap()
}

/// Nanoseconds per operation over the rounds, sorted.
struct Samples(Vec<f64>);

impl Samples {
    fn take(operations: u64, mut round: impl FnMut() -> f64) -> Self {
        // The first round warms caches and lists.
        round();
        let mut samples: Vec<f64> = (0..ROUNDS).map(|_| round() / operations as f64).collect();
        samples.sort_by(f64::total_cmp);
        Self(samples)
    }

    fn min(&self) -> f64 {
        self.0[0]
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    fn print(&self, name: &str) {
        println!("{name:<58} {:>9.1} {:>9.1}", self.min(), self.median());
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}

fn map(space: &HostSpace<'_>) -> VirtAddr {
    space.mmap(&MapRequest::anonymous(PAGES * PAGE_SIZE, RW)).unwrap()
}

fn pages(start: VirtAddr) -> impl Iterator<Item = VirtAddr> {
    (0..PAGES).map(move |page| VirtAddr(start.0 + page * PAGE_SIZE))
}

/// Zeroes as many frames as a round faults in, in the order in which the allocator gives them out.
fn zeroing(machine: &Machine) -> Samples {
    let frames = machine.memory().frames();
    let platform = machine.memory().platform();
    Samples::take(PAGES, || {
        let pin = platform.pin();
        let request = AllocRequest::anonymous().uninitialised();
        let taken: Vec<Pfn> = (0..PAGES).map(|_| frames.allocate(&pin, request).unwrap()).collect();
        let time = timed(|| {
            for &pfn in &taken {
                // SAFETY: the frame was just allocated.
                unsafe { platform.zero(pfn, Order::ZERO) };
            }
        });
        taken.into_iter().for_each(|pfn| frames.free(&pin, pfn, Order::ZERO).unwrap());
        time
    })
}

/// What a program does with a block of 2 MiB of zeros.
type Use = fn(&mut [u8]);

const BLOCK: usize = 2 << 20;

fn leave(_: &mut [u8]) {}

fn read_all(block: &mut [u8]) {
    for byte in block.iter().step_by(64) {
        black_box(*byte);
    }
}

fn write_all(block: &mut [u8]) {
    for byte in block.iter_mut().step_by(64) {
        *byte = 1;
    }
    black_box(block);
}

/// Nanoseconds for each page of large blocks that are zeroed and used, by ordinary stores and ahead of their
/// use, in turn.
fn large_zeroing(machine: &Machine, then: Use) -> [Samples; 2] {
    let frames = machine.memory().frames();
    let platform = machine.memory().platform();
    let pin = platform.pin();
    let request = AllocRequest::anonymous().uninitialised().order(Order::PMD);
    let taken: Vec<Pfn> = (0..32).map(|_| frames.allocate(&pin, request).unwrap()).collect();
    let start = |pfn| platform.direct_map(pfn).as_ptr();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (ahead, times) in [false, true].into_iter().zip(&mut times) {
            let time = timed(|| {
                for &pfn in &taken {
                    // SAFETY: the block is the benchmark's, and nothing else refers to it.
                    unsafe {
                        if ahead {
                            platform.zero_ahead(pfn, Order::PMD);
                        } else {
                            start(pfn).write_bytes(0, BLOCK);
                        }
                    }
                    // SAFETY: as above; it was zeroed, and the direct map has it in one piece.
                    then(unsafe { slice::from_raw_parts_mut(start(pfn), BLOCK) });
                }
            });
            times.push(time / (taken.len() * 512) as f64);
        }
    }
    taken.into_iter().for_each(|pfn| frames.free(&pin, pfn, Order::PMD).unwrap());
    times.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        Samples(samples)
    })
}

fn touch_all(program: &Program<'_, HostSpace<'_>>, start: VirtAddr, access: Access) {
    program.inside(|guest| pages(start).for_each(|addr| guest.touch(addr, access).unwrap()));
}

fn times() {
    let machine = machine();
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let program = cpu.program(&space);
    println!("{:<58} {:>9} {:>9}", "ns per operation", "min", "median");

    let zero = cpu.run(|| zeroing(&machine));
    zero.print("zeroing a page (4 KiB), in the order of allocation");
    let uses: [(&str, Use); 3] = [
        ("zeroing a page of 2 MiB", leave),
        ("  and reading each line", read_all),
        ("  and writing each line", write_all),
    ];
    for (name, then) in uses {
        let [plain, past] = cpu.run(|| large_zeroing(&machine, then));
        plain.print(&format!("{name}, by ordinary stores"));
        past.print(&format!("{name}, past the caches"));
    }
    let touch = Samples::take(PAGES, || {
        let start = cpu.run(|| map(&space));
        let time = timed(|| touch_all(&program, start, Access::Write));
        cpu.run(|| space.munmap(start, PAGES * PAGE_SIZE).unwrap());
        time
    });
    touch.print("first write to a page: TLB miss, fault, walk again");
    let fault = Samples::take(PAGES, || {
        cpu.run(|| {
            let start = map(&space);
            // The first private page of a mapping takes another path.
            space.fault(start, Access::Write).unwrap();
            let time =
                timed(|| pages(start).skip(1).for_each(|addr| space.fault(addr, Access::Write).unwrap()));
            space.munmap(start, PAGES * PAGE_SIZE).unwrap();
            time
        })
    });
    fault.print("the fault alone");
    let beyond = |samples: &Samples| (samples.min() - zero.min(), samples.median() - zero.median());
    for (name, (min, median)) in
        [("  first write beyond zeroing", beyond(&touch)), ("  fault beyond zeroing", beyond(&fault))]
    {
        println!("{name:<58} {min:>9.1} {median:>9.1}");
    }
    let read = Samples::take(PAGES, || {
        let start = cpu.run(|| map(&space));
        let time = timed(|| touch_all(&program, start, Access::Read));
        cpu.run(|| space.munmap(start, PAGES * PAGE_SIZE).unwrap());
        time
    });
    read.print("first read of a page (the zero page)");
    let unmap = Samples::take(PAGES, || {
        let start = cpu.run(|| map(&space));
        touch_all(&program, start, Access::Write);
        cpu.run(|| timed(|| space.munmap(start, PAGES * PAGE_SIZE).unwrap()))
    });
    unmap.print("munmap of populated memory, a page");
    let calls = Samples::take(1000, || cpu.run(|| timed(|| (0..1000).for_each(|_| map_unmap(&space)))));
    calls.print("mmap + munmap of one untouched page");
    let crowded: Vec<VirtAddr> = cpu.run(|| crowd(&space));
    let calls = Samples::take(1000, || cpu.run(|| timed(|| (0..1000).for_each(|_| map_unmap(&space)))));
    calls.print(&format!("the same beside {} mappings", crowded.len()));
}

/// Maps one page and unmaps it.
fn map_unmap(space: &HostSpace<'_>) {
    let addr = space.mmap(&MapRequest::anonymous(PAGE_SIZE, RW)).unwrap();
    space.munmap(addr, PAGE_SIZE).unwrap();
}

/// Many mappings that cannot merge.
fn crowd(space: &HostSpace<'_>) -> Vec<VirtAddr> {
    (0..2000)
        .map(|index| {
            let protection = if index % 2 == 0 { RW } else { Protection::READ };
            space.mmap(&MapRequest::anonymous(PAGE_SIZE, protection)).unwrap()
        })
        .collect()
}

/// Does `name` `count` times and ends the process; `None` for an unknown name.
fn count(name: &str, count: u64) -> Option<std::convert::Infallible> {
    let machine = machine();
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let program = cpu.program(&space);
    let start = cpu.run(|| space.mmap(&MapRequest::anonymous(MOST_COUNTED * PAGE_SIZE, RW)).unwrap());
    let request = AllocRequest::anonymous();
    let frame =
        cpu.run(|| machine.memory().frames().allocate(&machine.memory().platform().pin(), request)).unwrap();
    let work: &dyn Fn(u64) = match name {
        "zero" => &|_| {
            // SAFETY: the frame was allocated for this.
            unsafe { machine.memory().platform().zero(frame, Order::ZERO) };
        },
        "touch" => &|nth| program.touch(VirtAddr(start.0 + nth * PAGE_SIZE), Access::Write).unwrap(),
        "fault" => &|nth| {
            let addr = VirtAddr(start.0 + nth * PAGE_SIZE);
            cpu.run(|| space.fault(addr, Access::Write).unwrap());
        },
        "map" => &|_| cpu.run(|| map_unmap(&space)),
        _ => return None,
    };
    (0..count).for_each(work);
    // Without giving anything back: that would be counted too.
    std::process::exit(0)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", name, number] => {
            let number = number.parse().ok().filter(|&number| name == "map" || number <= MOST_COUNTED);
            if number.and_then(|number| count(name, number)).is_none() {
                eprintln!(
                    "count takes zero, touch, fault or map, and a number up to {MOST_COUNTED} (any for map)"
                );
                return ExitCode::from(2);
            }
        }
        _ => times(),
    }
    ExitCode::SUCCESS
}
