//! What a limit must hold beside anonymous memory: shared memory, and what the kernel keeps.

use super::life::{BASE, Invented, PAGE, SECOND};
use quire_replay::{KernelCosts, LifeSample, ReplayOptions, SwapKind, SwapSpec};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Event, EventKind, ExecImage, ExitStatus, Fault, FileFacts,
    FileKind, HeldInMemory, LinuxFigures, Mapping, Mode, Outcome, Privileges, TaskId,
};
use std::sync::Arc;

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

/// It goes to swap as private memory does. Without swap it must fit.
#[test]
fn a_limit_must_hold_shared_memory_or_swap() {
    let mut program = server();
    let without = |pages| ReplayOptions { swap: None, ..within(pages) };
    let misfit = program.report(without(300)).does_not_fit.expect("there is no swap");
    assert!(misfit.held.shared > 290 * PAGE && misfit.held.shared <= 400 * PAGE, "{misfit:?}");
    assert!(program.report(without(480)).does_not_fit.is_some());
    let short = program.report(within(300));
    assert!(short.does_not_fit.is_none() && short.pressure.pages_out >= 200, "{short:?}");
    let little = program.report(within(480));
    assert!(little.does_not_fit.is_none() && (20..200).contains(&little.pressure.pages_out), "{little:?}");
    let long = program.report(within(600));
    assert!(long.does_not_fit.is_none() && long.pressure.pages_out == 0, "{long:?}");
}

/// A server that uses its shared memory again and again, with a disk for what does not fit.
#[test]
fn shared_memory_comes_back_from_a_disk() {
    let mut program = server();
    for round in 3..6 {
        (0..400).for_each(|page| program.write(round * SECOND, BASE + page * PAGE));
    }
    let disk = Some(SwapSpec { kind: SwapKind::Disk, bytes: 64 << 20 });
    let report = program.report(ReplayOptions { swap: disk, ..within(300) });
    assert!(report.does_not_fit.is_none(), "{report:?}");
    assert!(report.pressure.pages_in > 600 && report.pressure.major_faults > 100, "{:?}", report.pressure);
}

fn fork() -> CloneFacts {
    CloneFacts {
        child: TaskId(1),
        child_tid: 2,
        child_pid: 2,
        flags: 0,
        shares_memory: false,
        same_process: false,
    }
}

#[test]
fn what_must_fit_is_counted_once() {
    let mut program = server();
    // A child that touches the same, and more.
    program.push(3 * SECOND, EventKind::Clone(fork()));
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

/// Costs are what a command line says.
#[test]
fn what_is_charged_may_be_any_number() {
    let kernel = KernelCosts { thread: u64::MAX, process: 1, mapping: 1 };
    assert_eq!(charge_peak(&mut server(), kernel).charge(), u64::MAX);
}

/// What the kernel keeps for threads is part of the limit.
#[test]
fn a_limit_must_hold_what_the_kernel_keeps() {
    let mut program = server();
    let with =
        |thread| ReplayOptions { kernel: KernelCosts { thread, process: 0, mapping: 0 }, ..within(600) };
    assert_eq!(program.report(with(50 * PAGE)).pressure.pages_out, 0);
    assert!(program.report(with(150 * PAGE)).pressure.pages_out > 20);
    assert!(program.report(with(250 * PAGE)).pressure.pages_out > 150);
    assert!(program.report(with(650 * PAGE)).does_not_fit.is_some());
    // Where that was measured, it is as measured.
    let measured = ReplayOptions { beside: Some(20 * PAGE), ..with(650 * PAGE) };
    assert_eq!(program.report(measured).pressure.pages_out, 0);
}

/// A program that locks what it maps from now on, and maps 200 pages. What was locked never faults, so no
/// touch of the recording misses it.
fn locks_what_it_maps(then: impl Fn(&mut Invented)) -> Invented {
    let mut program = Invented::new("locks");
    let rights = Privileges { ipc_lock: true, sys_rawio: false };
    let Event { kind: EventKind::Exec(image), .. } = program.last() else { panic!("it begins with an exec") };
    (image.privileges, image.start_brk, image.brk) = (rights, BREAK, BREAK);
    let flags = (libc::MCL_CURRENT | libc::MCL_FUTURE) as u64;
    program.call(0, libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0], 0);
    then(&mut program);
    program
}

