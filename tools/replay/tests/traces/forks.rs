//! What forks cost under settings of huge pages, and what of the peak of memory is used again.

use super::life::{BASE, Invented, PAGE, SECOND};
use quire_mm::thp::{HugeConfig, HugeEnabled, HugePolicy};
use quire_replay::{ForkFigures, PeakUse, ReplayOptions};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Event, EventKind, ExitStatus, Fault, FileFacts, FileKind, Mode,
    Outcome, TaskId,
};
use std::sync::Arc;

const FORKS: u64 = 4;
const PAGES: u64 = 1024;

fn fork(child: TaskId) -> EventKind {
    EventKind::Clone(CloneFacts {
        child,
        child_tid: child.0 + 1,
        child_pid: child.0 + 1,
        flags: 0,
        shares_memory: false,
        same_process: false,
    })
}

/// A server that snapshots its memory: all of it is written, then it forks again and again. It writes ten
/// pages while a child lives, and ten others when that has ended.
fn server() -> Invented {
    let mut program = Invented::new("forking");
    program.map(0, BASE, PAGES * PAGE, 0);
    (0..PAGES).for_each(|page| program.write(SECOND, BASE + page * PAGE));
    for nth in 0..FORKS {
        let (time, child) = ((2 + nth) * SECOND, TaskId(1 + nth as u32));
        program.push(time, fork(child));
        (0..10).for_each(|page| program.write(time, BASE + page * PAGE));
        program.push(time, EventKind::Exit(ExitStatus::Code(0)));
        let last = program.last();
        *last = Event { task: child, ..last.clone() };
        (10..20).for_each(|page| program.write(time, BASE + page * PAGE));
    }
    program
}

fn forks(enabled: HugeEnabled) -> ForkFigures {
    let huge = HugeConfig { policy: HugePolicy::default().with_enabled(enabled), ..HugeConfig::default() };
    let report = server().report(ReplayOptions { huge, life: true, ..ReplayOptions::default() });
    assert!(report.does_not_fit.is_none(), "{:?}", report.does_not_fit);
    report.life.unwrap().forks
}

#[test]
fn huge_pages_make_forks_cheaper() {
    let never = forks(HugeEnabled::Never);
    assert_eq!((never.forks, never.entries, never.huge_entries), (FORKS, FORKS * PAGES, 0));
    assert_eq!((never.copies, never.reuses, never.splits), (10 * FORKS, 10 * FORKS, 0));
    assert!(never.tables >= 2 * FORKS, "{never:?}");
    let always = forks(HugeEnabled::Always);
    // Two entries for the first child. A write to a shared block splits it; the other block stays whole.
    assert_eq!((always.huge_entries, always.entries), (FORKS + 1, (FORKS - 1) * 512));
    assert_eq!(always.splits, 1, "that block stays in single pages");
    assert!(always.tables <= never.tables && always.copies >= never.copies, "{always:?} {never:?}");
}

#[test]
fn what_is_used_again_after_the_peak_is_known() {
    let mut program = Invented::new("again");
    program.map(0, BASE, PAGES * PAGE, 0);
    let touch = |program: &mut Invented, time, pages: std::ops::Range<u64>| {
        pages.for_each(|page| program.write(time * SECOND, BASE + page * PAGE));
    };
    touch(&mut program, 1, 0..500);
    // Before the peak.
    touch(&mut program, 2, 0..100);
    touch(&mut program, 3, 500..600);
    // After it, twice.
    touch(&mut program, 4, 50..80);
    touch(&mut program, 5, 50..80);
    // As many others come for pages that go.
    program.call(6 * SECOND, libc::SYS_madvise, [BASE, 10 * PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0], 0);
    touch(&mut program, 7, 700..705);
    touch(&mut program, 8, 700..705);
    let report = program.report(ReplayOptions { peak_use: true, ..ReplayOptions::default() });
    assert_eq!(report.peak_use, Some(PeakUse { peak: 600 * PAGE, used: 30 * PAGE, shared: 0 }));
    assert_eq!(program.report(ReplayOptions::default()).peak_use, None);
}

/// What a server and its worker have mapped cannot be paged out by a recorder: each page counts once. What
/// the worker writes is its own, and so is all when it is gone.
#[test]
fn what_processes_share_after_a_fork_is_known() {
    for (lives, shared) in [(70, 400), (1, 0)] {
        let mut program = Invented::new("preforking");
        program.map(0, BASE, PAGES * PAGE, 0);
        (0..500).for_each(|page| program.write(SECOND, BASE + page * PAGE));
        program.push(2 * SECOND, fork(TaskId(1)));
        // The worker takes a page of its own for every fifth; both go on for a while.
        for page in (0..500).step_by(5) {
            program.write(2 * SECOND, BASE + page * PAGE);
            program.last().task = TaskId(1);
        }
        for second in 0..lives {
            program.write((3 + second) * SECOND, BASE + 500 * PAGE);
        }
        program.push((3 + lives) * SECOND, EventKind::Exit(ExitStatus::Code(0)));
        program.last().task = TaskId(1);
        for second in lives..100 {
            program.write((3 + second) * SECOND, BASE + 500 * PAGE);
        }
        let report = program.report(ReplayOptions { peak_use: true, ..ReplayOptions::default() });
        assert_eq!(report.peak_use.unwrap().shared, shared * PAGE, "{lives} s");
    }
}

/// Of a private mapping of a file a fork shares what was written; the file's own pages are not the program's.
#[test]
fn what_processes_share_of_a_private_mapping_is_what_was_written() {
    let mut program = Invented::new("tables");
    let (kind, size) = (FileKind::Regular, PAGES * PAGE);
    let facts = FileFacts { kind, size, readable: true, inode: 7, ..FileFacts::default() };
    let args = [BASE, size, 3, (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64, 3, 0];
    let detail = CallDetail::File(Arc::new(facts));
    let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
    program.push(SECOND, EventKind::Call(map));
    (0..300).for_each(|page| program.write(SECOND, BASE + page * PAGE));
    for page in 300..500 {
        let (access, mode, outcome) = (Access::Read, Mode::User, Outcome::Minor);
        let fault = Fault { addr: BASE + page * PAGE, access, mode, outcome, inferred: false };
        program.push(SECOND, EventKind::Fault(fault));
    }
    program.push(2 * SECOND, fork(TaskId(1)));
    // The worker has some for itself.
    for page in 0..100 {
        program.write(2 * SECOND, BASE + page * PAGE);
        program.last().task = TaskId(1);
    }
    (3..60).for_each(|second| program.write(second * SECOND, BASE + 500 * PAGE));
    let report = program.report(ReplayOptions { peak_use: true, ..ReplayOptions::default() });
    assert_eq!(report.peak_use.unwrap().shared, 200 * PAGE);
}
