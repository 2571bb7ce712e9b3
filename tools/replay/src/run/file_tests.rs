//! Files whose sizes are recorded: which of their pages each process has.

use super::tests::{call, fault, image, recording, write};
use crate::{Replay, ReplayOptions, ReplayReport, SwapKind, SwapSpec};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Denial, EventKind, ExitStatus, Fault, FileChange, FileEvent,
    FileFacts, FileKind, IndexRun, LinuxFigures, Mapping, Mode, Outcome, PageRun, SizeCause, TaskId,
};
use std::sync::Arc;

const PAGE: u64 = 4096;
/// At the start of a page table.
const AT: u64 = 0x1000_0000_0000;
const DEVICE: u64 = 0xfe00;
const INODE: u64 = 12;

fn file(change: FileChange) -> EventKind {
    EventKind::File(Box::new(FileEvent { device: DEVICE, inode: INODE, change }))
}

fn size(bytes: u64) -> EventKind {
    file(FileChange::Size { bytes, cause: SizeCause::Seen })
}

fn runs<const N: usize>(runs: [(u64, u64); N]) -> Vec<IndexRun> {
    runs.into_iter().map(|(first, pages)| IndexRun { first, pages }).collect()
}

fn cached<const N: usize>(pages: [(u64, u64); N]) -> EventKind {
    file(FileChange::Cached(runs(pages)))
}

fn evicted<const N: usize>(pages: [(u64, u64); N]) -> EventKind {
    file(FileChange::Evicted(runs(pages)))
}

/// The file from its page `page` on, at [`AT`].
fn mapping(page: u64, pages: u64) -> Mapping {
    Mapping {
        start: AT,
        end: AT + pages * PAGE,
        read: true,
        write: true,
        offset: page * PAGE,
        device: DEVICE,
        inode: INODE,
        ..Mapping::default()
    }
}

/// `mmap` of the file from its page `page` on.
fn map(at: u64, page: u64, pages: u64, shared: bool) -> EventKind {
    let how = libc::MAP_FIXED | if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let facts = FileFacts {
        kind: FileKind::Regular,
        device: DEVICE,
        inode: INODE,
        readable: true,
        writable: true,
        ..FileFacts::default()
    };
    EventKind::Call(Call {
        number: libc::SYS_mmap as u32,
        args: [at, pages * PAGE, 3, how as u64, 3, page * PAGE],
        result: at as i64,
        detail: CallDetail::File(Arc::new(facts)),
    })
}

fn read(page: u64) -> EventKind {
    fault(AT + page * PAGE, Access::Read)
}

fn fork() -> EventKind {
    EventKind::Clone(CloneFacts {
        child: TaskId(1),
        child_tid: 2,
        child_pid: 2,
        flags: 0,
        shares_memory: false,
        same_process: false,
    })
}

#[track_caller]
fn replayed(options: ReplayOptions, events: Vec<EventKind>) -> ReplayReport {
    let scratch = recording((0..).zip(events.into_iter().chain([EventKind::Exit(ExitStatus::Code(0))])));
    let report = Replay::open(&scratch, options).unwrap().run(&mut |_, _| {}).unwrap();
    assert!(report.is_good(), "{:?}", report.processes[0]);
    report
}

/// Pages of files that the first process has at its end, and pages of its own.
#[track_caller]
fn pages(events: Vec<EventKind>) -> (u64, u64) {
    let report = replayed(ReplayOptions::default(), events);
    let figures = &report.processes[0].quire;
    (figures.resident_file / PAGE, figures.resident_anonymous / PAGE)
}

#[test]
fn without_a_size_a_touch_brings_its_page_in() {
    assert_eq!(pages(vec![image(vec![mapping(0, 40)]), read(2), read(20)]), (2, 0));
    assert_eq!(pages(vec![cached([(0, 40)]), image(vec![mapping(0, 40)]), read(2)]), (1, 0));
}

