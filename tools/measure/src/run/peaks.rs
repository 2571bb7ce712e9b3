//! The running processes, and their peaks so far.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::folios;
use super::proc::{ProcFiles, Resident, Status, Walk, is_zombie};
use super::ptrace::{Usage, share_memory};
use crate::limit::Limited;
use crate::mean::Mean;
use crate::truth::{AtPeak, ProcessTruth};

/// One in so many samples reads the slower figures.
const STATUS_EVERY: u64 = 5;
/// The share of the program's time that walking its page tables may take: 2 %, and 10 % if each folio is
/// looked up.
const WALKING: u32 = 50;
const WALKING_FOLIOS: u32 = 10;
/// Half of it is for walks when there is more than before; the other half also for those that only tell what
/// processes share since one started, ended or executed another program.
const FOR_SHARES: u32 = 2;
/// The process of the program, by its turn.
const FIRST: u64 = 1;
/// The first walks do not wait until the program has run for long.
const FIRST_WALKS: Duration = Duration::from_millis(10);

/// All processes, and the peaks.
#[derive(Debug)]
pub(crate) struct Peaks {
    page: u64,
    folios: bool,
    /// The limit that it runs within.
    pub(crate) limited: Option<Limited>,
    started: Instant,
    processes: BTreeMap<i32, Process>,
    /// In the order of their starts, with those that have ended.
    ended: Vec<(u64, ProcessTruth)>,
    starts: u64,
    /// Starts, ends and changes of programs.
    changes: u64,
    /// Memory that was mapped more than once at the last walk, and how many changes there had been.
    shared: Option<(u64, u64)>,
    pub(crate) usage: Usage,
    pub(crate) anonymous_all: u64,
    pub(crate) once: u64,
    pub(crate) mean: Mean,
    /// What there was before the first process ended, each frame once.
    pub(crate) end: u64,
    /// The last sample, each frame once, as far as that is known.
    once_now: u64,
    pub(crate) resident_all: u64,
    pub(crate) page_tables_all: u64,
    pub(crate) unseen: u64,
    pub(crate) at_peak: Option<AtPeak>,
    /// Processor time that the walks took.
    walking: Duration,
    /// Anonymous memory at the last sample.
    previous: u64,
    pub(crate) samples: u64,
    pub(crate) longest_gap: Duration,
    sampled: Instant,
}

#[derive(Debug)]
struct Process {
    start: u64,
    files: ProcFiles,
    parent: i32,
    /// Its memory is its parent's, until its first `exec`.
    borrows: bool,
    /// Its figures were read at its end.
    over: bool,
    now: Resident,
    page_tables: u64,
    /// The peak of resident memory of its present program: as sampled, and as the kernel reports it.
    seen: u64,
    high: u64,
    truth: ProcessTruth,
    /// Its children that have ended: each one's usage, which is in the parent's own if that has waited for
    /// it.
    children: Vec<(i32, Usage)>,
}

impl Peaks {
    pub(crate) fn new(page: u64, folios: bool, limited: Option<Limited>) -> Self {
        let now = Instant::now();
        Self {
            page,
            folios,
            limited,
            started: now,
            processes: BTreeMap::new(),
            ended: Vec::new(),
            starts: 0,
            changes: 0,
            shared: None,
            usage: Usage::default(),
            anonymous_all: 0,
            once: 0,
            mean: Mean::default(),
            end: 0,
            once_now: 0,
            resident_all: 0,
            page_tables_all: 0,
            unseen: 0,
            at_peak: None,
            walking: Duration::ZERO,
            previous: 0,
            samples: 0,
            longest_gap: Duration::ZERO,
            sampled: now,
        }
    }

