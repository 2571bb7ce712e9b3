//! What the tests of `quire-space` on the host machine share. A test file takes all of it, and with it the
//! types of the machine and of its memory manager: `use crate::common::*`.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

mod figures;
mod files;
mod machine;
mod memcgs;
mod memory_file;
mod program;
mod random;
mod space;
mod swapping;

pub(crate) use figures::*;
pub(crate) use files::TestFile;
pub(crate) use machine::{Machine, Setup, machine, swapping};
pub(crate) use memcgs::*;
pub(crate) use memory_file::*;
pub(crate) use program::*;
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
pub(crate) use space::{HostSpace, cpu_and_space, create_space};
pub(crate) use swapping::*;

pub(crate) use quire_arch::paging::X86_64Level4;
use quire_frame::{FailPlan, Kind};

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

/// Panics with everything that an audit finds.
#[track_caller]
pub(crate) fn assert_audit<F: PagingFormat>(machine: &Machine<F>) {
    let findings = machine.audit();
    assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
}

/// The address `pages` pages behind `addr`.
pub(crate) fn page(addr: VirtAddr, pages: u64) -> VirtAddr {
    VirtAddr(addr.0 + pages * PAGE)
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

/// Does `action` while the allocations of `plan` fail.
pub(crate) fn failing<F: PagingFormat, T>(
    machine: &Machine<F>,
    plan: FailPlan,
    action: impl FnOnce() -> T,
) -> T {
    let fail_points = machine.memory().frames().fail_points();
    fail_points.set(plan);
    let result = action();
    fail_points.set(FailPlan::OFF);
    result
}

/// A number from the environment, or `default`.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
