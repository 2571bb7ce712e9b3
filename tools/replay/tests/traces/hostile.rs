//! Recordings that claim more than there is.

use crate::header;
use crate::order::{self, Made, replay_in};
use quire_mm::thp::HugePolicy;
use quire_replay::{Replay, ReplayError, ReplayOptions, ReplayReport};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, ContentSample, Event, EventKind, ExecImage, ExitStatus, Fault,
    Mapping, Mode, Outcome, PageContents, PageRun, PageSample, Privileges, Reuse, ReuseAccess, ReuseRun,
    ReuseSource, TaskId, Window,
};
use quire_trace::format::TraceWriter;
use std::fs::File;
use tempfile::{Builder, TempPath};

const MIB: u64 = 1 << 20;
const START: u64 = 0x10_0000;
const END: u64 = 0x7f00_0000_0000;

/// The image of a program that has nearly all addresses mapped, with these pages resident.
fn image(resident: Vec<PageRun>) -> EventKind {
    let mapping = Mapping { start: START, end: END, read: true, write: true, resident, ..Mapping::default() };
    EventKind::Exec(Box::new(ExecImage {
        pid: 1,
        mappings: vec![mapping],
        max_map_count: u64::MAX,
        overcommit_memory: 1,
        privileges: Privileges { ipc_lock: true, sys_rawio: true },
        ..ExecImage::default()
    }))
}

fn written(name: &str, events: impl IntoIterator<Item = EventKind>) -> TempPath {
    written_by(name, events.into_iter().map(|kind| (0, kind)))
}

/// Events of these threads.
fn written_by(name: &str, events: impl IntoIterator<Item = (u32, EventKind)>) -> TempPath {
    let scratch = Builder::new().prefix(name).tempfile().unwrap().into_temp_path();
    let mut writer = TraceWriter::new(File::create(&scratch).unwrap(), &header(), 3).unwrap();
    for (time_ns, (task, kind)) in (0..).zip(events) {
        writer.push(&Event { time_ns, task: TaskId(task), cpu: 0, kind }).unwrap();
    }
    writer.finish(1, 0).unwrap();
    scratch
}

fn call(number: i64, args: [u64; 6], result: u64) -> EventKind {
    EventKind::Call(Call { number: number as u32, args, result: result as i64, detail: CallDetail::None })
}

fn replay(file: &TempPath) -> ReplayReport {
    Replay::open(file, ReplayOptions::default()).unwrap().run(&mut |_, _| {}).unwrap()
}

/// Runs of resident pages are bounded by their mapping, and by what a new program can have.
#[test]
fn a_claim_of_resident_pages_brings_in_few() {
    let run = PageRun { start: START, pages: u64::MAX, file: true };
    let file = written("resident", [image(vec![run; 1000]), EventKind::Exit(ExitStatus::Code(0))]);
    let report = replay(&file);
    assert!(report.does_not_fit.is_none() && report.ram <= 132 * MIB, "{} MiB", report.ram / MIB);
    let run = PageRun { start: END - 0x5000, pages: 1 << 34, file: false };
    let report = replay(&written("resident", [image(vec![run]), EventKind::Exit(ExitStatus::Code(0))]));
    assert!(report.is_good() && report.ram <= 68 * MIB, "{report:?}");
    assert_eq!(report.processes[0].quire.peak_resident, 5 * 4096);
}

/// One call names terabytes: it is not made.
#[test]
fn a_call_that_names_all_memory_ends_the_replay() {
    for advice in [libc::MADV_POPULATE_WRITE, libc::MADV_POPULATE_READ, libc::MADV_COLLAPSE] {
        let advised = [0x20_0000, 1 << 44, advice as u64, 0, 0, 0];
        let report = replay(&written("advice", [image(Vec::new()), call(libc::SYS_madvise, advised, 0)]));
        let finding = report.does_not_fit.unwrap();
        assert!(finding.out_of_proportion && finding.event == 1, "{finding}");
        assert!(report.ram <= 68 * MIB && report.allocator.allocations < 1000, "{finding}");
    }
}

fn clone(child: u32) -> EventKind {
    let (child, child_tid, child_pid) = (TaskId(child), child + 1, child + 1);
    let (flags, shares_memory, same_process) = (0, false, false);
    EventKind::Clone(CloneFacts { child, child_tid, child_pid, flags, shares_memory, same_process })
}

fn small_mappings(count: u64) -> Vec<Mapping> {
    let mapping = |start| Mapping { start, end: start + 4096, read: true, ..Mapping::default() };
    (0..count).map(|number| mapping(START + number * 8192)).collect()
}

