//! A machine for tests and benches: RAM on the heap, a CPU number for each thread.

use quire_arch::paging::X86_64Level4;
use quire_arch::{
    Asid, CpuId, CpuMask, Execution, LockClass, NodeId, Order, Pfn, PfnRange, Pin, Platform, RamClaim,
    TlbFlush,
};
use quire_frame::{
    AllocRequest, FailSite, FrameChain, FrameConfig, FrameViolation, Frames, PcpReport, PcpTechnique,
    ZoneKind,
};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::borrow::Borrow;
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::ptr::NonNull;
use std::string::{String, ToString};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::vec::Vec;

std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static PINS: Cell<u32> = const { Cell::new(0) };
    /// How often this thread asked where a frame is since it pinned itself, and the most that it did so far.
    static UNDER_PIN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// How many locks this thread dropped since it pinned itself, and the most that it did so far.
    static HOLDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The classes of the locks that this thread holds, in the order in which it took them.
    static HELD: RefCell<Vec<LockClass>> = const { RefCell::new(Vec::new()) };
    /// What this thread does each time it has dropped a lock.
    static STEP: RefCell<Option<Step>> = const { RefCell::new(None) };
    /// What this thread does when it waits for the first time.
    static WAIT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// What this thread does when it looks at the clock for the first time.
    static LOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// Whether the time of a wait is over for this thread when it has begun.
    static TIME_FLIES: Cell<bool> = const { Cell::new(false) };
}

/// What happens between two holds of a lock, of this class.
type Step = Box<dyn FnMut(LockClass)>;

/// The site of what tests allocate themselves.
pub(crate) const TEST: FailSite = FailSite::new("test");

/// A request for one frame.
pub(crate) const ONE: AllocRequest = AllocRequest::new(Order::ZERO, TEST);

/// From now on this thread runs on `cpu`.
pub(crate) fn run_on(cpu: usize) {
    CPU.set(cpu);
}

/// This thread calls `wait` when it waits for the next time: what other CPUs do just then.
pub(crate) fn at_the_next_wait(wait: impl FnOnce() + 'static) {
    WAIT.set(Some(Box::new(wait)));
}

/// This thread calls `look` when it looks at the clock for the next time, as it does before it frees memory
/// for itself.
#[allow(dead_code, reason = "used by the tests of quire-host")]
pub(crate) fn at_the_next_look_at_the_clock(look: impl FnOnce() + 'static) {
    LOOK.set(Some(Box::new(look)));
}

/// From now on the whole time for which this thread wants to wait is over when it begins to.
#[allow(dead_code, reason = "used by the tests of quire-swap and quire-host")]
pub(crate) fn let_time_fly() {
    TIME_FLIES.set(true);
}

/// Runs `action`, and `step` each time this thread has dropped a lock of `class` in it: what another CPU
/// would do just then. Locks that `step` drops call for no further one. Locks are reported, and steps made,
/// in debug builds only.
pub(crate) fn after_each_hold<R>(
    class: LockClass,
    mut step: impl FnMut() + 'static,
    action: impl FnOnce() -> R,
) -> R {
    let step = move |dropped| {
        if dropped == class {
            step();
        }
    };
    after_all_holds(step, action)
}

/// As [`after_each_hold`], for locks of every class.
pub(crate) fn after_all_holds<R>(step: impl FnMut(LockClass) + 'static, action: impl FnOnce() -> R) -> R {
    STEP.set(Some(Box::new(step)));
    let result = action();
    STEP.set(None);
    result
}

/// Runs `action`, and returns how many frames it looked at under one pin at most. They are counted in debug
/// builds only.
#[allow(dead_code, reason = "used by the tests of quire-swap")]
pub(crate) fn most_under_a_pin<R>(action: impl FnOnce() -> R) -> (R, u64) {
    UNDER_PIN.set((0, 0));
    let result = action();
    (result, UNDER_PIN.get().1)
}

/// Runs `action`, and returns how many locks it took and dropped under one pin at most. They are counted in
/// debug builds only.
#[allow(dead_code, reason = "used by the tests of quire-memcg")]
pub(crate) fn most_holds_under_a_pin<R>(action: impl FnOnce() -> R) -> (R, u64) {
    HOLDS.set((0, 0));
    let result = action();
    (result, HOLDS.get().1)
}

