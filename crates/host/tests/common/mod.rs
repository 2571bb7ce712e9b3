//! What the tests of `quire-space` on the host machine share. A test file takes all of it, and with it the
//! types of the machine and of its memory manager: `use crate::common::*`.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

mod machine;
mod random;
mod space;

pub(crate) use machine::{Machine, Setup};
pub(crate) use quire_arch::*;
pub(crate) use quire_host::*;
pub(crate) use quire_mm::frame::*;
pub(crate) use quire_mm::internals::*;
pub(crate) use quire_mm::memcg::*;
pub(crate) use quire_mm::proc::*;
pub(crate) use quire_mm::space::*;
pub(crate) use quire_mm::swap::*;
pub(crate) use quire_mm::thp::*;
pub(crate) use quire_mm::*;
pub(crate) use random::{Call, Page, Process, Random};
pub(crate) use space::{HostSpace, create_space};

pub(crate) use quire_arch::paging::X86_64Level4;
use quire_frame::Kind;

pub(crate) const RW: Protection = Protection::READ.union(Protection::WRITE);
pub(crate) const READ: Protection = Protection::READ;
pub(crate) const NONE: Protection = Protection::empty();
pub(crate) const PAGE: u64 = PAGE_SIZE;
/// What one PTE table covers with 512-entry tables.
pub(crate) const MIB2: u64 = 2 << 20;
/// What one table of the second level covers.
pub(crate) const GIB: u64 = 1 << 30;

/// To exactly the new place, over whatever is there.
pub(crate) const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// The result of an access.
pub(crate) type AccessResult<T> = Result<T, AccessError<FaultError>>;
/// A program in a host space.
pub(crate) type HostProgram<'v, 'm, F = X86_64Level4> = Program<'v, HostSpace<'m, F>, F>;

pub(crate) const NOT_MAPPED: AccessError<FaultError> = AccessError::Fault(FaultError::NotMapped);
pub(crate) const DENIED: AccessError<FaultError> = AccessError::Fault(FaultError::AccessDenied);

/// The set of these orders.
pub(crate) fn orders(orders: &[u8]) -> OrderSet {
    orders.iter().filter_map(|&order| Order::new(order)).collect()
}

/// A paranoid machine.
pub(crate) fn machine(mib: u64, cpus: usize) -> Machine {
    Setup::mib(mib).cpus(cpus).build()
}

/// Panics with everything that an audit finds.
#[track_caller]
pub(crate) fn assert_audit<F: PagingFormat>(machine: &Machine<F>) {
    let findings = machine.audit();
    assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
}

/// What is in use when all epochs have passed.
pub(crate) fn in_use<F: PagingFormat>(machine: &Machine<F>) -> InUse {
    machine.memory().in_use()
}

/// The address `pages` pages behind `addr`.
pub(crate) fn page(addr: VirtAddr, pages: u64) -> VirtAddr {
    VirtAddr(addr.0 + pages * PAGE)
}

/// CPU 0 of the machine, and a space for the programs that it runs. Before this space exits the machine is
/// audited.
#[track_caller]
pub(crate) fn cpu_and_space<F: PagingFormat>(machine: &Machine<F>) -> (Vcpu<F>, HostSpace<'_, F>) {
    let cpu = machine.vcpu(0).expect("the CPU is free");
    (cpu, create_space(machine).audited(machine))
}

/// Maps private anonymous memory exactly at `addr`.
#[track_caller]
pub(crate) fn map_at<F: PagingFormat>(
    space: &HostSpace<'_, F>,
    addr: u64,
    len: u64,
    protection: Protection,
) -> VirtAddr {
    let request = MapRequest::anonymous(len, protection).at(VirtAddr(addr), MapFlags::FIXED);
    space.mmap(&request).expect("a fixed mapping can be made")
}

