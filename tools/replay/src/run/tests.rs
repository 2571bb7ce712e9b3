//! What a replay looks at for recordings that are long, and change little at each event; and what it does
//! after a difference.

use super::work::looked_at;
use crate::{Replay, ReplayOptions, SwapKind, SwapSpec};
use quire_mm::thp::{HugeConfig, HugeEnabled, HugePolicy, KhugepagedConfig, KhugepagedSetting};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Event, EventKind, ExecImage, ExitStatus, Fault, FileFacts,
    FileKind, LinuxFigures, Mapping, Mode, Outcome, Privileges, TaskId, VmFlags,
};
use quire_trace::format::{TraceHeader, TraceWriter};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tempfile::{NamedTempFile, TempPath};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
const BASE: u64 = 0x1000_0000_0000;
const HOUR: u64 = 3_600_000_000_000;

/// A program with these mappings that may lock.
pub(super) fn image(mappings: Vec<Mapping>) -> EventKind {
    EventKind::Exec(Box::new(ExecImage {
        pid: 1,
        mappings,
        max_map_count: u64::MAX,
        overcommit_memory: 1,
        privileges: Privileges { ipc_lock: true, sys_rawio: false },
        ..ExecImage::default()
    }))
}

/// One page at `page`, with a hole behind it in a list of every second page.
fn page(page: u64) -> Mapping {
    let start = BASE + page * PAGE;
    Mapping { start, end: start + PAGE, read: true, write: true, ..Mapping::default() }
}

pub(super) fn call(number: i64, args: [u64; 3], result: u64) -> EventKind {
    let [first, second, third] = args;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let args = [first, second, third, flags, u64::MAX, 0];
    EventKind::Call(Call { number: number as u32, args, result: result as i64, detail: CallDetail::None })
}

pub(super) fn write(addr: u64) -> EventKind {
    fault(addr, Access::Write)
}

pub(super) fn fault(addr: u64, access: Access) -> EventKind {
    EventKind::Fault(Fault { addr, access, mode: Mode::User, outcome: Outcome::Minor, inferred: false })
}

/// A recording of these events, each at its time.
pub(super) fn recording(events: impl IntoIterator<Item = (u64, EventKind)>) -> TempPath {
    recording_of(events.into_iter().map(|(time_ns, kind)| (time_ns, (TaskId(0), kind))))
}