/// Where it is not known what is cached, all is.
#[test]
fn a_read_maps_what_linux_had_cached_around_it() {
    let image = || image(vec![mapping(3, 40)]);
    assert_eq!(pages(vec![size(100 * PAGE), image(), read(2)]), (16, 0));
    assert_eq!(pages(vec![size(9 * PAGE - 5), image(), read(2)]), (6, 0), "up to its end");
    assert_eq!(pages(vec![size(100 * PAGE), cached([(1, 5), (8, 2)]), image(), read(2)]), (5, 0));
    assert_eq!(pages(vec![size(100 * PAGE), evicted([(8, 15)]), image(), read(2)]), (5, 0));
}

#[test]
fn writes_map_one_page_and_of_private_memory_a_copy() {
    let first = || vec![size(100 * PAGE), image(Vec::new())];
    let with = |more: Vec<EventKind>| pages(first().into_iter().chain(more).collect());
    assert_eq!(with(vec![map(AT, 0, 40, false), write(AT)]), (0, 1));
    assert_eq!(with(vec![map(AT, 0, 40, false), read(2), write(AT)]), (15, 1));
    assert_eq!(with(vec![map(AT, 0, 40, true), write(AT), write(AT + PAGE)]), (2, 0));
}

/// Linux maps what was read with the page when it makes the fault again.
#[test]
fn what_a_cold_touch_makes_linux_read_is_mapped_with_it() {
    let with = |then: Vec<EventKind>| {
        let first = vec![size(100 * PAGE), cached([(0, 2)]), image(vec![mapping(0, 40)]), read(5)];
        pages(first.into_iter().chain(then).collect())
    };
    assert_eq!(with(vec![cached([(5, 20)])]), (13, 0));
    assert_eq!(with(vec![cached([(5, 2)]), cached([(7, 2)])]), (6, 0));
    assert_eq!(
        with(vec![cached([(5, 1)]), read(20), cached([(10, 20)])]),
        (17, 0),
        "and what was read later"
    );
    // As much as Linux reads around it, where that is not recorded.
    assert_eq!(with(vec![]), (16, 0));
    let other = FileEvent { device: DEVICE, inode: INODE + 1, change: FileChange::Cached(runs([(6, 9)])) };
    let other = EventKind::File(Box::new(other));
    assert_eq!(with(vec![other, cached([(5, 2)])]), (4, 0), "nor pages of another file");
}

#[test]
fn processes_share_what_is_cached() {
    let events = || vec![size(100 * PAGE), image(vec![mapping(0, 16)]), read(0), fork()];
    let mut events: Vec<(TaskId, EventKind)> = events().into_iter().map(|kind| (TaskId(0), kind)).collect();
    events.push((TaskId(1), read(3)));
    events.extend([1, 0].map(|task| (TaskId(task), EventKind::Exit(ExitStatus::Code(0)))));
    let scratch = super::tests::recording_of((0..).zip(events));
    let replay = Replay::open(&scratch, ReplayOptions::default()).unwrap();
    let (mut most, mut files) = (0, 0);
    let report = replay
        .run_watched(&mut |_, _| {}, &mut |moment| {
            most = most.max(moment.memory.frames().reports().totals().present);
            files = files.max(moment.memory.file_totals().cached);
        })
        .unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!(files, 16, "{most} pages of RAM");
    assert!(report.processes.iter().all(|process| process.quire.resident_file == 16 * PAGE));
}

fn read_with(page: u64, outcome: Outcome) -> EventKind {
    let (addr, access, mode) = (AT + page * PAGE, Access::Read, Mode::User);
    EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false })
}

fn refused(page: u64) -> EventKind {
    read_with(page, Outcome::Denied(Denial::NoBacking))
}