/// A few kB whose events name much, take much, or look at much that others made: the replay ends before it
/// took long, and says why in one line.
#[test]
fn events_whose_cost_adds_up_end_the_replay() {
    let contents = {
        let page = |page| PageSample { page, contents: PageContents::Compressed(4000) };
        let pages = (0..60_000).map(page).collect();
        let sample = ContentSample { start: START, bytes: u64::MAX, pages, ..ContentSample::default() };
        (0..150).map(move |_| EventKind::Contents(Box::new(sample.clone())))
    };
    let uses = (0..1000).map(|_| {
        let run = ReuseRun { start: 1 << 47, pages: Reuse::MOST_PAGES, access: ReuseAccess::Write };
        EventKind::Reuse(Reuse { source: ReuseSource::Exact, runs: vec![run] })
    });
    let looks = (0..1000).map(|_| call(libc::SYS_mincore, [START, 1 << 46, START, 0, 0, 0], 0));
    let forks = {
        let mappings = small_mappings(30_000);
        let image = ExecImage { mappings, max_map_count: u64::MAX, ..ExecImage::default() };
        std::iter::once(EventKind::Exec(Box::new(image))).chain((1..1000).map(clone))
    };
    // The first two end soon enough to be run.
    let all = [
        ("contents", written("contents", std::iter::once(image(Vec::new())).chain(contents)), 200),
        ("looks", written("looks", std::iter::once(image(Vec::new())).chain(looks)), 2),
        ("uses", written("uses", std::iter::once(image(Vec::new())).chain(uses)), 66),
        ("forks", written("forks", forks), 150),
    ];
    for (number, (name, file, most)) in all.into_iter().enumerate() {
        let size = std::fs::metadata(&file).unwrap().len();
        assert!(size < 256 << 10, "{name} has {size} bytes");
        let replay = Replay::open(&file, ReplayOptions::default()).unwrap();
        let end = replay.needs().too_much_at();
        assert!(end.is_some_and(|event| event < most), "{name}: {end:?}");
        if number >= 2 {
            continue;
        }
        let report = replay.run(&mut |_, _| {}).unwrap();
        let finding = report.does_not_fit.unwrap();
        assert!(finding.out_of_proportion && Some(finding.event) == end, "{name}: {finding}");
        assert_eq!(report.events, finding.event, "{name}");
        assert!(!finding.to_string().contains('\n'), "{name}: {finding}");
    }
}

/// A child has the name of its parent's program, which can be long, without a copy. A thread may have any
/// number.
#[test]
fn names_and_numbers_cost_nothing_at_a_fork() {
    let name = vec![b'x'; 1 << 20].into_boxed_slice();
    let mut first = image(Vec::new());
    if let EventKind::Exec(image) = &mut first {
        image.program = name;
    }
    let children = (1..2000).map(|child| clone(child * 2000 % ((1 << 22) - 1)));
    let report = replay(&written("children", std::iter::once(first).chain(children)));
    assert!(report.is_good() && report.processes.len() == 2000, "{} processes", report.processes.len());
    let [first, .., last] = &report.processes[..] else { panic!("no processes") };
    assert!(first.program.len() == 1 << 20 && std::sync::Arc::ptr_eq(&first.program, &last.program));
}

/// Pages that are touched count, with their tables, and a machine has at most half of the host's memory.
#[test]
fn touches_far_apart_fit_or_end_the_replay() {
    let fault = |addr| Fault {
        addr,
        access: Access::Write,
        mode: Mode::User,
        outcome: Outcome::Minor,
        inferred: false,
    };
    let touches = (0..3_000_000_u64).map(|n| EventKind::Fault(fault(0x20_0000 + (n << 21))));
    let file = written("touches", std::iter::once(image(Vec::new())).chain(touches));
    let replay = Replay::open(&file, ReplayOptions::default()).unwrap();
    let needed = replay.needs().ram(HugePolicy::default());
    assert!(needed > 6_000_000 * 4096, "{needed}");
    let available = quire_host::host_memory_available().unwrap();
    let options = ReplayOptions { stop_at: Some(1), ..ReplayOptions::default() };
    let report = replay.with(options).run(&mut |_, _| {}).unwrap();
    assert!(report.ram <= available / 16 * 9, "{} of {available}", report.ram);
}

