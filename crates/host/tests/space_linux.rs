//! Random memory calls on Linux and on Quire side by side.
//!
//! A forked Linux process and a Quire space that starts with the same mappings make the same calls and accesses.
//! After each the results are compared; every few calls, the mappings (borders and flags), which pages are in memory,
//! and what they hold. The seeds are fixed: `QUIRE_SEED` sets the first, `QUIRE_SEEDS` how many, `QUIRE_STEPS` the
//! calls of each.
//!
//! Left out on purpose, since Quire differs there and says so: shared memory in another size than it was made with,
//! paging out shared memory or after `MADV_FREE`, files, guard pages, and advice that is not built.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "common/calls.rs"]
mod calls;
mod common;
#[path = "common/layout.rs"]
mod layout;
#[path = "common/linux.rs"]
mod linux;

use calls::{Op, Place, WINDOW, WINDOW_END, random_call};
use common::{AccessResult, HostSpace, MIB2, PAGE, Random, assert_audit, in_use, setting};
use layout::{Start, parse_maps, parse_smaps, regions_of};
use linux::{Child, READ, Reply, VECTOR, WRITE};
use quire_arch::{VirtAddr, VirtRange};
use quire_host::{AccessError, HostConfig, Machine, Vcpu};
use quire_mm::abi::{self, CallNumber, NoFiles, Outcome};
use quire_mm::{FaultError, MemoryConfig, VmFlags};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const MMAP: u32 = 9;
const MUNMAP: u32 = 11;
const BRK: u32 = 12;
const MREMAP: u32 = 25;
const MINCORE: u32 = 27;
const MADVISE: u32 = 28;
const TASK_SIZE: u64 = (1 << 47) - PAGE;
/// More than this is not populated or locked at once.
const MOST_POPULATED: u64 = 2 * MIB2;

/// One run of a list of calls.
struct Run<'r> {
    child: Child,
    start: Start,
    cpu: &'r Vcpu,
    space: HostSpace<'r>,
    /// The calls for which Linux chose a place, and the places.
    areas: BTreeMap<usize, u64>,
    /// Linux may drop some pages at once when it is told to page out.
    freed: bool,
}

/// Where both sides parted.
struct Mismatch {
    step: usize,
    what: String,
}

impl<'r> Run<'r> {
    fn new(child: Child, start: Start, machine: &'r Machine, cpu: &'r Vcpu) -> Self {
        let space = machine.memory().create_space_with(start.layout, start.limits).expect("a space");
        start.install(&space);
        Self { child, start, cpu, space, areas: BTreeMap::new(), freed: false }
    }

    /// The six words of a call, or `None` for one that must not be made.
    fn resolve(&self, op: &Op) -> Option<[u64; 6]> {
        let [b, c, d, e] = op.args;
        let addr = match op.addr {
            Place::Exact(addr) if op.number == BRK => self.start.layout.brk.0 + addr,
            Place::Exact(addr) => addr,
            Place::Area(of, offset) => self.areas.get(&of)? + offset,
        };
        let args = match op.number {
            MMAP => [addr, b, c, d, u64::MAX, e],
            _ => [addr, b, c, d, e, 0],
        };
        (self.is_safe(op.number, args) && !self.is_known_difference(op.number, args)).then_some(args)
    }

    /// Whether the call leaves the test's own memory alone, in the child and otherwise.
    fn is_safe(&self, number: u32, args: [u64; 6]) -> bool {
        let [addr, len, third, fourth, target, _] = args;
        let pages = |at: u64, len: u64| match at.checked_add(len).and_then(|end| end.checked_add(PAGE - 1)) {
            // It wraps, so it is refused.
            None => true,
            Some(_) if number == MUNMAP && len > TASK_SIZE => true,
            Some(end) => !self.start.touches(at & !(PAGE - 1), end) && len <= 1 << 31,
        };
        match number {
            // MCL_CURRENT without ONFAULT is never generated.
            BRK | 151 | 152 => true,
            READ | WRITE => pages(addr, 8),
            MMAP if fourth & 0x10_0010 == 0 => true,
            MMAP => pages(addr, len) || len >= 1 << 46,
            MREMAP => {
                let fixed = fourth & 6 == 0 || pages(target, third);
                pages(addr, len) && fixed && (third <= 1 << 31 || third > TASK_SIZE)
            }
            MINCORE => len < VECTOR as u64 * PAGE && pages(addr, len) || addr.checked_add(len).is_none(),
            MADVISE if third == 22 || third == 23 => pages(addr, len) && self.is_small(addr, len),
            149 | 325 => pages(addr, len) && self.is_small(addr, len),
            _ => pages(addr, len),
        }
    }

    /// Whether little enough is mapped in the range to be populated.
    fn is_small(&self, addr: u64, len: u64) -> bool {
        let range = VirtRange::new(VirtAddr(addr), VirtAddr(addr.saturating_add(len)));
        let mut mapped = 0;
        self.space.for_each_mapping(|mapping| mapped += mapping.range.intersect(range).len());
        mapped <= MOST_POPULATED
    }