/// The same of events of several threads.
pub(super) fn recording_of(events: impl IntoIterator<Item = (u64, (TaskId, EventKind))>) -> TempPath {
    let scratch = NamedTempFile::new().unwrap().into_temp_path();
    let header = TraceHeader { cpus: 2, ram: 8 << 30, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(File::create(&scratch).unwrap(), &header, 3).unwrap();
    for (time_ns, (task, kind)) in events {
        writer.push(&Event { time_ns, task, cpu: 0, kind }).unwrap();
    }
    writer.finish(1, 0).unwrap();
    scratch
}

/// What a replay of these events, each at its time, looks at. They have their recorded results.
fn looks(options: ReplayOptions, events: impl IntoIterator<Item = (u64, EventKind)>) -> u64 {
    let scratch = recording(events);
    let replay = Replay::open(&scratch, options).unwrap();
    looked_at(|| {
        let report = replay.run(&mut |_, _| {}).unwrap();
        assert!(report.is_good(), "{report:?}");
    })
}

/// A limit that is not reached, with memory followed.
fn limited() -> ReplayOptions {
    let swap = Some(SwapSpec { kind: SwapKind::Ram, bytes: 64 << 20 });
    ReplayOptions { limit: Some(1 << 30), swap, life: true, ..ReplayOptions::default() }
}

fn at_once(events: impl Iterator<Item = EventKind>) -> impl Iterator<Item = (u64, EventKind)> {
    (0..).zip(events)
}

/// A program with many threads locked a page once. What it does later looks at no thread for that.
#[test]
fn calls_among_many_threads_look_at_none_for_a_lock_that_is_gone() {
    const THREADS: u32 = 3000;
    const CALLS: u64 = 10_000;
    let thread = |number: u32| {
        let child = TaskId(number);
        EventKind::Clone(CloneFacts {
            child,
            child_tid: number + 1,
            child_pid: 1,
            flags: 0,
            shares_memory: true,
            same_process: true,
        })
    };
    let lock = |number| call(number, [BASE, PAGE, 0], 0);
    let drops = (0..CALLS).map(|_| call(libc::SYS_madvise, [BASE, PAGE, libc::MADV_DONTNEED as u64], 0));
    let events = [image(vec![page(0)])]
        .into_iter()
        .chain((1..=THREADS).map(thread))
        .chain([libc::SYS_mlock, libc::SYS_munlock].map(lock))
        .chain(drops)
        .chain([EventKind::Exit(ExitStatus::Code(0))]);
    let looked_at = looks(limited(), at_once(events));
    // The one space each 64 events, for the limit.
    assert!(looked_at < CALLS / 10, "{looked_at}");
}

/// A program of many mappings has a locked page, and changes another one again and again, as a JIT does.
#[test]
fn a_change_of_a_page_looks_at_no_other_mapping_for_a_locked_one() {
    const MAPPINGS: u64 = 10_000;
    const CALLS: u64 = 4000;
    let pages = (0..MAPPINGS).map(|number| page(2 * number)).collect();
    let locked = call(libc::SYS_mlock, [BASE, PAGE, 0], 0);
    let changes =
        (0..CALLS).map(|number| call(libc::SYS_mprotect, [BASE + 8 * PAGE, PAGE, 1 + 2 * (number & 1)], 0));
    let looked_at = looks(limited(), at_once([image(pages), locked].into_iter().chain(changes)));
    // And all mappings now and then, for locked pages of files: those are paid for by events.
    assert!((CALLS..17 * CALLS + 2 * MAPPINGS).contains(&looked_at), "{looked_at}");
}

/// A call that brings in pages of a file has the limit set around it, for which the tables of all processes
/// count.
#[test]
fn calls_that_bring_in_files_look_at_a_few_processes_each() {
    const PROCESSES: u32 = 1000;
    const CALLS: u64 = 4000;
    let child = |number: u32| {
        EventKind::Clone(CloneFacts {
            child: TaskId(number),
            child_tid: number + 1,
            child_pid: number + 1,
            flags: 0,
            shares_memory: false,
            same_process: false,
        })
    };
    let populates =
        (0..CALLS).map(|_| call(libc::SYS_madvise, [BASE, PAGE, libc::MADV_POPULATE_READ as u64], 0));
    let of_file = Mapping { inode: 7, ..page(0) };
    let events = [image(vec![of_file])].into_iter().chain((1..=PROCESSES).map(child)).chain(populates);
    let looked_at = looks(ReplayOptions { life: false, ..limited() }, at_once(events));
    let events = CALLS + u64::from(PROCESSES);
    assert!((CALLS..17 * events + 1000).contains(&looked_at), "{looked_at}");
}

/// A program maps a memfd again and again, and has written to every second page of it. At its end its
/// mappings are looked at for what Linux had mapped of it besides, and not its pages.
#[test]
fn the_end_of_a_program_looks_at_its_mappings_for_shared_memory() {
    const PARTS: u64 = 3000;
    let len = 2 * PARTS * PAGE;
    let map = |part: u64| {
        let addr = BASE + part * len;
        let facts = FileFacts {
            kind: FileKind::Memory,
            inode: 7,
            size: len,
            readable: true,
            writable: true,
            ..FileFacts::default()
        };
        let args = [addr, len, 3, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
        let detail = CallDetail::File(Arc::new(facts));
        EventKind::Call(Call { number: libc::SYS_mmap as u32, args, result: addr as i64, detail })
    };
    let figures =
        EventKind::Figures(Box::new(LinuxFigures { rss_shmem: PARTS * len, ..LinuxFigures::default() }));
    let events = [image(Vec::new())]
        .into_iter()
        .chain((0..PARTS).map(map))
        .chain((0..PARTS).map(|run| write(BASE + 2 * run * PAGE)))
        .chain([figures.clone(), figures]);
    let looked_at = looks(ReplayOptions::default(), at_once(events));
    assert!((PARTS..PARTS + 100).contains(&looked_at), "{looked_at}");
}

/// khugepaged looked at all there is, and nothing changes in the hours in which the program sleeps.
#[test]
fn khugepaged_rests_where_a_round_finds_nothing() {
    const BLOCKS: u64 = 8;
    const PAUSES: u64 = 200;
    let blocks = (0..BLOCKS).flat_map(|block| {
        let start = BASE + block * HUGE;
        // Faults find no block of 2 MiB.
        let map = |addr, len| call(libc::SYS_mmap, [addr, len, 3], addr);
        let last = start + HUGE - PAGE;
        let writes = (0..511).map(move |page| write(start + page * PAGE));
        [map(start, HUGE - PAGE)].into_iter().chain(writes).chain([map(last, PAGE)])
    });
    let blocks = [image(Vec::new())].into_iter().chain(blocks).map(|event| (0, event));
    let looks_on = call(libc::SYS_madvise, [BASE, PAGE, libc::MADV_NORMAL as u64], 0);
    let pauses = (1..=PAUSES).map(|number| (number * 3 * HOUR, looks_on.clone()));
    let khugepaged = KhugepagedConfig::LINUX.with(KhugepagedSetting::MaxPtesNone, 0).unwrap();
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Always);
    let huge = HugeConfig { policy, khugepaged, ..HugeConfig::default() };
    let options =
        ReplayOptions { huge, khugepaged: Some(Duration::from_secs(1)), ..ReplayOptions::default() };
    let looked_at = looks(options, blocks.chain(pauses));
    // It looks at a round that it had begun to its end, and at a whole one.
    assert!((PAUSES..4 * PAUSES).contains(&looked_at), "{looked_at} steps");
}

/// A heap that ends elsewhere than on Linux is one difference, and no more: it ends where Linux's does then.
#[test]
fn a_heap_is_brought_to_where_it_ended() {
    const HEAP: u64 = 0x60_0000;
    let heap = ExecImage { pid: 1, start_brk: HEAP, brk: HEAP, max_map_count: 100, ..ExecImage::default() };
    let brk = |asked, result| call(libc::SYS_brk, [asked, 0, 0], result);
    // Linux refused the second.
    let events = [
        EventKind::Exec(Box::new(heap)),
        brk(HEAP + PAGE, HEAP + PAGE),
        brk(HEAP + HUGE, HEAP + PAGE),
        brk(0, HEAP + PAGE),
        write(HEAP),
    ];
    let scratch = recording(at_once(events.into_iter()));
    let report = Replay::open(&scratch, ReplayOptions::default()).unwrap().run(&mut |_, _| {}).unwrap();
    assert_eq!(report.processes[0].mismatches, 1, "{report:?}");
}

/// Linux maps a part of a file again where all of the range maps that file, shared and open for writing, and
/// brings it in. What a recording says of others is not followed.
#[test]
fn only_what_maps_a_file_is_mapped_again() {
    const LEN: u64 = 4 * PAGE;
    let map = |shared, protection, writable| {
        let facts = FileFacts { kind: FileKind::Memory, inode: 7, size: LEN, ..FileFacts::default() };
        let args = [BASE, LEN, protection, (shared | libc::MAP_FIXED) as u64, 3, 0];
        let detail = CallDetail::File(Arc::new(FileFacts { readable: true, writable, ..facts }));
        EventKind::Call(Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail })
    };
    let (shared, private) = (map(libc::MAP_SHARED, 3, true), map(libc::MAP_PRIVATE, 3, true));
    let read_only = map(libc::MAP_SHARED, 1, false);
    let again = |bytes| {
        let (args, detail) = ([BASE, bytes, 0, 2, 0, 0], CallDetail::None);
        EventKind::Call(Call { number: libc::SYS_remap_file_pages as u32, args, result: 0, detail })
    };
    let whole = [(2 * PAGE, 1), (LEN, 1), (LEN + PAGE, 0), (1 << 39, 0)]
        .map(|(bytes, found)| (&shared, bytes, found));
    for (map, bytes, found) in whole.into_iter().chain([(&private, LEN, 0), (&read_only, LEN, 0)]) {
        let events = [image(Vec::new()), map.clone(), again(bytes), fault(BASE + PAGE, Access::Read)];
        let scratch = recording(at_once(events.into_iter()));
        let report = Replay::open(&scratch, ReplayOptions::default()).unwrap().run(&mut |_, _| {}).unwrap();
        assert!(report.does_not_fit.is_none(), "{report:?}");
        assert_eq!(report.processes[0].already_present.total(), found, "{bytes:#x}");
    }
}