/// Whether this thread holds a lock of this class. Locks are reported in debug builds only.
#[allow(dead_code, reason = "used by the tests of quire-memcg")]
pub(crate) fn holds(class: LockClass) -> bool {
    HELD.with_borrow(|held| held.contains(&class))
}

struct Bank {
    frames: PfnRange,
    memory: NonNull<u8>,
}

/// Memory for the frames of banks.
struct Piece {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Piece {
    fn new(frames: PfnRange) -> Self {
        let layout = Layout::from_size_align(frames.len() as usize * 4096, 4096).expect("a bank's size");
        // SAFETY: the tests have no empty banks.
        let memory = unsafe { alloc_zeroed(layout) };
        Self { memory: NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// A machine whose RAM is `banks`.
pub(crate) struct Machine {
    banks: Vec<Bank>,
    /// What the banks lie in.
    _pieces: Vec<Piece>,
    claim: RamClaim,
    cpus: Vec<AtomicBool>,
    /// Several threads run on one CPU number, so pinning excludes.
    shared_cpus: bool,
    /// Banks and CPUs are dealt out to so many nodes in turn.
    nodes: usize,
    clock: AtomicU64,
}

// SAFETY: a bank is plain memory; which thread may use which part of it is tested here.
unsafe impl Send for Machine {}
// SAFETY: a bank is plain memory; which thread may use which part of it is tested here.
unsafe impl Sync for Machine {}

impl Machine {
    /// A machine with RAM at these ranges of frames, each of which is a piece of memory of its own.
    pub(crate) fn new(banks: &[(u64, u64)], cpus: usize) -> Self {
        Self::with_pieces(banks.iter().map(|&(start, end)| (start, Vec::from([end]))), cpus)
    }

    /// A machine with RAM from frame 0 on, in one piece of memory, which is named as the ranges that end at
    /// `ends`.
    #[allow(dead_code, reason = "used by the tests of this crate only")]
    pub(crate) fn in_one_piece(ends: &[u64], cpus: usize) -> Self {
        Self::with_pieces([(0, ends.to_vec())].into_iter(), cpus)
    }

    /// By the start of each piece of memory, and the ends of the banks in it.
    fn with_pieces(all: impl Iterator<Item = (u64, Vec<u64>)>, cpus: usize) -> Self {
        let (mut banks, mut pieces) = (Vec::new(), Vec::new());
        for (first, ends) in all {
            let last = *ends.last().expect("a bank");
            let piece = Piece::new(PfnRange::new(Pfn(first), Pfn(last)));
            let mut start = first;
            for end in ends {
                // SAFETY: the bank lies in the piece.
                let memory = unsafe { piece.memory.add((start - first) as usize * 4096) };
                banks.push(Bank { frames: PfnRange::new(Pfn(start), Pfn(end)), memory });
                start = end;
            }
            pieces.push(piece);
        }
        let cpus = (0..cpus).map(|_| AtomicBool::new(false)).collect();
        Self {
            banks,
            _pieces: pieces,
            claim: RamClaim::new(),
            cpus,
            shared_cpus: false,
            nodes: 1,
            clock: AtomicU64::new(0),
        }
    }

    /// Lets several threads share CPU numbers.
    pub(crate) fn shared(mut self) -> Self {
        self.shared_cpus = true;
        self
    }

    /// Deals banks and CPUs out to `nodes` nodes.
    pub(crate) fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }
}

impl Execution for Machine {
    fn relax(attempt: u32) {
        if let Some(wait) = WAIT.take() {
            wait();
        }
        if attempt > 100 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    fn lock_taken(class: LockClass) {
        HELD.with_borrow_mut(|held| {
            // Of some classes two are held at a time (docs/locking.md, "Two locks of one class").
            let pairs = matches!(class, LockClass::Mmap | LockClass::UpperTable | LockClass::PteTable);
            let late = held.iter().find(|&&outer| if pairs { outer > class } else { outer >= class });
            assert!(late.is_none(), "a lock of class {class:?} is taken under {held:?}");
            held.push(class);
        });
    }

    fn lock_dropped(class: LockClass) {
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|&outer| outer == class);
            held.remove(at.expect("a lock is dropped that was not taken"));
        });
        let (now, most) = HOLDS.get();
        HOLDS.set((now + 1, most.max(now + 1)));
        if let Some(mut step) = STEP.take() {
            step(class);
            STEP.set(Some(step));
        }
    }
}

// SAFETY: banks are disjoint page-aligned parts of heap blocks that live as long as the machine, and a
// machine of which banks of one node touch is refused if these are not consecutive; a thread keeps its CPU
// number, and numbers are either one thread's each or excluded by `pin_enter`; there is no TLB.
unsafe impl Platform for Machine {
    type Paging = X86_64Level4;