    /// Whether the call does what only memory that outlives its mapping can do.
    fn is_known_difference(&self, number: u32, args: [u64; 6]) -> bool {
        let [addr, len, third, fourth, ..] = args;
        const PAGEOUT: u64 = 21;
        // Quire pages nothing out so far; Linux may, even without swap, what was given free or is clean and shared.
        let pages_out = number == MADVISE && third == PAGEOUT;
        if pages_out && self.freed {
            return true;
        }
        let resizes = number == MREMAP && (len != third || fourth & 4 != 0);
        if !resizes && !pages_out {
            return false;
        }
        let range = VirtRange::new(VirtAddr(addr), VirtAddr(addr.saturating_add(len.max(1))));
        let mut shared = false;
        self.space.for_each_mapping(|mapping| {
            shared |= mapping.range.overlaps(range) && mapping.flags.contains(VmFlags::MAYSHARE);
        });
        shared
    }

    /// Makes one call on both sides and compares what it came to.
    fn step(&mut self, op: &Op) -> Result<(), String> {
        let Some(args) = self.resolve(op) else { return Ok(()) };
        const FREE: u64 = 8;
        self.freed |= op.number == MADVISE && args[2] == FREE;
        let linux = self.child.call(op.number, args);
        let quire = self.on_quire(op.number, args);
        if linux != quire {
            return Err(format!("{:x?}: Linux {linux:x?}, Quire {quire:x?}", (op, args)));
        }
        let Reply::Value(value @ 0..) = linux else { return Ok(()) };
        let chosen = op.number == MMAP && args[3] & 0x10 == 0 || op.number == MREMAP;
        if chosen && !(WINDOW..WINDOW_END).contains(&(value as u64)) {
            self.areas.insert(op.id, value as u64);
        }
        if op.number == MINCORE {
            self.compare_residency(args[0], args[1].div_ceil(PAGE))?;
        }
        Ok(())
    }

    fn on_quire(&self, number: u32, args: [u64; 6]) -> Reply {
        let program = self.cpu.program(&self.space);
        let addr = VirtAddr(args[0]);
        match number {
            READ => reply_to(program.read_u64(addr)),
            WRITE => reply_to(program.write_u64(addr, args[1]).map(|()| args[1])),
            _ => match abi::call(&self.space, CallNumber::from_raw(number), args, &NoFiles) {
                Outcome::Done(value) => Reply::Value(value as i64),
                Outcome::Failed(errno) => Reply::Value(-i64::from(errno.0)),
                Outcome::Unsupported => Reply::Value(i64::MIN),
            },
        }
    }

    /// Compares which of the `pages` pages from `addr` are in memory, after a `mincore` on Linux.
    fn compare_residency(&self, addr: u64, pages: u64) -> Result<(), String> {
        let linux = self.child.residency(pages);
        let mut quire = Vec::new();
        self.space
            .mincore(VirtAddr(addr), pages * PAGE, |resident| quire.push(resident))
            .map_err(|error| format!("mincore of {addr:#x}: {error}"))?;
        match linux.iter().zip(&quire).position(|(a, b)| a != b) {
            Some(at) => {
                let side = if linux[at] { "Linux" } else { "Quire" };
                Err(format!("page {:#x} is in memory only on {side}", addr + at as u64 * PAGE))
            }
            None => Ok(()),
        }
    }

    /// Compares all mappings: their borders and access or, `deep`, all flags.
    fn compare_mappings(&self, deep: bool) -> Result<(), String> {
        let linux = if deep {
            parse_smaps(&self.child.text("smaps")).into_iter().map(|(region, _)| region).collect()
        } else {
            parse_maps(&self.child.text("maps"))
        };
        let (linux, quire) = (self.start.cut(linux), self.start.cut(regions_of(&self.space, deep)));
        if linux == quire {
            return Ok(());
        }
        let only_linux: Vec<_> = linux.iter().filter(|region| !quire.contains(region)).collect();
        let only_quire: Vec<_> = quire.iter().filter(|region| !linux.contains(region)).collect();
        Err(format!("mappings differ:\n  Linux {only_linux:#?}\n  Quire {only_quire:#?}"))
    }