/// What a replay of these events has populated, the calls that differ, and whether it fits.
fn outcome(events: impl IntoIterator<Item = EventKind>) -> (u64, u64, bool) {
    let scratch = recording(at_once(events.into_iter()));
    let report = Replay::open(&scratch, ReplayOptions::default()).unwrap().run(&mut |_, _| {}).unwrap();
    let all = |figure: fn(&crate::ProcessReport) -> u64| report.processes.iter().map(figure).sum::<u64>();
    let differs = all(|process| process.first_mismatches.len() as u64);
    (all(|process| process.populated), differs, report.does_not_fit.is_none())
}

/// The flags of a mapping by their letters.
fn flags(letters: &[[u8; 2]]) -> VmFlags {
    let known = (0..).zip(VmFlags::LETTERS).filter(|(_, known)| letters.contains(known));
    VmFlags(known.fold(0, |bits, (bit, _)| bits | 1 << bit))
}

fn errno(errno: i32) -> u64 {
    -i64::from(errno) as u64
}

/// Linux refused calls for half a terabyte that succeed here. Nothing comes in.
#[test]
fn a_call_that_failed_brings_nothing_in() {
    const LEN: u64 = 512 << 30;
    let mapped = || image(vec![Mapping { end: BASE + LEN, ..page(0) }]);
    let eagain = errno(libc::EAGAIN);
    let populate = [BASE, LEN, libc::MADV_POPULATE_READ as u64];
    for failed in [
        call(libc::SYS_mlock, [BASE, LEN, 0], errno(47)),
        call(libc::SYS_mlock, [BASE, LEN, 0], errno(libc::ENOMEM)),
        call(libc::SYS_mlock2, [BASE, LEN, 0], eagain),
        call(libc::SYS_mlockall, [libc::MCL_CURRENT as u64, 0, 0], eagain),
        call(libc::SYS_madvise, populate, errno(libc::EINVAL)),
    ] {
        assert_eq!(outcome([mapped(), failed.clone()]), (0, 1, true), "{failed:?}");
    }
    // A driver's mapping that is locked. It is not marked to be locked on fault.
    let driver = flags(&[*b"rd", *b"mr", *b"de", *b"lo"]);
    let of_driver = Mapping { end: BASE + LEN, write: false, inode: 7, flags: driver, ..page(0) };
    let failed = call(libc::SYS_mlock, [BASE, LEN, 0], errno(47));
    assert_eq!(outcome([image(vec![of_driver]), failed]), (0, 1, true));
    // What is locked without being written to is so when it becomes writable.
    let read_only = flags(&[*b"rd", *b"mr", *b"mw", *b"lo"]);
    let locked = Mapping { end: BASE + LEN, write: false, flags: read_only, ..page(0) };
    let failed = call(libc::SYS_mprotect, [BASE, LEN, 3], errno(libc::EINVAL));
    let locks = call(libc::SYS_mlockall, [libc::MCL_FUTURE as u64, 0, 0], 0);
    assert_eq!(outcome([image(vec![locked]), locks, failed]), (0, 1, true));
    let events = [
        image(vec![page(0)]),
        call(libc::SYS_mlock, [BASE, PAGE, 0], 0),
        EventKind::Call(Call {
            number: libc::SYS_mremap as u32,
            args: [BASE, PAGE, LEN, 0, 0, 0],
            result: -i64::from(libc::ENOMEM),
            detail: CallDetail::None,
        }),
        // It has its old length.
        call(libc::SYS_munmap, [BASE, PAGE, 0], 0),
        call(libc::SYS_mlockall, [libc::MCL_CURRENT as u64, 0, 0], 0),
    ];
    let (populated, differs, fits) = outcome(events);
    assert!(populated < LEN / PAGE && differs == 1 && fits, "{populated} {differs} {fits}");
}

