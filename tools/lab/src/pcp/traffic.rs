//! Simulated traffic: what a busy machine allocates and frees over hours, at a steady use of its memory.
//!
//! - Processes start and exit, most of them soon. While one grows it takes movable folios of several orders,
//!   a page table for each 512 pages, and slabs; all of it is freed at its exit, except a few slabs that
//!   outlive it.
//! - The page cache takes the rest below the wanted use, movable, and frees its oldest folios when use
//!   exceeds that: the part of reclaim that matters here.
//! - Each file read takes reclaimable slabs, which live for minutes.
//!
//! - Use is steady, with surges: for some seconds of each minute nearly all memory is in use, as when
//!   something large is copied. That is what scatters allocations: while a fifth of memory is free, the buddy
//!   lists never split it.
//!
//! Allocations of the same time take turns of a few pages, as on several CPUs. The clock is simulated, and
//! one thread does everything, on the machine's CPUs in turn, so a seed decides the whole run.

use crate::machine::Machine;
use crate::prelude::*;
use crate::quire::LAB;
use fastrand::Rng;
use quire_arch::Pfn;
use quire_frame::{AllocRequest, Migratetype, PAGEBLOCK_ORDER};
use std::collections::VecDeque;
use std::mem::take;

/// What was allocated.
#[derive(Clone, Copy)]
struct Block {
    pfn: Pfn,
    order: Order,
    /// Whether its contents could be moved.
    moves: bool,
}

type OnCpu<'p> = Pin<'p, HostPlatform>;

/// The part of the used memory that processes want; the cache has the rest.
const PROCESSES: f64 = 0.55;
/// Pages of the smallest process.
const SMALLEST: f64 = 64.0;
/// The largest process wants this part of memory.
const LARGEST: f64 = 1.0 / 16.0;
/// Pages that are allocated in one turn.
const TURN: u64 = 32;
/// Turns of a process a second while it grows.
const TURNS: usize = 64;
/// Seconds after which the cache would have been read anew.
const CACHE_AGE: u64 = 300;
/// Out of a thousand allocations of a process, the orders of its folios.
const FOLIOS: [(u32, u8); 4] = [(930, 0), (40, 2), (25, 4), (5, 9)];
/// Out of a thousand reads, the orders of the folios that they are cached in.
const READS: [(u32, u8); 3] = [(700, 0), (200, 2), (100, 4)];
/// Out of a thousand slabs, their orders.
const SLABS: [(u32, u8); 4] = [(500, 0), (200, 1), (150, 2), (150, 3)];
/// Lifetimes of processes: out of a thousand how many, and their mean in seconds.
const LIFETIMES: [(u32, f64); 3] = [(700, 3.0), (250, 60.0), (50, 900.0)];
/// Mean seconds that a slab lives which outlives its process.
const LONG_SLAB: f64 = 1200.0;
/// Mean seconds that a reclaimable slab lives.
const READ_SLAB: f64 = 300.0;

/// A surge comes every so many seconds.
const SURGE_EVERY: u64 = 60;
/// Seconds that it lasts.
const SURGE: u64 = 10;
/// Use during a surge.
const SURGE_USE: f64 = 0.97;

/// One of the choices, each as often as its share says.
pub(super) fn choose<T: Copy>(random: &mut Rng, shares: &[(u32, T)]) -> T {
    let mut number = random.u32(0..shares.iter().map(|&(share, _)| share).sum());
    let mut place = 0;
    while number >= shares[place].0 {
        number -= shares[place].0;
        place += 1;
    }
    shares[place].1
}

/// An order of those.
fn choose_order(random: &mut Rng, shares: &[(u32, u8)]) -> Order {
    Order::new(choose(random, shares)).unwrap_or(Order::ZERO)
}

struct SimulatedProcess {
    ends: u64,
    /// Pages that it still wants.
    wants: u64,
    blocks: Vec<Block>,
}

/// The traffic on one machine.
pub(super) struct Traffic<'m> {
    machine: &'m Machine,
    random: Rng,
    /// Pages that should be in use outside of surges, and in them.
    steady: u64,
    surge: u64,
    /// Pages that should be in use now.
    wanted: u64,
    used: u64,
    /// Pages of all processes once they have grown.
    committed: u64,
    now: u64,
    processes: Vec<SimulatedProcess>,
    cache: VecDeque<Block>,
    /// Slabs by the second in which they are freed; those past the last one stay to the end.
    slabs: Vec<Vec<Block>>,
    /// The first frame of RAM.
    first: Pfn,
    /// For each page block, the allocations in it that cannot be moved.
    unmovable: Vec<u32>,
    /// Blocks that were allocated.
    pub(super) allocated: u64,
}

