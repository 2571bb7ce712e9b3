//! What the tests of `quire-space` on the host machine share.

#![allow(dead_code, reason = "each test binary uses its own part")]

mod machine;

pub(crate) use machine::Setup;

use quire_arch::paging::X86_64Level4;
use quire_arch::{Order, PAGE_SIZE, PagingFormat, VirtAddr};
use quire_frame::Kind;
use quire_host::{AccessError, HostConfig, HostPlatform, Machine, Program, Vcpu};
use quire_mm::{
    DeviceId, FaultError, InUse, MapFlags, MapRequest, MemoryConfig, OrderSet, Protection, RamDisk, Space,
    SwapOnOptions, VmEvent,
};

pub(crate) const RW: Protection = Protection::READ.union(Protection::WRITE);
pub(crate) const READ: Protection = Protection::READ;
pub(crate) const NONE: Protection = Protection::empty();
pub(crate) const PAGE: u64 = PAGE_SIZE;
/// What one PTE table covers with 512-entry tables.
pub(crate) const MIB2: u64 = 2 << 20;
/// What one table of the second level covers.
pub(crate) const GIB: u64 = 1 << 30;

/// A host space on the usual machine.
pub(crate) type HostSpace<'m, F = X86_64Level4> = Space<'m, HostPlatform<F>>;
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

/// A machine of any format, without a reserve of free memory. It is audited at its end.
pub(crate) fn machine_of<F: PagingFormat>(host: &HostConfig) -> Machine<F> {
    machine_with(host, MemoryConfig::default())
}

/// The same with other techniques or large folios.
pub(crate) fn machine_with<F: PagingFormat>(host: &HostConfig, config: MemoryConfig) -> Machine<F> {
    let config = MemoryConfig { min_free_kib: Some(0), ..config };
    Setup::of(host.clone()).with(|memory| *memory = config).build()
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

/// Writes to each of `pages` pages: `first` to the one at `addr`, one more to each further one.
#[track_caller]
pub(crate) fn fill<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: u64,
    first: u64,
) {
    for at in 0..pages {
        write(cpu, space, page(addr, at), first + at);
    }
}

/// Panics unless the pages hold what [`fill`] wrote.
#[track_caller]
pub(crate) fn assert_filled<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: u64,
    first: u64,
) {
    for at in 0..pages {
        assert_eq!(read(cpu, space, page(addr, at)), first + at, "page {at}");
    }
}

/// How often `event` was counted.
pub(crate) fn count<F: PagingFormat>(machine: &Machine<F>, event: VmEvent) -> u64 {
    machine.memory().frames().events().sum(event)
}

/// How many frames hold anonymous memory.
pub(crate) fn anonymous_frames<F: PagingFormat>(machine: &Machine<F>) -> u64 {
    let mut count = 0;
    machine.memory().frames().for_each_frame(|_, frame| count += u64::from(frame.kind() == Kind::Anonymous));
    count
}

/// Adds a RAM disk of `slots` slots as swap.
pub(crate) fn swap_on_ram<F: PagingFormat>(machine: &Machine<F>, slots: u64) -> DeviceId {
    let disk = RamDisk::new(machine.memory().frames(), slots).expect("there is memory enough");
    machine.memory().swapon(disk, SwapOnOptions::default()).expect("there is memory enough")
}

/// The mappings as `start-end flags` lines.
pub(crate) fn mappings<F: PagingFormat>(space: &HostSpace<'_, F>) -> Vec<(u64, u64, quire_mm::VmFlags)> {
    let mut all = Vec::new();
    space.for_each_mapping(|m| all.push((m.range.start().0, m.range.end().0, m.flags)));
    all
}

/// A small random number generator (SplitMix64): the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A number from the environment, or `default`.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