    /// Compares residency and contents of everything that was mapped since the start.
    fn compare_pages(&self) -> Result<(), String> {
        for region in regions_of(&self.space, false) {
            let shared = region.flags.contains(VmFlags::MAYSHARE);
            if self.start.touches(region.start, region.end) || shared || region.end - region.start > 4 * MIB2
            {
                continue;
            }
            let pages = (region.end - region.start) / PAGE;
            let reply = self.child.call(MINCORE, [region.start, pages * PAGE, 0, 0, 0, 0]);
            if reply != Reply::Value(0) {
                return Err(format!("mincore of {region:?}: Linux {reply:?}"));
            }
            self.compare_residency(region.start, pages)?;
            if !region.flags.intersects(VmFlags::READ | VmFlags::WRITE | VmFlags::EXEC) {
                continue;
            }
            let resident = self.child.residency(pages);
            for page in (0..pages).filter(|&page| resident[page as usize]) {
                for offset in [0, 2048, PAGE - 8] {
                    let args = [region.start + page * PAGE + offset, 0, 0, 0, 0, 0];
                    let (linux, quire) = (self.child.call(READ, args), self.on_quire(READ, args));
                    if linux != quire {
                        return Err(format!("at {:#x}: Linux {linux:x?}, Quire {quire:x?}", args[0]));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is compared after step `step`.
    fn compare(&self, step: usize) -> Result<(), String> {
        if step.is_multiple_of(4) {
            self.compare_mappings(false)?;
        }
        if step.is_multiple_of(64) {
            self.compare_mappings(true)?;
        }
        if step.is_multiple_of(128) {
            self.compare_pages()?;
        }
        Ok(())
    }
}

fn reply_to(result: AccessResult<u64>) -> Reply {
    const SIGBUS: u32 = 7;
    const SIGSEGV: u32 = 11;
    match result {
        Ok(value) => Reply::Value(value as i64),
        Err(AccessError::Fault(FaultError::NotMapped)) => Reply::Signal(SIGSEGV, 1),
        Err(AccessError::Fault(FaultError::AccessDenied)) => Reply::Signal(SIGSEGV, 2),
        Err(AccessError::Fault(FaultError::Bus)) => Reply::Signal(SIGBUS, 2),
        Err(other) => panic!("{other}"),
    }
}

/// Where the calls come from.
enum Source<'s> {
    Random(Random, usize),
    List(&'s [Op]),
}

/// Runs calls on both sides. Answers the calls, and the mismatch that ended them if there was one.
fn run(source: Source<'_>, every_step: bool) -> (Vec<Op>, Option<Mismatch>) {
    let child = Child::start();
    let start = Start::of(&child);
    let config =
        MemoryConfig { min_free_kib: Some(0), overcommit: start.overcommit, ..MemoryConfig::default() };
    let machine = Machine::new(&HostConfig::with_ram(192 << 20).paranoid(), config).expect("a machine");
    let cpu = machine.vcpu(0).expect("the CPU is free");
    let before = in_use(&machine);
    let mut run = Run::new(child, start, &machine, &cpu);
    let mut ops = Vec::new();
    let (mut random, count, list) = match source {
        Source::Random(random, count) => (random, count, None),
        Source::List(list) => (Random(0), list.len(), Some(list)),
    };
    for step in 0..count {
        let op = match list {
            Some(list) => list[step],
            None => {
                let areas: Vec<usize> = run.areas.keys().copied().collect();
                random_call(&mut random, step, &areas)
            }
        };
        ops.push(op);
        let mut result = run.step(&op);
        if every_step && result.is_ok() {
            result = run.compare_mappings(true).and_then(|()| run.compare_pages());
        } else if result.is_ok() {
            result = run.compare(step + 1);
        }
        if let Err(what) = result {
            return (ops, Some(Mismatch { step, what }));
        }
    }
    assert_audit(&machine);
    drop(run);
    assert_audit(&machine);
    assert_eq!(in_use(&machine), before, "frames are lost");
    (ops, None)
}

/// Leaves calls out as long as the rest still ends in a mismatch, for a while.
fn minimise(mut ops: Vec<Op>, mut mismatch: Mismatch) -> (Vec<Op>, Mismatch) {
    let begin = Instant::now();
    let budget = Duration::from_secs(setting("QUIRE_MINIMISE_SECONDS", 30));
    let mut chunk = ops.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < ops.len() {
            if begin.elapsed() > budget {
                return (ops, mismatch);
            }
            let mut fewer = ops.clone();
            fewer.drain(at..(at + chunk).min(ops.len()));
            match run(Source::List(&fewer), fewer.len() < 200) {
                (_, Some(found)) => {
                    fewer.truncate(found.step + 1);
                    (ops, mismatch) = (fewer, found);
                }
                (_, None) => at += chunk,
            }
        }
        chunk /= 2;
    }
    (ops, mismatch)
}

#[test]
fn random_calls_end_alike_on_linux_and_on_quire() {
    let first = setting("QUIRE_SEED", 1);
    let steps = setting("QUIRE_STEPS", 3000) as usize;
    for seed in first..first + setting("QUIRE_SEEDS", 4) {
        println!("seed {seed}, {steps} calls");
        let (ops, mismatch) = run(Source::Random(Random(seed), steps), false);
        let Some(mismatch) = mismatch else { continue };
        println!("seed {seed}, call {}: {}", mismatch.step, mismatch.what);
        let (ops, mismatch) = minimise(ops, mismatch);
        for op in &ops {
            println!("  {op:?}");
        }
        panic!("seed {seed}: {}", mismatch.what);
    }
}
