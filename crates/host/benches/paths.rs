//! Instructions of the hottest paths of the memory manager: does the operation NAME N times and prints
//! nothing, to be run under `valgrind --tool=callgrind` with `--toggle-collect=*paths*measured*`
//! (`scripts/instructions.sh`). One thread; RAM is backed before.
//!
//! A name may end in `-lru`: pages are listed, as they are once there is swap space; in `-charged`: the
//! program is in a memcg; or in `-both`.
#![allow(clippy::unwrap_used, reason = "a failure is the end of a benchmark")]

use quire_arch::{Access, Order, PAGE_SIZE, Pfn, Platform, VirtAddr};
use quire_frame::AllocRequest;
use quire_host::{HostConfig, HostPlatform, Machine, Vcpu};
use quire_mm::{
    MemoryConfig,
    memcg::MemcgId,
    space::{Advice, MapFlags, MapRequest, Overcommit, Protection, RemapFlags, Space},
};
use std::process::ExitCode;

const RW: Protection = Protection::READ.union(Protection::WRITE);
/// Pages of a round: 16 MiB.
const PAGES: u64 = 4096;
const RAM: u64 = 256 << 20;
/// Rounds before those that are counted: they fill lists and make tables.
const WARM: u64 = 100;
const START: VirtAddr = VirtAddr(1 << 39);
/// Where nothing else is, with a table of its own that does not begin with it.
const THERE: VirtAddr = VirtAddr((1 << 39) + (32 << 30) + (3 << 21));

/// What is counted, and nothing else.
#[inline(never)]
fn measured<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// One space on one machine.
struct Bench<'m> {
    machine: &'m Machine,
    cpus: [&'m Vcpu; 2],
    space: Space<'m, HostPlatform>,
}

fn page(nth: u64) -> VirtAddr {
    VirtAddr(START.0 + nth * PAGE_SIZE)
}