/// Each of these calls is tried in many orders among many mappings, until that has cost enough.
#[test]
fn trials_of_orders_cost_what_they_look_at() {
    const PAGES: u64 = 2000;
    let mut image = order::image();
    let page = |number: u64| {
        let start = order::at(2 * number) as u64;
        Mapping { start, end: start + 4096, read: true, write: true, ..Mapping::default() }
    };
    image.mappings = (0..PAGES).map(page).collect();
    image.max_map_count = 2 * PAGES;
    let window = Some((1, 1000));
    let drop =
        || Made(1, window, libc::SYS_madvise, (0, 1), libc::MADV_DONTNEED as u64, -i64::from(libc::EIO));
    let protect = || Made(0, window, libc::SYS_mprotect, (0, 2), 3, -i64::from(libc::ENOMEM));
    let lock = || Made(1, window, libc::SYS_mlock, (0, 2 * PAGES), 0, -i64::from(libc::EIO));
    let calls = (0..60).map(|_| lock()).chain((0..60).map(|_| protect())).chain([drop()]);
    let process = replay_in(image, &calls.collect::<Vec<_>>());
    assert_eq!((process.mismatches, process.reordered), (61, 0), "{process:#?}");
    assert!((10..61).contains(&process.untried), "{process:#?}");
}

/// A reservation of 256 GiB that nothing may access is locked again and again: nothing comes in.
#[test]
fn locks_of_what_may_not_be_accessed_bring_in_nothing() {
    const SHARED: u64 = 0x10_0000_0000;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let map = call(libc::SYS_mmap, [SHARED, 256 << 30, 0, flags as u64, u64::MAX, 0], SHARED);
    let lock = || call(libc::SYS_mlockall, [libc::MCL_CURRENT as u64, 0, 0, 0, 0, 0], 0);
    let image = EventKind::Exec(Box::new(order::image()));
    let file = written("locks", [image, map].into_iter().chain((0..20).map(|_| lock())));
    let options = ReplayOptions { life: true, ..ReplayOptions::default() };
    let report = Replay::open(&file, options).unwrap().run(&mut |_, _| {}).unwrap();
    assert!(report.is_good() && report.ram <= 68 * MIB, "{report:?}");
    assert_eq!(report.life.unwrap().at_charge_peak.shared, 0);
}

/// Among many changes the orders of a touch are listed, and none is allowed: the windows contradict each
/// other. That costs, too.
#[test]
fn orders_cost_what_it_takes_to_list_them() {
    let protect = |task, window| Made(task, Some(window), libc::SYS_mprotect, (0, 1), 3, 0);
    let changes = (0..63).map(|number| protect(if number < 60 { 0 } else { 2 }, (1, 2000)));
    let refused = (0..6000).map(|_| order::touch(1, 1000, 0, order::NOT_MAPPED));
    let calls: Vec<Made> = changes.chain([protect(2, (3000, 4000))]).chain(refused).collect();
    let process = replay_in(order::image(), &calls);
    assert_eq!((process.mismatches, process.reordered), (6000, 0), "{process:#?}");
    assert!((1000..6000).contains(&process.untried), "{process:#?}");
}

/// What a trial does counts, and not only what it leaves: a result for each page of a GiB, and the mappings
/// that are put back.
#[test]
fn trials_of_orders_cost_what_they_do() {
    let window = Some((1, 1000));
    let wrong =
        || Made(1, window, libc::SYS_madvise, (0, 1), libc::MADV_DONTNEED as u64, -i64::from(libc::EIO));
    let protect = || Made(0, window, libc::SYS_mprotect, (0, 8), 3, 0);
    let mut image = order::image();
    image.mappings.push(Mapping { start: 1 << 30, end: 2 << 30, read: true, ..Mapping::default() });
    let asks = || Made(0, window, libc::SYS_mincore, (((1 << 30) - START) >> 12, 1 << 18), START, 0);
    let calls = (0..12).map(|_| wrong()).chain((0..4).map(|_| asks())).chain((0..60).map(|_| protect()));
    let process = replay_in(image, &calls.collect::<Vec<_>>());
    assert_eq!((process.mismatches, process.reordered), (12, 0), "{process:#?}");
    assert!((2..12).contains(&process.untried), "{process:#?}");
}