const BREAK: u64 = 0x1000_0000;

#[test]
fn a_limit_must_hold_private_memory_that_a_call_brings_in() {
    let ways: [fn(&mut Invented); 5] = [
        |program| program.map(SECOND, PRIVATE, 200 * PAGE, 0),
        |program| {
            program.call(SECOND, libc::SYS_brk, [BREAK + 200 * PAGE, 0, 0, 0, 0, 0], BREAK + 200 * PAGE);
        },
        |program| {
            program.map(SECOND, PRIVATE, 10 * PAGE, 0);
            let args = [PRIVATE, 10 * PAGE, 200 * PAGE, 1, 0, 0];
            program.call(SECOND, libc::SYS_mremap, args, PRIVATE);
        },
        |program| {
            program.call(0, libc::SYS_munlockall, [0; 6], 0);
            program.map(SECOND, PRIVATE, 200 * PAGE, libc::MAP_POPULATE);
        },
        |program| {
            program.call(0, libc::SYS_munlockall, [0; 6], 0);
            program.map(SECOND, PRIVATE, 200 * PAGE, 0);
            program.call(SECOND, libc::SYS_mlockall, [libc::MCL_CURRENT as u64, 0, 0, 0, 0, 0], 0);
        },
    ];
    for (way, then) in ways.into_iter().enumerate() {
        let mut program = locks_what_it_maps(then);
        // Swap is of no use for what is locked, and full for what is not.
        let swap = Some(SwapSpec { kind: SwapKind::Ram, bytes: 64 * PAGE });
        let within = |pages| ReplayOptions { swap: swap.clone(), ..within(pages) };
        let short = program.report(within(100));
        assert!(short.does_not_fit.is_some(), "{way}: {:?}", short.processes);
        let enough = program.report(within(260));
        assert!(enough.does_not_fit.is_none(), "{way}: {:?}", enough.does_not_fit);
        assert_eq!(enough.processes[0].mismatches, 0, "{way}");
    }
}

/// Without perf events the last page faults are learnt from the page tables after Linux's figures were taken.
#[test]
fn what_is_learnt_after_the_last_figures_is_in_a_space_at_its_end() {
    let mut program = Invented::new("late");
    program.map(SECOND, PRIVATE, 100 * PAGE, 0);
    let figures = LinuxFigures { rss_anon: 100 * PAGE, ..LinuxFigures::default() };
    program.push(2 * SECOND, EventKind::Figures(Box::new(figures)));
    (0..100).for_each(|page| program.write(2 * SECOND, PRIVATE + page * PAGE));
    program.push(3 * SECOND, EventKind::Exit(ExitStatus::Code(0)));
    let report = program.report(ReplayOptions::default());
    let ends: Vec<_> = report.ends.values().map(|end| (end.linux_anonymous, end.anonymous)).collect();
    assert_eq!(ends, [(100 * PAGE, 100 * PAGE)]);
}

/// A program that maps a file in memory of so many pages, which others may have written to, and reads one
/// page in 16. At its end Linux has this many bytes of it mapped.
fn reads_a_file_in_memory(pages: u64, flags: i32, rss_shmem: u64) -> Invented {
    let mut program = Invented::new("memfd");
    let (kind, size) = (FileKind::Memory, pages * PAGE);
    let facts = FileFacts { kind, size, readable: true, inode: 7, ..FileFacts::default() };
    let args = [BASE, size, 1, (flags | libc::MAP_FIXED) as u64, 3, 0];
    let detail = CallDetail::File(Arc::new(facts));
    let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
    program.push(SECOND, EventKind::Call(map));
    for addr in (BASE..BASE + size).step_by(16 * PAGE as usize) {
        let (access, mode, outcome) = (Access::Read, Mode::User, Outcome::Minor);
        let fault = Fault { addr, access, mode, outcome, inferred: false };
        program.push(2 * SECOND, EventKind::Fault(fault));
    }
    let figures = LinuxFigures { rss_shmem, ..LinuxFigures::default() };
    program.push(3 * SECOND, EventKind::Figures(Box::new(figures)));
    program
}