impl<'m> Traffic<'m> {
    /// Traffic for `seconds` that keeps `use_` of the machine's memory in use.
    pub(super) fn new(machine: &'m Machine, use_: f64, seconds: u64, seed: u64) -> Self {
        let part = |part| (machine.frames().reports().totals().managed as f64 * part) as u64;
        let steady = part(use_);
        let span = machine.frames().map().span();
        Self {
            machine,
            random: Rng::with_seed(seed),
            steady,
            surge: part(SURGE_USE),
            wanted: steady,
            used: 0,
            committed: 0,
            now: 0,
            processes: Vec::new(),
            cache: VecDeque::new(),
            first: span.start(),
            unmovable: vec![0; span.len().div_ceil(PAGEBLOCK_ORDER.pages()) as usize],
            slabs: (0..=seconds).map(|_| Vec::new()).collect(),
            allocated: 0,
        }
    }

    /// The next second.
    pub(super) fn second(&mut self, pin: &OnCpu<'_>) -> Done {
        self.now += 1;
        self.wanted = if self.is_surging() { self.surge } else { self.steady };
        self.end_processes(pin)?;
        let due = self.slabs.get_mut(self.now as usize).map(take);
        self.free_all(pin, due.into_iter().flatten())?;
        self.start_processes();
        let cached = (self.steady as f64 * (1.0 - PROCESSES)) as u64;
        let mut reads = (cached / CACHE_AGE).max(TURN);
        for _ in 0..TURNS {
            let growing = self.grow(pin)?;
            let some = reads.min(TURN);
            self.read(pin, some)?;
            reads -= some;
            if !growing && reads == 0 {
                break;
            }
        }
        self.make_room(pin, 0)?;
        // Free memory is cache that no file was read into yet.
        while self.used + TURN < self.wanted {
            self.read(pin, TURN)?;
        }
        Ok(())
    }

    /// Whether use is above the steady one.
    pub(super) fn is_surging(&self) -> bool {
        self.now % SURGE_EVERY >= SURGE_EVERY - SURGE
    }

    /// Ends everything.
    pub(super) fn end(mut self, pin: &OnCpu<'_>) -> Done {
        let processes = take(&mut self.processes).into_iter().flat_map(|process| process.blocks);
        let slabs = take(&mut self.slabs).into_iter().flatten();
        let cache = take(&mut self.cache);
        self.free_all(pin, processes.chain(slabs).chain(cache))
    }

    fn end_processes(&mut self, pin: &OnCpu<'_>) -> Done {
        let now = self.now;
        let over: Vec<_> = self.processes.extract_if(.., |process| process.ends <= now).collect();
        for SimulatedProcess { wants, blocks, .. } in over {
            self.committed -= wants + blocks.iter().map(|block| block.order.pages()).sum::<u64>();
            self.free_all(pin, blocks)?;
        }
        Ok(())
    }

    fn start_processes(&mut self) {
        let most = (self.steady as f64 * PROCESSES) as u64;
        loop {
            let largest = (self.steady as f64 * LARGEST).max(SMALLEST * 2.0);
            // As many of each power of two.
            let wants = (SMALLEST * (largest / SMALLEST).powf(self.random.f64())) as u64;
            if self.committed + wants > most {
                return;
            }
            let mean = choose(&mut self.random, &LIFETIMES);
            let ends = self.now + self.lifetime(mean);
            self.committed += wants;
            self.processes.push(SimulatedProcess { ends, wants, blocks: Vec::new() });
        }
    }