/// A call is tried, and made, only after events that the replay comes to.
#[test]
fn an_event_beyond_the_end_is_not_made_for_the_sake_of_an_order() {
    const HOLE: u64 = END + (1 << 32);
    let window = || EventKind::Window(Window { start_ns: 1, end_ns: 1000 });
    let (child, child_tid, child_pid, flags) = (TaskId(1), 2, 1, 0);
    let thread = CloneFacts { child, child_tid, child_pid, flags, shares_memory: true, same_process: true };
    let fixed = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let events = || {
        [
            (0, image(Vec::new())),
            (0, EventKind::Clone(thread)),
            (0, window()),
            (0, call(libc::SYS_msync, [HOLE, 4096, libc::MS_ASYNC as u64, 0, 0, 0], 0)),
            (1, window()),
            (1, call(libc::SYS_madvise, [0x20_0000, 1 << 44, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0], 0)),
            (1, window()),
            (1, call(libc::SYS_mmap, [HOLE, 4096, 3, fixed, u64::MAX, 0], HOLE)),
        ]
    };
    let report = replay(&written_by("beyond", events()));
    let finding = report.does_not_fit.as_ref().unwrap();
    assert!(finding.out_of_proportion && finding.event == 5, "{finding}");
    assert!(report.events == 5 && report.allocator.allocations < 1000, "{report:?}");
    let process = &report.processes[0];
    assert_eq!((process.mismatches, process.reordered, process.untried), (1, 0, 1), "{process:#?}");
    // And where it stops by request.
    let [image, clone, first, msync, .., last, map] = events();
    let file = written_by("stops", [image, clone, first, msync, last, map]);
    for (stop_at, reordered) in [(5, 0), (6, 1)] {
        let options = ReplayOptions { stop_at: Some(stop_at), ..ReplayOptions::default() };
        let report = Replay::open(&file, options).unwrap().run(&mut |_, _| {}).unwrap();
        let process = &report.processes[0];
        assert_eq!((process.reordered, process.untried), (reordered, 1 - reordered), "{process:#?}");
    }
}

/// The time of an event is any number.
#[test]
fn times_at_the_end_of_their_range_are_times() {
    let scratch = Builder::new().prefix("times").tempfile().unwrap().into_temp_path();
    let mut writer = TraceWriter::new(File::create(&scratch).unwrap(), &header(), 3).unwrap();
    let advise = || call(libc::SYS_madvise, [START, 4096, libc::MADV_DONTNEED as u64, 0, 0, 0], 0);
    let ends = EventKind::Exit(ExitStatus::Code(0));
    for (back, kind) in
        [(u64::MAX, image(Vec::new())), (1, advise()), (0, advise()), (2, advise()), (0, ends)]
    {
        let time_ns = u64::MAX - back;
        writer.push(&Event { time_ns, task: TaskId(0), cpu: 0, kind }).unwrap();
    }
    writer.finish(1, 0).unwrap();
    let options = ReplayOptions {
        life: true,
        heat: Some(7),
        khugepaged: Some(std::time::Duration::from_secs(1)),
        ..ReplayOptions::default()
    };
    let report = Replay::open(&scratch, options).unwrap().run(&mut |_, _| {}).unwrap();
    assert!(report.is_good() && report.processes[0].calls == 3, "{report:?}");
}

/// A thread that is made twice ended before, and its address space with it.
#[test]
fn a_thread_that_is_made_again_has_ended() {
    let child = |child| {
        let facts = CloneFacts {
            child: TaskId(child),
            child_tid: child,
            child_pid: 7,
            flags: 0,
            shares_memory: false,
            same_process: false,
        };
        EventKind::Clone(facts)
    };
    let ends = EventKind::Exit(ExitStatus::Code(0));
    let file = written("again", [image(Vec::new()), child(1), child(1), child(0), child(u32::MAX), ends]);
    let report = replay(&file);
    assert!(report.is_good() && report.processes.len() == 3, "{report:?}");
    assert!(report.processes.iter().all(|process| process.quire.mapped > 0), "{report:?}");
}

/// Nothing is replayed of an image that no program can have: one line says which event it is.
#[test]
fn an_image_that_no_program_can_have_is_an_error() {
    let of = |start, resident| {
        let mut image = image(resident);
        let EventKind::Exec(inside) = &mut image else { unreachable!() };
        inside.mappings.push(Mapping { start, end: start + MIB, ..Mapping::default() });
        Replay::open(&written("image", [image]), ReplayOptions::default())
    };
    let long = || vec![PageRun { start: START, pages: 1 << 61, file: false }];
    for start in [START, START + MIB, END - 4096] {
        let Err(error @ ReplayError::Impossible(_, 0, _)) = of(start, long()) else { panic!("{start:#x}") };
        let said = error.to_string();
        assert!(said.contains("event 0: an image has two mappings of the same addresses"), "{said}");
        assert!(!said.contains('\n'), "{said}");
    }
    // More pages than there are addresses are those of the mapping.
    assert!(of(END, long()).is_ok());
}