    /// The process of the program, which it is not yet: its memory is a copy of this process's.
    pub(crate) fn launched(&mut self, pid: i32) {
        self.started(pid);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.borrows = true;
        }
    }

    /// A thread has started: that of a new process, or not.
    pub(crate) fn started(&mut self, thread: i32) {
        if self.processes.contains_key(&thread) {
            return;
        }
        let Some(status) = Status::of(thread) else { return };
        let (true, Ok(files)) = (status.process == thread, ProcFiles::open(thread)) else { return };
        self.starts += 1;
        self.changes += 1;
        let truth = ProcessTruth { pid: thread, program: status.program, ..ProcessTruth::default() };
        let process = Process {
            start: self.starts,
            files,
            parent: status.parent,
            borrows: self.processes.contains_key(&status.parent) && share_memory(thread, status.parent),
            over: false,
            now: Resident::default(),
            page_tables: 0,
            seen: 0,
            high: 0,
            truth,
            children: Vec::new(),
        };
        self.processes.insert(thread, process);
    }

    /// A process has another program, and so its own memory.
    pub(crate) fn replaced(&mut self, pid: i32) {
        self.started(pid);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.borrows = false;
            process.over = false;
            // The kernel counts its peak anew.
            self.unseen = self.unseen.max(process.high.saturating_sub(process.seen));
            (process.seen, process.high) = (0, 0);
        }
        self.changes += 1;
        self.read_all(false);
    }

    /// Samples before a process forks.
    pub(crate) fn forks(&mut self) {
        self.read_all(false);
    }

    /// A thread is about to end: all of its process if that is its first thread, or the first has ended
    /// before it.
    pub(crate) fn ends(&mut self, thread: i32) {
        let pid = if self.processes.contains_key(&thread) {
            thread
        } else {
            // Only for the threads that are left when the leader has ended.
            if self.processes.values().all(|process| !process.over) {
                return;
            }
            match Status::of(thread) {
                Some(status) if self.processes.get(&status.process).is_some_and(|process| process.over) => {
                    status.process
                }
                _ => return,
            }
        };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.over = false;
        if pid != thread
            && let Ok(files) = ProcFiles::open(thread)
        {
            process.files = files;
        }
        self.read_all(true);
        self.walk_if_due(true);
        let once = self.once_now;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        self.changes += 1;
        if process.start == FIRST {
            // Of its threads that end one after the other the last one counts.
            self.end = once;
            if let Some(limited) = &mut self.limited {
                limited.first_process_ends();
            }
        }
        self.unseen = self.unseen.max(process.high.saturating_sub(process.seen));
        process.over = true;
        process.now = Resident::default();
        process.page_tables = 0;
        let unwaited: Vec<Usage> = process
            .children
            .drain(..)
            .filter(|(child, _)| is_zombie(*child))
            .map(|(_, usage)| usage)
            .collect();
        for usage in &unwaited {
            self.usage.add(usage);
        }
    }

    /// A thread has ended.
    pub(crate) fn gone(&mut self, thread: i32, usage: Usage) {
        let Some(process) = self.processes.remove(&thread) else { return };
        match self.processes.get_mut(&process.parent) {
            Some(parent) if !parent.over => parent.children.push((thread, usage)),
            // The program itself, or one whose parent did not wait for it.
            _ => self.usage.add(&usage),
        }
        self.ended.push((process.start, process.truth));
    }

    /// Takes a sample.
    pub(crate) fn sample(&mut self) {
        let now = Instant::now();
        self.longest_gap = self.longest_gap.max(now - self.sampled);
        self.sampled = now;
        self.samples += 1;
        self.read_all(self.samples.is_multiple_of(STATUS_EVERY));
        self.walk_if_due(false);
    }

    /// Processes that have not come to their end.
    pub(crate) fn running(&self) -> impl Iterator<Item = i32> {
        self.processes.iter().filter(|(_, process)| !process.over).map(|(pid, _)| *pid)
    }

    /// All processes, in the order of their starts.
    pub(crate) fn into_processes(mut self) -> Vec<ProcessTruth> {
        self.ended.extend(self.processes.into_values().map(|process| (process.start, process.truth)));
        self.ended.sort_unstable_by_key(|(start, _)| *start);
        self.ended.into_iter().map(|(_, truth)| truth).collect()
    }

    fn holders(&mut self) -> impl Iterator<Item = &mut Process> {
        self.processes.values_mut().filter(|process| !process.over && !process.borrows)
    }

    fn read_all(&mut self, slow: bool) {
        if slow && let Some(limited) = &mut self.limited {
            limited.sample();
        }
        let page = self.page;
        let (mut anonymous, mut resident, mut page_tables, mut holders) = (0, 0, 0, 0);
        for process in self.holders() {
            process.read(page, slow);
            holders += 1;
            anonymous += process.now.anonymous;
            resident += process.now.all;
            page_tables += process.page_tables;
        }
        self.anonymous_all = self.anonymous_all.max(anonymous);
        self.resident_all = self.resident_all.max(resident);
        self.page_tables_all = self.page_tables_all.max(page_tables);
        // Shared memory shrinks when a page is written, and grows when a process starts.
        let shared = match self.shared {
            _ if holders == 1 => Some(0),
            Some((changes, shared)) if changes == self.changes => Some(shared),
            _ => None,
        };
        if let Some(shared) = shared {
            self.once = self.once.max(anonymous.saturating_sub(shared));
        }
        // Until the next walk.
        let shared = shared.or(self.shared.map(|(_, shared)| shared)).unwrap_or(0);
        self.once_now = anonymous.saturating_sub(shared);
        if holders > 0 {
            self.mean.add(Instant::now(), self.once_now);
        }
    }

    /// Walks the page tables when there is clearly more than at the last walk: while it grows, a sixth, so
    /// that all walks together cost a few times what the last one does; when it stops growing, or at the end
    /// of a process, 2 %. When the last process ends, any more will do.
    fn walk_if_due(&mut self, at_end: bool) {
        let now: u64 = self.holders().map(|process| process.now.anonymous).sum();
        let grows = now > std::mem::replace(&mut self.previous, now);
        let before = self.at_peak.as_ref().map_or(0, |peak| peak.anonymous);
        let is_stale = self.shared.is_none_or(|(changes, _)| changes != self.changes);
        let is_shared = is_stale && self.holders().count() > 1;
        let more = |part: u64| now > before + before / part + (64 << 10);
        let due = if at_end {
            more(50) || (now > before && self.holders().count() == 1)
        } else {
            let share = if self.folios { WALKING_FOLIOS } else { WALKING };
            let most = FIRST_WALKS + self.started.elapsed() / share;
            more(if grows { 6 } else { 50 }) && self.walking < most
                || is_shared && self.walking < most / FOR_SHARES
        };
        if !due {
            return;
        }
        let before_walk = processor_time();
        let pids: Vec<i32> =
            self.processes.iter().filter(|(_, p)| !p.over && !p.borrows).map(|(pid, _)| *pid).collect();
        let mut peak = AtPeak::default();
        for pid in pids {
            let Some(one) = Walk::of(pid) else { continue };
            peak.anonymous += one.anonymous;
            peak.once += one.once;
            peak.huge += one.huge;
            if self.folios {
                folios::add(pid, self.page, &mut peak.folios);
            }
        }
        self.once = self.once.max(peak.once);
        self.once_now = peak.once;
        self.shared = Some((self.changes, peak.anonymous.saturating_sub(peak.once)));
        if peak.anonymous > before {
            self.at_peak = Some(peak);
        }
        self.walking += processor_time().saturating_sub(before_walk);
    }
}

/// The CPU time of this thread.
pub(crate) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Process {
    fn read(&mut self, page: u64, slow: bool) {
        if let Some(now) = self.files.resident(page) {
            self.now = now;
        }
        if slow && let Some(status) = self.files.status() {
            self.now = Resident { anonymous: status.anonymous, all: status.resident };
            self.high = self.high.max(status.peak_resident);
            self.page_tables = status.page_tables;
            self.truth.program = status.program;
            self.truth.peak_resident = self.truth.peak_resident.max(status.peak_resident);
        }
        self.seen = self.seen.max(self.now.all);
        self.truth.peak_anonymous = self.truth.peak_anonymous.max(self.now.anonymous);
        self.truth.peak_resident = self.truth.peak_resident.max(self.now.all);
        self.truth.peak_page_tables = self.truth.peak_page_tables.max(self.page_tables);
    }
}