/// As the barrier of a collector: the mapping forbids it at first. Nothing is read for that.
#[test]
fn touches_that_are_refused_bring_nothing_in() {
    const PAGES: u64 = 1 << 14;
    let written = |page| {
        let (addr, access, mode) = (AT + page * PAGE, Access::Write, Mode::User);
        let outcome = Outcome::Denied(Denial::NotAllowed);
        EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false })
    };
    let readable = Mapping { write: false, ..mapping(0, PAGES) };
    let forbidden = Mapping { read: false, ..readable.clone() };
    let barrier = |page| read_with(page, Outcome::Denied(Denial::NotAllowed));
    let failed = |page| read_with(page, Outcome::Unresolved);
    let allowed = || call(libc::SYS_mprotect, [AT, PAGES * PAGE, libc::PROT_READ as u64], 0);
    let cold = |page| [read_with(page, Outcome::Major), cached([(page, 1)])];
    let kinds: [(_, &dyn Fn(u64) -> EventKind); 3] =
        [(&forbidden, &barrier), (&forbidden, &failed), (&readable, &written)];
    for (mapping, refused) in kinds {
        let first = [size(PAGES * PAGE), cached([]), image(vec![mapping.clone()])];
        let events = first.into_iter().chain((0..1024).map(|at| refused(at * 16))).chain([allowed()]);
        let events = events.chain((0..20).flat_map(|at| cold(at * 700))).collect();
        let report = replayed(ReplayOptions::default(), events);
        assert_eq!(report.does_not_fit, None);
        assert_eq!((report.pressure.major_faults, report.processes[0].quire.resident_file / PAGE), (20, 20));
        assert!(report.ram < 3 << 20, "{} KiB", report.ram >> 10);
    }
}

/// A touch past the end has its page table, and maps what is cached before the end.
#[test]
fn touches_past_the_end_are_planned() {
    const PAGES: u64 = 512;
    let first = || vec![size(9 * PAGE), cached([(0, 3)]), image(vec![mapping(0, 4000 * PAGES)])];
    let with =
        |more: Vec<EventKind>| replayed(ReplayOptions::default(), first().into_iter().chain(more).collect());
    let report = with((0..4000).map(|table| refused(table * PAGES + 9)).collect());
    assert_eq!(report.does_not_fit, None);
    assert_eq!(report.processes[0].quire.resident_file / PAGE, 3, "no more is known to be cached");
    // The file grows and shrinks: what it had is mapped by touches that are refused.
    let shrink =
        |pages| [size((1 << 14) * PAGE), cached([(pages - 8, 8)]), size(pages * PAGE), refused(pages)];
    let report = with((1..1000).rev().flat_map(|at| shrink(at * 16 + 8)).collect());
    assert_eq!(report.does_not_fit, None);
}

#[test]
fn what_is_past_the_end_is_refused_and_what_is_cut_off_is_gone() {
    let cut = |bytes| file(FileChange::Size { bytes, cause: SizeCause::Call });
    let events = |then: Vec<EventKind>| {
        let first = vec![size(9 * PAGE), image(vec![mapping(0, 16)]), read(1), refused(9), cut(4 * PAGE)];
        first.into_iter().chain(then).collect()
    };
    assert_eq!(pages(events(vec![])), (4, 0));
    assert_eq!(pages(events(vec![refused(4)])), (4, 0));
    assert_eq!(pages(events(vec![size(8 * PAGE), read(6)])), (8, 0));
    // Linux locks what there is, in copies that may be written, and says that it was not all.
    let lock = call(libc::SYS_mlock, [AT, 9 * PAGE, 0], (-i64::from(libc::ENOMEM)) as u64);
    assert_eq!(pages(events(vec![lock])), (0, 4));
}

/// What a program appends is seen later than it touches it.
#[test]
fn a_touch_that_linux_allowed_shows_that_a_file_has_grown() {
    let first = || vec![size(2 * PAGE), cached([(0, 2)]), image(vec![mapping(0, 16)])];
    let with = |more: Vec<EventKind>| pages(first().into_iter().chain(more).collect());
    assert_eq!(with(vec![read(2), read(3)]), (4, 0));
    assert_eq!(
        with(vec![refused(3), read(2), refused(3), size(8 * PAGE), cached([(3, 5)]), read(9)]),
        (9, 0)
    );
}