    /// An exponential lifetime in whole seconds, at least one.
    fn lifetime(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.random.f64()).ln()).ceil().max(1.0) as u64
    }

    /// One turn for every process that still grows. Returns whether there is one.
    fn grow(&mut self, pin: &OnCpu<'_>) -> Done<bool> {
        let mut growing = false;
        for at in 0..self.processes.len() {
            if self.processes[at].wants == 0 {
                continue;
            }
            growing = true;
            let mut turn = TURN.min(self.processes[at].wants);
            while turn > 0 {
                let order = choose_order(&mut self.random, &FOLIOS);
                let fits = order.pages() <= TURN.min(self.processes[at].wants);
                let order = if fits { order } else { Order::ZERO };
                let block = self.allocate(pin, order, Migratetype::Movable)?;
                self.keep(at, block, true);
                turn = turn.saturating_sub(block.order.pages());
            }
            // The odds are those of a table for each 512 pages, and of a slab for each 128.
            if self.random.u64(0..512) < TURN {
                let table = self.allocate(pin, Order::ZERO, Migratetype::Unmovable)?;
                self.keep(at, table, false);
            }
            if self.random.u64(0..128) < TURN {
                let slab = self.slab(pin, Migratetype::Unmovable)?;
                if self.random.u32(0..10) == 0 {
                    self.keep_slab(slab, LONG_SLAB);
                } else {
                    self.keep(at, slab, false);
                }
            }
        }
        Ok(growing)
    }

    /// Gives process `at` a block: one that it wanted, or on top of what it wanted.
    fn keep(&mut self, at: usize, block: Block, wanted: bool) {
        let process = &mut self.processes[at];
        let pages = block.order.pages();
        let given = if wanted { pages.min(process.wants) } else { 0 };
        self.committed += pages - given;
        process.wants -= given;
        process.blocks.push(block);
    }

    /// Reads `pages` pages into the cache.
    fn read(&mut self, pin: &OnCpu<'_>, pages: u64) -> Done {
        let mut left = pages;
        while left > 0 {
            let order = choose_order(&mut self.random, &READS);
            let block = self.allocate(pin, order, Migratetype::Movable)?;
            left = left.saturating_sub(block.order.pages());
            self.cache.push_back(block);
        }
        if self.random.u64(0..64) < pages {
            let slab = self.slab(pin, Migratetype::Reclaimable)?;
            self.keep_slab(slab, READ_SLAB);
        }
        Ok(())
    }

    fn slab(&mut self, pin: &OnCpu<'_>, migratetype: Migratetype) -> Done<Block> {
        let order = choose_order(&mut self.random, &SLABS);
        self.allocate(pin, order, migratetype)
    }

    fn keep_slab(&mut self, slab: Block, mean: f64) {
        let dies = (self.now + self.lifetime(mean)) as usize;
        // What outlives the run is with those of the second that never comes: the first.
        let at = if dies < self.slabs.len() { dies } else { 0 };
        self.slabs[at].push(slab);
    }

    /// A block, or a page where there is no block, after the cache has been shrunk for it.
    fn allocate(&mut self, pin: &OnCpu<'_>, order: Order, kind: Migratetype) -> Done<Block> {
        self.make_room(pin, order.pages())?;
        let moves = kind == Migratetype::Movable;
        let request = AllocRequest::new(order, LAB).movability(kind);
        let frames = self.machine.frames();
        // Larger blocks are allocated without effort, as by all users that can fall back to pages.
        let large = (order > Order::ZERO).then(|| frames.allocate(pin, request.without_drain()).ok());
        let block = match large.flatten() {
            Some(pfn) => Block { pfn, order, moves },
            None => {
                Block { pfn: frames.allocate(pin, request.order(Order::ZERO))?, order: Order::ZERO, moves }
            }
        };
        self.used += block.order.pages();
        self.allocated += 1;
        let page_block = self.page_block(block.pfn);
        self.unmovable[page_block] += u32::from(!moves);
        Ok(block)
    }

    /// The page block that a frame lies in. No block that is allocated here is larger.
    fn page_block(&self, pfn: Pfn) -> usize {
        ((pfn.0 - self.first.0) / PAGEBLOCK_ORDER.pages()) as usize
    }

    /// The part of all page blocks that hold nothing but what can be moved.
    pub(super) fn emptiable(&self) -> f64 {
        let blocks = self.unmovable.iter().filter(|&&count| count == 0).count();
        blocks as f64 / self.unmovable.len() as f64
    }

    /// Shrinks the cache until `pages` more pages may be used.
    fn make_room(&mut self, pin: &OnCpu<'_>, pages: u64) -> Done {
        while self.used + pages > self.wanted {
            let Some(oldest) = self.cache.pop_front() else { break };
            self.free(pin, oldest)?;
        }
        Ok(())
    }

    fn free(&mut self, pin: &OnCpu<'_>, Block { pfn, order, moves }: Block) -> Done {
        let page_block = self.page_block(pfn);
        self.unmovable[page_block] -= u32::from(!moves);
        self.used -= order.pages();
        self.machine.frames().free(pin, pfn, order).map_err(|error| LabError::Kept(pfn, error))
    }

    fn free_all(&mut self, pin: &OnCpu<'_>, blocks: impl IntoIterator<Item = Block>) -> Done {
        blocks.into_iter().try_for_each(|block| self.free(pin, block))
    }
}