/// A file that was filled by write(2) has a page fault for each 16 pages that Linux maps. It is shared
/// memory, however it is mapped.
#[test]
fn a_limit_must_hold_files_in_memory_that_are_read() {
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let mut program = reads_a_file_in_memory(400, flags, 400 * PAGE);
        program.map(4 * SECOND, PRIVATE, 200 * PAGE, 0);
        (0..100).for_each(|page| program.write(5 * SECOND, PRIVATE + page * PAGE));
        let none = KernelCosts { thread: 0, process: 0, mapping: 0 };
        assert_eq!(charge_peak(&mut program, none).shared, 400 * PAGE, "{flags}");
        assert_eq!(program.report(ReplayOptions::default()).processes[0].unrecorded_shared, 0, "{flags}");
        let without = ReplayOptions { swap: None, ..within(390) };
        assert!(program.report(without).does_not_fit.is_some(), "{flags}");
        let out = program.report(within(390)).pressure.pages_out;
        assert!(out > 100, "{flags}: {out}");
        let short = program.report(within(480));
        assert!(short.does_not_fit.is_none() && short.pressure.pages_out > 20, "{flags}: {short:?}");
    }
}

/// As of a file that was one page long when it was mapped and locked, and grew then.
#[test]
fn shared_memory_that_no_event_brought_in_is_told_of_the_process_that_had_it() {
    for (linux, missing) in [(400, 0), (1000, 600), (100, 0), (0, 0)] {
        let mut program = reads_a_file_in_memory(400, libc::MAP_SHARED, linux * PAGE);
        let report = program.report(ReplayOptions::default());
        assert_eq!(report.processes[0].unrecorded_shared, missing * PAGE, "{linux}");
    }
    // It is that of the moment: what is unmapped before is not looked at.
    let mut program = Invented::new("locked");
    let facts = FileFacts { kind: FileKind::Memory, size: PAGE, readable: true, ..FileFacts::default() };
    let args = [BASE, 400 * PAGE, 1, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
    let detail = CallDetail::File(Arc::new(facts));
    let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
    program.push(SECOND, EventKind::Call(map));
    program.call(SECOND, libc::SYS_mlockall, [libc::MCL_CURRENT as u64, 0, 0, 0, 0, 0], 0);
    let figures = LinuxFigures { rss_shmem: 400 * PAGE, ..LinuxFigures::default() };
    program.push(2 * SECOND, EventKind::Figures(Box::new(figures)));
    assert_eq!(program.report(ReplayOptions::default()).processes[0].unrecorded_shared, 399 * PAGE);
}

/// Nor is what is learnt from the page tables after Linux's figures were taken.
#[test]
fn shared_memory_that_is_learnt_after_the_last_figures_is_not_missing() {
    let mut program = Invented::new("late");
    let args = [BASE, 400 * PAGE, 3, SHARED as u64, u64::MAX, 0];
    program.call(SECOND, libc::SYS_mmap, args, BASE);
    let figures = LinuxFigures { rss_shmem: 500 * PAGE, ..LinuxFigures::default() };
    program.push(2 * SECOND, EventKind::Figures(Box::new(figures)));
    (0..400).for_each(|page| program.write(2 * SECOND, BASE + page * PAGE));
    program.push(3 * SECOND, EventKind::Exit(ExitStatus::Code(0)));
    let report = program.report(ReplayOptions::default());
    assert_eq!(report.processes[0].unrecorded_shared, 100 * PAGE);
}

/// Linux maps a large folio of a file in memory for one page that is read: the file had it when it was
/// mapped.
#[test]
fn what_a_large_folio_of_a_file_in_memory_maps_is_not_missing() {
    for (held, missing) in [(None, 496), (Some(512), 0), (Some(100), 412)] {
        let mut program = Invented::new("memfd");
        let held = held.map(|pages| HeldInMemory { bytes: pages * PAGE, changed: false });
        let kind = FileKind::Memory;
        let facts = FileFacts { kind, size: 512 * PAGE, readable: true, held, ..FileFacts::default() };
        let args = [BASE, 512 * PAGE, 1, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
        let detail = CallDetail::File(Arc::new(facts));
        let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
        program.push(SECOND, EventKind::Call(map));
        let (access, mode, outcome) = (Access::Read, Mode::User, Outcome::Minor);
        let fault = Fault { addr: BASE, access, mode, outcome, inferred: false };
        program.push(2 * SECOND, EventKind::Fault(fault));
        let figures = LinuxFigures { rss_shmem: 512 * PAGE, ..LinuxFigures::default() };
        program.push(3 * SECOND, EventKind::Figures(Box::new(figures)));
        let report = program.report(ReplayOptions::default());
        assert_eq!(report.processes[0].unrecorded_shared, missing * PAGE, "{held:?}");
    }
}

/// Linux counts the pages of a program that is itself a file in memory as shared memory. On a disk, and on a
/// device of which another file is known to be on a disk, they are none.
#[test]
fn the_file_of_a_program_that_is_in_memory_is_not_missing() {
    let (memory, disk) = (libc::makedev(0, 26), libc::makedev(254, 0));
    let missing = |device, library: Option<(u64, FileKind)>| {
        let mut program = Invented::new("own");
        let file = Mapping { start: BASE, end: BASE + 400 * PAGE, read: true, ..Mapping::default() };
        let file = Mapping { execute: true, device, inode: 5, name: b"/tmp/own"[..].into(), ..file };
        let image = ExecImage { max_map_count: 65530, overcommit_memory: 1, ..ExecImage::default() };
        program.last().kind = EventKind::Exec(Box::new(ExecImage { mappings: vec![file], ..image }));
        if let Some((device, kind)) = library {
            let facts =
                FileFacts { kind, device, inode: 7, size: PAGE, readable: true, ..FileFacts::default() };
            let args = [PRIVATE, PAGE, 1, (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64, 3, 0];
            let detail = CallDetail::File(Arc::new(facts));
            let map = Call { number: libc::SYS_mmap as u32, args, result: PRIVATE as i64, detail };
            program.push(SECOND, EventKind::Call(map));
        }
        for addr in (BASE..BASE + 400 * PAGE).step_by(16 * PAGE as usize) {
            let (access, mode, outcome) = (Access::Read, Mode::User, Outcome::Minor);
            let fault = Fault { addr, access, mode, outcome, inferred: false };
            program.push(2 * SECOND, EventKind::Fault(fault));
        }
        let figures = LinuxFigures { rss_shmem: 400 * PAGE, ..LinuxFigures::default() };
        program.push(3 * SECOND, EventKind::Figures(Box::new(figures)));
        // A child that runs no other program has the same.
        program.push(3 * SECOND, EventKind::Clone(fork()));
        let figures = LinuxFigures { rss_shmem: 500 * PAGE, ..LinuxFigures::default() };
        program.push(4 * SECOND, EventKind::Figures(Box::new(figures)));
        program.last().task = TaskId(1);
        program.push(4 * SECOND, EventKind::Exit(ExitStatus::Code(0)));
        program.last().task = TaskId(1);
        program.push(5 * SECOND, EventKind::Exit(ExitStatus::Code(0)));
        let processes = program.report(ReplayOptions::default()).processes;
        [0, 1].map(|place: usize| processes[place].unrecorded_shared / PAGE)
    };
    assert_eq!(missing(memory, None), [0, 100]);
    assert_eq!(missing(memory, Some((disk, FileKind::Regular))), [0, 100]);
    assert_eq!(missing(memory, Some((memory, FileKind::Memory))), [0, 100]);
    assert_eq!(missing(memory, Some((memory, FileKind::Regular))), [400, 500], "btrfs, for one");
    assert_eq!(missing(disk, None), [400, 500]);
}

/// Shared memory that is locked as it is mapped counts before it is touched.
#[test]
fn a_limit_must_hold_shared_memory_that_is_locked_as_it_is_mapped() {
    let mut program = locks_what_it_maps(|program| {
        let args = [BASE, 300 * PAGE, 3, SHARED as u64, u64::MAX, 0];
        program.call(SECOND, libc::SYS_mmap, args, BASE);
        program.map(SECOND, PRIVATE, 10 * PAGE, 0);
    });
    let none = KernelCosts { thread: 0, process: 0, mapping: 0 };
    let peak = charge_peak(&mut program, none);
    assert_eq!((peak.shared, peak.anonymous), (300 * PAGE, 10 * PAGE));
    assert!(program.report(within(250)).does_not_fit.is_some());
    assert!(program.report(within(400)).does_not_fit.is_none());
}

/// A program that may lock a file of 1000 pages at this address and does so with its first 300, in parts.
fn locks_a_file(program: &mut Invented, addr: u64) {
    let bytes = 1000 * PAGE;
    let file =
        FileFacts { kind: FileKind::Regular, inode: 7, size: bytes, readable: true, ..FileFacts::default() };
    let args = [addr, bytes, 1, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
    let detail = CallDetail::File(Arc::new(file));
    let map = Call { number: libc::SYS_mmap as u32, args, result: addr as i64, detail };
    program.push(SECOND, EventKind::Call(map));
    for page in (0..300).step_by(30) {
        program.call(SECOND, libc::SYS_mlock, [addr + page * PAGE, 30 * PAGE, 0, 0, 0, 0], 0);
    }
}

fn may_lock() -> Invented {
    let mut program = Invented::new("file");
    let Event { kind: EventKind::Exec(image), .. } = program.last() else { panic!("it begins with an exec") };
    image.privileges = Privileges { ipc_lock: true, sys_rawio: false };
    program
}

/// 300 pages of a file are locked, in two mappings, and 100 of private memory used. Linux drops pages of
/// files, but not these.
#[test]
fn a_limit_must_hold_locked_pages_of_files() {
    let mut program = may_lock();
    locks_a_file(&mut program, BASE);
    program.map(SECOND, PRIVATE, 200 * PAGE, 0);
    (0..100).for_each(|page| program.write(2 * SECOND, PRIVATE + page * PAGE));
    let none = KernelCosts { thread: 0, process: 0, mapping: 0 };
    let peak = charge_peak(&mut program, none);
    assert_eq!((peak.locked_files, peak.shared, peak.anonymous), (300 * PAGE, 0, 100 * PAGE));
    assert!(program.report(within(280)).does_not_fit.is_some());
    let short = program.report(within(370));
    assert!(short.does_not_fit.is_none() && short.pressure.pages_out > 20, "{short:?}");
    let long = program.report(within(450));
    assert!(long.does_not_fit.is_none() && long.pressure.pages_out == 0, "{long:?}");
}

#[test]
fn locked_pages_of_files_count_once_and_until_they_are_unmapped() {
    let none = KernelCosts { thread: 0, process: 0, mapping: 0 };
    let mut program = may_lock();
    locks_a_file(&mut program, BASE);
    locks_a_file(&mut program, BASE + (1 << 29));
    assert_eq!(charge_peak(&mut program, none).locked_files, 300 * PAGE);
    let mut program = may_lock();
    locks_a_file(&mut program, BASE);
    program.call(SECOND, libc::SYS_munmap, [BASE, 1000 * PAGE, 0, 0, 0, 0], 0);
    program.map(SECOND, PRIVATE, 400 * PAGE, libc::MAP_POPULATE);
    let peak = charge_peak(&mut program, none);
    assert_eq!((peak.locked_files, peak.anonymous), (0, 400 * PAGE));
}

/// A file of 1000 pages is brought in by one call. Linux drops pages of files for what is in use.
#[test]
fn files_that_a_call_brings_in_take_nothing_of_a_limit() {
    let facts = FileFacts { kind: FileKind::Regular, inode: 7, size: 1000 * PAGE, ..FileFacts::default() };
    for populate in [false, true] {
        let mut program = Invented::new("files");
        program.map(0, PRIVATE, 200 * PAGE, 0);
        (0..100).for_each(|page| program.write(SECOND, PRIVATE + page * PAGE));
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | if populate { libc::MAP_POPULATE } else { 0 };
        let detail = CallDetail::File(Arc::new(FileFacts { readable: true, ..facts.clone() }));
        let args = [BASE, 1000 * PAGE, 1, flags as u64, 3, 0];
        let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
        program.push(2 * SECOND, EventKind::Call(map));
        if !populate {
            let args = [BASE, 1000 * PAGE, libc::MADV_POPULATE_READ as u64, 0, 0, 0];
            program.call(2 * SECOND, libc::SYS_madvise, args, 0);
        }
        (0..100).for_each(|page| program.write(3 * SECOND, PRIVATE + (100 + page) * PAGE));
        let fits = program.report(within(300));
        assert!(fits.does_not_fit.is_none(), "{populate}: {:?}", fits.does_not_fit);
        assert_eq!((fits.pressure.pages_out, fits.processes[0].mismatches), (0, 0), "{populate}");
        let short = program.report(within(150));
        assert!(short.does_not_fit.is_none() && short.pressure.pages_out > 20, "{populate}: {short:?}");
    }
}