#[test]
fn what_is_evicted_or_punched_out_is_mapped_no_more() {
    let first = || vec![size(16 * PAGE), image(vec![mapping(0, 16)]), read(0), write(AT + 2 * PAGE)];
    let with = |more: Vec<EventKind>| pages(first().into_iter().chain(more).collect());
    assert_eq!(with(vec![evicted([(0, 4)])]), (12, 1), "a copy stays");
    assert_eq!(with(vec![evicted([(0, 4)]), read(0), cached([(0, 1)])]), (13, 1));
    assert_eq!(with(vec![evicted([(0, 4)]), cached([(0, 16)]), read(0)]), (15, 1));
    assert_eq!(with(vec![file(FileChange::Punched(PAGE / 2..4 * PAGE))]), (13, 1));
}

/// A file without a name goes with its last process, after Linux's figures were taken; and what is learnt by
/// looks is learnt after them, too.
#[test]
fn figures_are_those_of_the_moment_of_linux() {
    let figures = || EventKind::Figures(Box::new(LinuxFigures { rss_file: 16 * PAGE, ..Default::default() }));
    let first = || vec![size(64 * PAGE), image(vec![mapping(0, 64)]), read(0), figures()];
    let with = |more: Vec<EventKind>| first().into_iter().chain(more).collect();
    assert_eq!(pages(with(vec![evicted([(0, 64)])])), (16, 0));
    assert_eq!(pages(with(vec![read(20), write(AT + 40 * PAGE)])), (32, 1));
    let report = replayed(ReplayOptions::default(), with(vec![write(AT + 40 * PAGE)]));
    assert_eq!(report.ends[&0].anonymous, PAGE);
}

/// The rest of a page at the edge of a hole is still there.
#[test]
fn the_pages_at_the_edges_of_a_hole_stay_cached() {
    let with = |more: Vec<EventKind>| {
        let hole = file(FileChange::Punched(PAGE / 2..4 * PAGE + 5));
        let first = [size(16 * PAGE), cached([(0, 16)]), image(vec![mapping(0, 16)]), hole];
        let report = replayed(ReplayOptions::default(), first.into_iter().chain(more).collect());
        (report.pressure.major_faults, report.processes[0].quire.resident_file / PAGE)
    };
    let unknown = |page| read_with(page, Outcome::Unknown);
    assert_eq!(with(vec![unknown(0)]), (0, 13));
    assert_eq!(with(vec![unknown(4)]), (0, 13));
    assert_eq!(with(vec![unknown(3), cached([(3, 1)])]), (1, 14));
}

/// A program makes a hole by its mapping: copies stay, and what is read again is a major fault.
#[test]
fn what_a_program_removes_is_mapped_no_more() {
    let other = AT + (1 << 30);
    let events = |then: Vec<EventKind>| {
        let first = [size(64 * PAGE), cached([(0, 64)]), image(Vec::new()), map(AT, 0, 64, true)];
        let first = first.into_iter().chain([map(other, 0, 64, false), read(0), write(other + 2 * PAGE)]);
        let remove = call(libc::SYS_madvise, [AT, 8 * PAGE, libc::MADV_REMOVE as u64], 0);
        first.chain([remove]).chain(then).collect()
    };
    assert_eq!(pages(events(vec![])), (8, 1));
    let report =
        replayed(ReplayOptions::default(), events(vec![read_with(3, Outcome::Unknown), cached([(3, 1)])]));
    assert_eq!((report.pressure.major_faults, report.processes[0].quire.resident_file / PAGE), (1, 9));
    assert_eq!(pages(events(vec![evicted([(0, 8)]), cached([(0, 2)]), read(0)])), (10, 1));
    let stays = vec![cached([(0, 8)]), read_with(3, Outcome::Unknown)];
    let report = replayed(ReplayOptions::default(), events(stays));
    assert_eq!((report.pressure.major_faults, report.processes[0].quire.resident_file / PAGE), (0, 16));
    // What it only unmaps is still there.
    let unmap = call(libc::SYS_madvise, [AT, 16 * PAGE, libc::MADV_DONTNEED as u64], 0);
    let report = replayed(ReplayOptions::default(), events(vec![unmap, read_with(9, Outcome::Unknown)]));
    assert_eq!((report.pressure.major_faults, report.processes[0].quire.resident_file / PAGE), (0, 8));
}

