//! What a limit must hold beside anonymous memory: shared memory, and what the kernel keeps.

use super::life::{BASE, Invented, PAGE, SECOND};
use quire_trace::event::{CloneFacts, Event, EventKind, TaskId};
use quire_trace::replay::{KernelCosts, LifeSample, ReplayOptions, SwapKind, SwapSpec};

const SHARED: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
const PRIVATE: u64 = BASE + (1 << 30);

/// 400 pages of shared memory, and 100 of private memory.
fn server() -> Invented {
    let mut program = Invented::new("server");
    let args = [BASE, 1024 * PAGE, 3, SHARED as u64, u64::MAX, 0];
    program.call(0, libc::SYS_mmap, args, BASE);
    program.map(0, PRIVATE, 200 * PAGE, 0);
    (0..400).for_each(|page| program.write(SECOND, BASE + page * PAGE));
    (0..100).for_each(|page| program.write(2 * SECOND, PRIVATE + page * PAGE));
    program
}

/// Within so many pages, with swap enough for all.
fn within(pages: u64) -> ReplayOptions {
    let swap = Some(SwapSpec { kind: SwapKind::Ram, bytes: 64 << 20 });
    let kernel = KernelCosts { thread: 0, process: 0, mapping: 0 };
    ReplayOptions { limit: Some(pages * PAGE), swap, kernel, ..ReplayOptions::default() }
}

fn charge_peak(program: &mut Invented, kernel: KernelCosts) -> LifeSample {
    let options = ReplayOptions { life: true, kernel, ..ReplayOptions::default() };
    program.report(options).life.unwrap().at_charge_peak
}

#[test]
fn a_limit_must_hold_shared_memory() {
    let mut program = server();
    let misfit = program.report(within(300)).does_not_fit.expect("only private memory pages out");
    assert!(misfit.held.shared > 290 * PAGE && misfit.held.shared <= 400 * PAGE, "{misfit:?}");
    // Private memory has what shared memory leaves.
    let short = program.report(within(480));
    assert!(short.does_not_fit.is_none() && short.pressure.pages_out > 20, "{short:?}");
    let long = program.report(within(600));
    assert!(long.does_not_fit.is_none() && long.pressure.pages_out == 0, "{long:?}");
}

#[test]
fn what_must_fit_is_counted_once() {
    let mut program = server();
    // A child that touches the same, and more.
    let clone = CloneFacts {
        child: TaskId(1),
        child_tid: 2,
        child_pid: 2,
        flags: 0,
        shares_memory: false,
        same_process: false,
    };
    program.push(3 * SECOND, EventKind::Clone(clone));
    for page in 200..450 {
        program.write(4 * SECOND, BASE + page * PAGE);
        let last = program.last();
        *last = Event { task: TaskId(1), ..last.clone() };
    }
    let none = KernelCosts { thread: 0, process: 0, mapping: 0 };
    let peak = charge_peak(&mut program, none);
    assert_eq!((peak.shared, peak.anonymous, peak.kernel), (450 * PAGE, 100 * PAGE, 0));
    assert_eq!(peak.charge(), 550 * PAGE + peak.page_tables);
    // Two threads, two address spaces, each with two mappings.
    let kernel = KernelCosts { thread: 1000, process: 100, mapping: 1 };
    assert_eq!(charge_peak(&mut program, kernel).kernel, 2204);
}

/// What the kernel keeps for threads is part of the limit.
#[test]
fn a_limit_must_hold_what_the_kernel_keeps() {
    let mut program = server();
    let with =
        |thread| ReplayOptions { kernel: KernelCosts { thread, process: 0, mapping: 0 }, ..within(600) };
    assert_eq!(program.report(with(50 * PAGE)).pressure.pages_out, 0);
    assert!(program.report(with(150 * PAGE)).pressure.pages_out > 20);
    assert!(program.report(with(250 * PAGE)).does_not_fit.is_some());
    // Where that was measured, it is as measured.
    let measured = ReplayOptions { beside: Some(20 * PAGE), ..with(250 * PAGE) };
    assert_eq!(program.report(measured).pressure.pages_out, 0);
}