/// Writes `value` to the word at `addr`.
#[track_caller]
pub(crate) fn write<F: PagingFormat>(cpu: &Vcpu<F>, space: &HostSpace<'_, F>, addr: VirtAddr, value: u64) {
    cpu.program(space).write_u64(addr, value).expect("mapped for writing");
}

/// The word at `addr`.
#[track_caller]
pub(crate) fn read<F: PagingFormat>(cpu: &Vcpu<F>, space: &HostSpace<'_, F>, addr: VirtAddr) -> u64 {
    cpu.program(space).read_u64(addr).expect("mapped")
}

/// Writes to each of `pages`, counted from `addr`: `first` to the first one there, one more to each further
/// one.
#[track_caller]
pub(crate) fn fill<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: impl IntoIterator<Item = u64>,
    first: u64,
) {
    for at in pages {
        write(cpu, space, page(addr, at), first + at);
    }
}

/// Panics unless the pages hold what [`fill`] wrote.
#[track_caller]
pub(crate) fn assert_filled<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: impl IntoIterator<Item = u64>,
    first: u64,
) {
    for at in pages {
        assert_eq!(read(cpu, space, page(addr, at)), first + at, "page {at} of {addr:?}");
    }
}

/// How many of the 512 pages at `area` map a page of zeros.
pub(crate) fn zeros(space: &HostSpace<'_>, area: VirtAddr) -> u64 {
    let mut pages = 0;
    space.mappings().pagemap(VirtRange::new(area, VirtAddr(area.0 + MIB2)), |range, state| {
        pages += if state == PageState::Zero { range.len() / PAGE } else { 0 };
    });
    pages
}

/// Frames that are not free, with nothing on CPU lists.
pub(crate) fn used_frames<F: PagingFormat>(machine: &Machine<F>) -> u64 {
    let frames = machine.memory().frames();
    frames.limbo().reap_all(&frames.platform().pin());
    let totals = frames.reports().totals();
    totals.managed - totals.free
}

/// How often `event` was counted.
pub(crate) fn count<F: PagingFormat>(machine: &Machine<F>, event: VmEvent) -> u64 {
    machine.memory().frames().events().sum(event)
}

/// How many frames hold anonymous memory.
pub(crate) fn anonymous_frames<F: PagingFormat>(machine: &Machine<F>) -> u64 {
    let mut count = 0;
    machine
        .memory()
        .frames()
        .audit()
        .for_each_frame(|_, frame| count += u64::from(frame.kind() == Kind::Anonymous));
    count
}

/// Adds a RAM disk of `slots` slots as swap.
pub(crate) fn swap_on_ram<F: PagingFormat>(machine: &Machine<F>, slots: u64) -> DeviceId {
    let disk = RamDisk::new(machine.memory().frames(), slots).expect("there is memory enough");
    machine.memory().swapon(disk, SwapOnOptions::default()).expect("there is memory enough")
}

/// The mappings as `start-end flags` lines.
pub(crate) fn mappings<F: PagingFormat>(space: &HostSpace<'_, F>) -> Vec<(u64, u64, VmFlags)> {
    let mut all = Vec::new();
    space.mappings().for_each(|m| all.push((m.range.start().0, m.range.end().0, m.flags)));
    all
}

/// Whether `fact` becomes true within so many looks that a thread that waits for it is told from one that
/// does not.
pub(crate) fn within_reason(fact: impl Fn() -> bool) -> bool {
    (0..2_000_000).any(|_| {
        std::thread::yield_now();
        fact()
    })
}

/// Runs `action` on each of the first `cpus` CPUs at once.
pub(crate) fn on_cpus<F: PagingFormat>(
    machine: &Machine<F>,
    cpus: usize,
    action: impl Fn(usize, &Vcpu<F>) + Sync,
) {
    std::thread::scope(|scope| {
        for number in 0..cpus {
            let action = &action;
            scope.spawn(move || action(number, &machine.vcpu(number).expect("each CPU has one thread")));
        }
    });
}

/// A number from the environment, or `default`.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