/// mlock and advice end at a page that may not be touched. The pages before it are resident.
#[test]
fn a_call_that_failed_at_a_page_has_brought_in_those_before_it() {
    let guard = Mapping { read: false, write: false, ..page(8) };
    let mapped = || image(vec![Mapping { end: BASE + 8 * PAGE, ..page(0) }, guard.clone()]);
    let populate = [BASE, 9 * PAGE, libc::MADV_POPULATE_WRITE as u64];
    for failed in [
        call(libc::SYS_mlock, [BASE, 9 * PAGE, 0], errno(libc::ENOMEM)),
        call(libc::SYS_mlock2, [BASE, 9 * PAGE, 0], errno(libc::ENOMEM)),
        call(libc::SYS_madvise, populate, errno(libc::EINVAL)),
    ] {
        assert_eq!(outcome([mapped(), failed.clone()]), (8, 0, true), "{failed:?}");
    }
}

/// A mapping of eight pages of a file that has so many.
fn of_file(pages: u64) -> EventKind {
    let facts = FileFacts {
        kind: FileKind::Memory,
        inode: 7,
        size: pages * PAGE,
        readable: true,
        writable: true,
        ..FileFacts::default()
    };
    let args = [BASE, 8 * PAGE, 3, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
    let detail = CallDetail::File(Arc::new(facts));
    EventKind::Call(Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail })
}