    fn for_each_ram(&self, visit: &mut dyn FnMut(PfnRange)) {
        for bank in &self.banks {
            visit(bank.frames);
        }
    }

    fn ram_claim(&self) -> &RamClaim {
        &self.claim
    }

    fn node_count(&self) -> usize {
        self.nodes
    }

    fn node_of_ram(&self, start: Pfn) -> NodeId {
        let bank = self.banks.iter().position(|bank| bank.frames.contains(start)).expect("a frame of RAM");
        NodeId::new(bank % self.nodes).expect("a node")
    }

    fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        NodeId::new(cpu.index() % self.nodes).expect("a node")
    }

    #[inline]
    fn direct_map(&self, pfn: Pfn) -> NonNull<u8> {
        if cfg!(debug_assertions) && PINS.get() > 0 {
            let (now, most) = UNDER_PIN.get();
            UNDER_PIN.set((now + 1, most.max(now + 1)));
        }
        let bank = self.banks.iter().find(|bank| bank.frames.contains(pfn)).expect("a frame of RAM");
        let offset = (pfn.0 - bank.frames.start().0) as usize * 4096;
        // SAFETY: the frame lies in the bank.
        unsafe { bank.memory.add(offset) }
    }

    fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    #[inline]
    fn pin_enter(&self) -> CpuId {
        let cpu = CPU.get();
        let depth = PINS.get();
        PINS.set(depth + 1);
        if cfg!(debug_assertions) && depth == 0 {
            UNDER_PIN.set((0, UNDER_PIN.get().1));
            HOLDS.set((0, HOLDS.get().1));
        }
        if self.shared_cpus && depth == 0 {
            let mut attempt = 0;
            while self.cpus[cpu].swap(true, Ordering::Acquire) {
                Self::relax(attempt);
                attempt += 1;
            }
        }
        CpuId::new(cpu).expect("a CPU number")
    }

    #[inline]
    unsafe fn pin_exit(&self) {
        let depth = PINS.get() - 1;
        PINS.set(depth);
        if self.shared_cpus && depth == 0 {
            self.cpus[CPU.get()].store(false, Ordering::Release);
        }
    }