/// Linux drops the copies of what it moves within a file, which is recorded as a truncation there.
#[test]
fn what_is_moved_within_a_file_is_lost_with_its_copies() {
    let cut = |bytes| file(FileChange::Size { bytes, cause: SizeCause::Call });
    let with = |then: Vec<EventKind>| {
        let first = vec![size(16 * PAGE), cached([(0, 16)]), image(Vec::new()), map(AT, 0, 32, false)];
        let first = first.into_iter().chain((0..10).map(|page| write(AT + page * PAGE))).chain([read(12)]);
        pages(first.chain(then).collect())
    };
    assert_eq!(with(vec![]), (6, 10));
    // A page is inserted before the fifth, and one is taken out.
    assert_eq!(with(vec![cut(4 * PAGE), cut(17 * PAGE)]), (0, 4));
    assert_eq!(with(vec![cut(4 * PAGE), cut(15 * PAGE), refused(15)]), (0, 4));
    assert_eq!(with(vec![cut(4 * PAGE), cut(17 * PAGE), cached([(4, 2)]), read(16)]), (1, 4));
    assert_eq!(
        with(vec![cut(4 * PAGE), cut(17 * PAGE), cached([(4, 2)]), write(AT + 4 * PAGE), read(5)]),
        (1, 5)
    );
    // A hole keeps them.
    assert_eq!(with(vec![file(FileChange::Punched(4 * PAGE..16 * PAGE))]), (0, 10));
}

#[test]
fn pages_of_a_new_image_are_those_that_were_there() {
    let resident = vec![
        PageRun { start: AT, pages: 3, file: true },
        PageRun { start: AT + 5 * PAGE, pages: 1, file: false },
    ];
    let mapped = Mapping { resident, ..mapping(0, 16) };
    assert_eq!(pages(vec![size(16 * PAGE), image(vec![mapped])]), (3, 1));
}

/// What Linux had cached is no major fault, however it comes in.
#[test]
fn major_faults_are_those_of_pages_that_were_not_cached() {
    let majors = |events: Vec<EventKind>| {
        let report = replayed(ReplayOptions::default(), events);
        (report.pressure.major_faults, report.processes[0].quire.resident / PAGE)
    };
    let resident = vec![PageRun { start: AT, pages: 2, file: true }];
    let mapped = || image(vec![Mapping { resident: resident.clone(), ..mapping(0, 16) }]);
    let first = || [size(100 * PAGE), cached([(0, 50)]), mapped()];
    let with = |more: Vec<EventKind>| majors(first().into_iter().chain(more).collect());
    let lock = |at| call(libc::SYS_mlock, [at, 3 * PAGE, 0], 0);
    assert_eq!(with(vec![]), (0, 2));
    assert_eq!(with(vec![write(AT + 7 * PAGE), read(1)]), (0, 3));
    assert_eq!(with(vec![read(9), lock(AT)]), (0, 16));
    let other = AT + (1 << 30);
    let written = |page| {
        let (addr, access, mode) = (other + page * PAGE, Access::Write, Mode::User);
        EventKind::Fault(Fault { addr, access, mode, outcome: Outcome::Unknown, inferred: false })
    };
    let cold = |page| [map(other, 48, 16, true), written(page), cached([(48 + page, 1)])];
    assert_eq!(with(cold(1).to_vec()), (0, 3));
    assert_eq!(with(cold(2).to_vec()), (1, 3));
    assert_eq!(with(vec![map(other, 47, 16, true), lock(other)]), (0, 5));
}