const GUARD_INSTALL: u64 = 102;

/// Linux has locked what is before a guard page then, and brought it in.
#[test]
fn a_lock_ends_at_a_guard_page() {
    let mapped = image(vec![Mapping { end: BASE + 8 * PAGE, ..page(0) }]);
    let guard = call(libc::SYS_madvise, [BASE + 4 * PAGE, PAGE, GUARD_INSTALL], 0);
    let lock = call(libc::SYS_mlock, [BASE, 8 * PAGE, 0], errno(libc::ENOMEM));
    assert_eq!(outcome([mapped, guard, lock]), (4, 0, true));
}

/// How long a file is, a replay does not follow: that is a gap, and no difference.
#[test]
fn a_lock_or_advice_that_ends_with_a_file_does_not_differ() {
    for failed in [
        call(libc::SYS_mlock, [BASE, 8 * PAGE, 0], errno(libc::ENOMEM)),
        call(libc::SYS_madvise, [BASE, 8 * PAGE, libc::MADV_POPULATE_WRITE as u64], errno(libc::EFAULT)),
    ] {
        let (_, differs, fits) = outcome([image(Vec::new()), of_file(4), failed]);
        assert!(differs == 0 && fits);
    }
}

/// mprotect and mlock that end at a hole have changed what is before it, which calls that follow bring in.
#[test]
fn what_a_failed_call_has_changed_is_planned_for() {
    const LEN: u64 = 256 << 20;
    const PAGES: u64 = LEN / PAGE;
    let enomem = errno(libc::ENOMEM);
    let none = |pages| Mapping { end: BASE + pages * PAGE, read: false, write: false, ..page(0) };
    let opened = [
        image(vec![none(PAGES)]),
        call(libc::SYS_mprotect, [BASE, LEN + PAGE, 3], enomem),
        call(libc::SYS_mlock, [BASE, LEN, 0], 0),
    ];
    assert_eq!(outcome(opened), (PAGES, 0, true));
    let mremap = |result| {
        let args = [BASE, PAGE, LEN, 0, 0, 0];
        let number = libc::SYS_mremap as u32;
        EventKind::Call(Call { number, args, result, detail: CallDetail::None })
    };
    let grown =
        [image(vec![page(0)]), call(libc::SYS_mlock, [BASE, 2 * PAGE, 0], enomem), mremap(BASE as i64)];
    // The page that it had did not come in.
    assert_eq!(outcome(grown), (PAGES - 1, 0, true));
    // What is behind the hole is as it was, whatever a recording says.
    let behind = [
        image(vec![page(0), Mapping { end: BASE + LEN, ..page(2) }]),
        call(libc::SYS_mprotect, [BASE, LEN, 0], 0),
        call(libc::SYS_mlockall, [libc::MCL_CURRENT as u64, 0, 0], 0),
    ];
    assert_eq!(outcome(behind), (PAGES - 2, 1, true));
}

/// Advice that Linux refused does something here, where Linux did not know it.
#[test]
fn advice_that_was_refused_is_planned_for() {
    const LEN: u64 = 1 << 30;
    let mapped = image(vec![Mapping { end: BASE + LEN, ..page(0) }]);
    let advice = call(libc::SYS_madvise, [BASE, LEN, libc::MADV_HUGEPAGE as u64], errno(libc::EINVAL));
    let touches = (0..LEN / HUGE).map(|block| write(BASE + block * HUGE));
    let events = [mapped, advice].into_iter().chain(touches);
    assert!(outcome(events).2);
}

/// A lock on fault does not mark a driver's mapping, and brings it in. There is memory for that.
#[test]
fn a_lock_on_fault_brings_in_a_drivers_mapping() {
    const PAGES: u64 = 20_000;
    let flags = flags(&[*b"rd", *b"mr", *b"de"]);
    let of_driver = Mapping { end: BASE + PAGES * PAGE, write: false, inode: 7, flags, ..page(0) };
    let on_fault = u64::from(libc::MLOCK_ONFAULT);
    for lock in [
        call(libc::SYS_mlock2, [BASE, PAGES * PAGE, on_fault], 0),
        call(libc::SYS_mlockall, [(libc::MCL_CURRENT | libc::MCL_ONFAULT) as u64, 0, 0], 0),
    ] {
        assert_eq!(outcome([image(vec![of_driver.clone()]), lock.clone()]), (PAGES, 0, true), "{lock:?}");
    }
}