    fn flush_local(&self, _pin: &Pin<'_, Self>, _flush: TlbFlush) {}

    fn shootdown(&self, _pin: &Pin<'_, Self>, _cpus: &CpuMask, _flush: TlbFlush) {}

    unsafe fn activate(&self, _pin: &Pin<'_, Self>, _root: Option<(Pfn, Asid)>) {}

    fn asid_count(&self) -> u32 {
        1
    }

    fn now(&self) -> u64 {
        if let Some(look) = LOOK.take() {
            look();
        }
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn park(&self, _key: usize, _still: &mut dyn FnMut() -> bool) {
        if let Some(wait) = WAIT.take() {
            wait();
        }
        std::thread::yield_now();
    }

    fn park_for(&self, _key: usize, ns: u64, still: &mut dyn FnMut() -> bool) {
        let until = self.now().saturating_add(ns);
        let mut attempt = 0;
        while still() && self.now() < until {
            if TIME_FLIES.get() {
                self.clock.fetch_add(ns, Ordering::Relaxed);
            }
            Self::relax(attempt);
            attempt += 1;
        }
    }

    fn unpark(&self, _key: usize) {}
}

/// A machine's frames with nothing held back, so that a test can use all of them.
pub(crate) fn frames(banks: &[(u64, u64)], cpus: usize, pcp: PcpTechnique) -> Frames<Machine> {
    frames_of(Machine::new(banks, cpus), pcp)
}

/// As [`frames`], on a machine made by the caller.
pub(crate) fn frames_of(machine: Machine, pcp: PcpTechnique) -> Frames<Machine> {
    Frames::new(machine, FrameConfig { pcp, min_free_kib: Some(0), ..FrameConfig::default() })
        .expect("the machine starts")
}

/// A machine that keeps `min_free_kib` KiB back.
pub(crate) fn frames_with_watermarks(machine: Machine, min_free_kib: u64) -> Frames<Machine> {
    let config = FrameConfig { min_free_kib: Some(min_free_kib), ..FrameConfig::default() };
    Frames::new(machine, config).expect("the machine starts")
}

/// Times that any zone's lock was taken.
pub(crate) fn zone_takes(frames: &Frames<Machine>) -> u64 {
    frames.reports().zone_locks().map(|lock| lock.takes).sum()
}

/// Everything that the auditor finds.
pub(crate) fn violations(frames: &Frames<Machine>) -> Vec<FrameViolation> {
    let mut found = Vec::new();
    frames.audit().validate(&mut |violation| found.push(violation));
    found
}

/// Fails on anything that the auditor finds.
#[track_caller]
pub(crate) fn assert_sound(frames: &Frames<Machine>) {
    let found: Vec<String> = violations(frames).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "the auditor found {} violations: {found:#?}", found.len());
}

/// Frames under test: the auditor looks at them when the test is through.
pub(crate) struct Audited(pub(crate) Frames<Machine>);

impl Deref for Audited {
    type Target = Frames<Machine>;

    fn deref(&self) -> &Frames<Machine> {
        &self.0
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_sound(&self.0);
        }
    }
}

/// Order `order`, which exists.
pub(crate) fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// Pseudo-random numbers (splitmix64, S. Vigna) that replay from their seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A block, allocated on the CPU that the thread runs on.
pub(crate) fn get(frames: &Frames<Machine>, order: Order) -> Pfn {
    frames.allocate(&frames.platform().pin(), AllocRequest::new(order, TEST)).expect("there is memory")
}

/// Gives a block back.
pub(crate) fn put(frames: &Frames<Machine>, pfn: Pfn, order: Order) {
    frames.free(&frames.platform().pin(), pfn, order).expect("the block is the test's");
}

/// Gives blocks of one order back.
pub(crate) fn put_all(frames: &Frames<Machine>, blocks: impl IntoIterator<Item: Borrow<Pfn>>, order: Order) {
    blocks.into_iter().for_each(|pfn| put(frames, *pfn.borrow(), order));
}

/// Blocks of one order as a chain, to be given back together.
pub(crate) fn chain(
    frames: &Frames<Machine>,
    blocks: impl IntoIterator<Item: Borrow<Pfn>>,
    order: Order,
) -> FrameChain {
    let mut chain = FrameChain::new();
    blocks.into_iter().for_each(|pfn| frames.gather(&mut chain, *pfn.borrow(), order).expect("the test's"));
    chain
}

/// All blocks that requests like this get.
pub(crate) fn exhaust(frames: &Frames<Machine>, request: AllocRequest) -> Vec<Pfn> {
    let pin = frames.platform().pin();
    core::iter::from_fn(|| frames.allocate(&pin, request).ok()).collect()
}

/// A CPU's lists for the zone DMA32.
pub(crate) fn lists(frames: &Frames<Machine>, cpu: usize) -> PcpReport {
    frames.reports().pcp_reports(ZoneKind::Dma32).nth(cpu).expect("the machine has the CPU")
}

/// Takes single frames, for good, until the zone DMA32 is well below its low watermark.
pub(crate) fn make_low(frames: &Frames<Machine>) {
    let low = || {
        let zone = frames.reports().zone_report(ZoneKind::Dma32);
        zone.free < zone.watermarks.low - 200
    };
    while !low() {
        frames.allocate(&frames.platform().pin(), ONE.below_min()).expect("there is memory");
    }
}