impl<'m> Bench<'m> {
    fn new(machine: &'m Machine, cpus: [&'m Vcpu; 2], listed: bool, charged: bool) -> Self {
        let memory = machine.memory();
        let space = cpus[0].run(|| {
            if listed {
                memory.memcgs().folios().start_listing();
            }
            let space = memory.create_space().unwrap();
            if charged {
                space.set_memcg(memory.memcgs().lifecycle().create(MemcgId::ROOT, "bench").unwrap()).unwrap();
            }
            space.activate(&memory.platform().pin());
            space
        });
        Self { machine, cpus, space }
    }

    fn map(&self, at: VirtAddr, pages: u64) {
        let request = MapRequest::anonymous(pages * PAGE_SIZE, RW).at(at, MapFlags::FIXED_NOREPLACE);
        self.space.mmap(&request).unwrap();
    }

    fn write(&self, pages: std::ops::Range<u64>) {
        pages.for_each(|nth| self.space.fault(page(nth), Access::Write).unwrap());
    }

    fn unmap(&self) {
        self.space.munmap(START, PAGES * PAGE_SIZE).unwrap();
    }

    /// 16 MiB, of which one step of their life is counted.
    fn area(&self, what: &str) {
        self.map(START, PAGES);
        // The first private page of a mapping takes another path.
        self.write(0..1);
        let mut is_there = true;
        match what {
            "fault" => measured(|| self.write(1..PAGES)),
            _ => self.write(1..PAGES),
        }
        match what {
            "munmap" => {
                measured(|| self.unmap());
                is_there = false;
            }
            "dontneed" => {
                measured(|| self.space.madvise(START, PAGES * PAGE_SIZE, Advice::DontNeed).unwrap());
            }
            _ => {}
        }
        if is_there {
            self.unmap();
        }
    }

    /// A child of 16 MiB, whose making or end is counted.
    fn child(&self, what: &str) {
        let child =
            if what == "fork" { measured(|| self.space.fork().unwrap()) } else { self.space.fork().unwrap() };
        if what == "exit-child" { measured(|| drop(child)) } else { drop(child) }
    }

    /// One page that is mapped, touched if so, and unmapped.
    fn one(&self, touched: bool) {
        let addr = self.space.mmap(&MapRequest::anonymous(PAGE_SIZE, RW)).unwrap();
        if touched {
            self.space.fault(addr, Access::Write).unwrap();
        }
        self.space.munmap(addr, PAGE_SIZE).unwrap();
    }

    /// Eight pairs of calls of the page-frame allocator; `there` is the CPU that frees.
    fn pair(&self, order: Order, there: usize) {
        let memory = self.machine.memory();
        let request = AllocRequest::anonymous().uninitialised().order(order);
        let taken: Vec<Pfn> = self.cpus[0].run(|| {
            let pin = memory.platform().pin();
            (0..8).map(|_| memory.frames().allocate(&pin, request).unwrap()).collect()
        });
        self.cpus[there].run(|| {
            let pin = memory.platform().pin();
            taken.iter().for_each(|&pfn| memory.frames().free(&pin, pfn, order).unwrap());
        });
    }

    /// Does `work` so often that what it needs is there, and then `times` times, counted.
    fn repeat(&self, times: u64, work: impl Fn(u64)) {
        (0..WARM).for_each(&work);
        measured(|| (WARM..WARM + times).for_each(&work));
    }

    /// Does `what` `times` times. `None` for an unknown name.
    fn count(&self, what: &str, times: u64) -> Option<()> {
        match what {
            "fault" | "munmap" | "dontneed" => {
                self.area("");
                (0..times).for_each(|_| self.area(what));
            }
            "fork" | "exit-child" => {
                self.map(START, PAGES);
                self.write(0..PAGES);
                self.child("");
                (0..times).for_each(|_| self.child(what));
            }
            "dontneed-one" => {
                self.map(START, PAGES);
                self.write(0..PAGES);
                self.repeat(times, |nth| {
                    self.space.madvise(page(nth), PAGE_SIZE, Advice::DontNeed).unwrap();
                });
            }
            "one-freed" | "untouched" => {
                self.map(START, 1);
                self.write(0..1);
                self.repeat(times, |_| self.one(what == "one-freed"));
            }
            "one-kept" => {
                // Neighbours in the table that do not merge with it: it stays.
                let stays = self.space.mmap(&MapRequest::anonymous(PAGE_SIZE, RW)).unwrap();
                self.space.fault(stays, Access::Write).unwrap();
                self.space.mmap(&MapRequest::anonymous(PAGE_SIZE, Protection::READ)).unwrap();
                self.repeat(times, |_| self.one(true));
            }
            "move" => {
                // A page in each of 512 tables.
                const BYTES: u64 = 1 << 30;
                self.map(START, BYTES / PAGE_SIZE);
                (0..512).for_each(|nth| self.write(nth * 512..nth * 512 + 1));
                let flags = RemapFlags::FIXED | RemapFlags::MAYMOVE;
                self.repeat(times, |_| {
                    self.space.mremap(START, BYTES, BYTES, flags, THERE).unwrap();
                    self.space.mremap(THERE, BYTES, BYTES, flags, START).unwrap();
                });
            }
            _ => return None,
        }
        Some(())
    }
}

/// Does `name` `times` times and ends the process; `None` for an unknown name.
fn count(name: &str, times: u64) -> Option<std::convert::Infallible> {
    let host = HostConfig { large_pages: true, prefault: true, cpus: 2, ..HostConfig::with_ram(RAM) };
    let memory = MemoryConfig { overcommit: Overcommit::Always, ..MemoryConfig::default() };
    let machine = Machine::new(&host, memory).unwrap();
    let (what, listed, charged) = match name.rsplit_once('-') {
        Some((what, "lru")) => (what, true, false),
        Some((what, "charged")) => (what, false, true),
        Some((what, "both")) => (what, true, true),
        _ => (name, false, false),
    };
    let cpus = [machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap()];
    let bench = Bench::new(&machine, [&cpus[0], &cpus[1]], listed, charged);
    let pair = match what {
        "pcp-0" => Some((Order::ZERO, 0)),
        "pcp-9" => Some((Order::PMD, 0)),
        "remote-9" => Some((Order::PMD, 1)),
        _ => None,
    };
    match pair {
        // On CPUs of their own.
        Some((order, there)) => bench.repeat(times, |_| bench.pair(order, there)),
        None => bench.cpus[0].run(|| bench.count(what, times))?,
    }
    // Without giving anything back: that would be counted too.
    std::process::exit(0)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let ["count", name, times] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..]
        && times.parse().ok().and_then(|times| count(name, times)).is_none()
    {
        eprintln!(
            "count takes a name such as fault-lru, munmap-both, fork, one-kept or remote-9, and a number"
        );
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}