/// Of a recording whose pages are looked at from time to time nothing stands behind a touch.
#[test]
fn a_cold_touch_with_nothing_behind_it_is_a_major_fault() {
    let with = |more: Vec<EventKind>| {
        let first = vec![size(100 * PAGE), cached([(0, 2)]), image(vec![mapping(0, 64)])];
        let report = replayed(ReplayOptions::default(), first.into_iter().chain(more).collect());
        (report.pressure.major_faults, report.processes[0].quire.resident_file / PAGE)
    };
    let unknown = |page| read_with(page, Outcome::Unknown);
    assert_eq!(with(vec![unknown(40)]), (1, 16));
    // It was read with those around it, 128 KiB in all.
    assert_eq!(with(vec![unknown(40), unknown(50), unknown(31), evicted([(40, 1)]), unknown(50)]), (1, 31));
    assert_eq!(with(vec![unknown(40), evicted([(40, 1)]), unknown(40)]), (2, 16));
    // Linux says whether it was cached, whatever is known.
    assert_eq!(with(vec![read_with(40, Outcome::Minor)]), (0, 16));
    assert_eq!(with(vec![read_with(1, Outcome::Major)]), (1, 2));
    let majors = [20, 40, 60].map(|page| read_with(page, Outcome::Major));
    let [first, second, third] = majors;
    assert_eq!(with(vec![first, cached([(20, 1), (40, 1), (60, 1)]), second, third]), (3, 3));
    assert_eq!(with(vec![unknown(1)]), (0, 2));
    // What is read around a page ends with the file, also where that grows.
    assert_eq!(with(vec![size(50 * PAGE), unknown(47), size(60 * PAGE), unknown(52)]), (2, 28));
}

/// The machine has RAM for what is mapped of them, and not for what they have.
#[test]
fn files_cost_what_is_mapped_of_them() {
    const BYTES: u64 = 1 << 40;
    let many = || (0..40).map(|page| read(page * 1000));
    let events = || [size(BYTES), image(vec![mapping(0, BYTES / PAGE)])].into_iter().chain(many());
    let report = replayed(ReplayOptions::default(), events().collect());
    assert_eq!(report.processes[0].quire.resident_file / PAGE, 40 * 16);
    assert!(report.ram < 8 << 20, "{} KiB", report.ram >> 10);
    // The same with a limit, and with contents.
    let swap = Some(SwapSpec { kind: SwapKind::Ram, bytes: 8 << 20 });
    let limited = ReplayOptions { limit: Some(1 << 20), swap, contents: true, ..ReplayOptions::default() };
    let report = replayed(limited, events().collect());
    assert_eq!((report.processes[0].quire.resident_file / PAGE, report.does_not_fit), (40 * 16, None));
}

/// A machine that is too small for all files drops those that nothing maps.
#[test]
fn what_nothing_maps_gives_way() {
    const PAGES: u64 = 512;
    let one = |round: u64| {
        let first = round * PAGES;
        let reads = (0..PAGES / 16).map(|part| read(part * 16));
        [map(AT, first, PAGES, false)].into_iter().chain(reads)
    };
    // What gave way comes in again.
    let rounds = (0..20).chain([0]);
    let events: Vec<EventKind> =
        [size(100 * PAGES * PAGE), image(Vec::new())].into_iter().chain(rounds.flat_map(one)).collect();
    let small = ReplayOptions { memory: Some(12 << 20), ..ReplayOptions::default() };
    let report = replayed(small, events);
    assert_eq!(report.does_not_fit, None);
    assert_eq!(report.processes[0].quire.resident_file / PAGE, PAGES);
}
