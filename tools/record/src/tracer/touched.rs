//! Finding touched pages where page faults are not reported.
//!
//! `/proc/PID/pagemap` says which pages are present. It is read before anything that removes pages; those
//! that were not present at the last read were touched in between. Nothing here has an effect if faults are
//! reported.

use super::Tracer;
use super::state::State;
use crate::merge::SpaceId;
use crate::proc::maps;
use crate::proc::pagemap::Pagemap;
use crate::ranges::{PageRange, pages_after_call, pages_before_call};
use crate::sys::time::{next_look, now};
use crate::sys::{Tid, ptrace};
use quire_trace::event::{Access, Denial, EventKind, ExecImage, Fault, Mode, Outcome, PageRun};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

const PAGE: u64 = 4096;
/// All spaces are scanned this often at most: pages that are freed before a scan are missing.
const LOOK_EVERY_NS: u64 = 20_000_000;
/// The pause after a round of scans is so many times as long as the round took.
const SHARE: u64 = 25;

/// The pages of each address space that were present at the last scan, by address.
#[derive(Debug, Default)]
pub(super) struct TouchedPages {
    known: HashMap<SpaceId, BTreeSet<u64>>,
    /// When all spaces are scanned again.
    next: u64,
}

impl TouchedPages {
    /// A space has ended.
    pub(super) fn forget(&mut self, space: SpaceId) {
        self.known.remove(&space);
    }

    /// Replaces the known pages of a range; returns the new ones, and whether each is a file's.
    fn update(&mut self, space: SpaceId, range: PageRange, runs: &[PageRun]) -> Vec<(u64, bool)> {
        let known = self.known.entry(space).or_default();
        let old: BTreeSet<u64> = known.range(range.start()..range.end()).copied().collect();
        for page in &old {
            known.remove(page);
        }
        let mut new = Vec::new();
        for run in runs {
            for addr in (0..run.pages).map(|page| run.start + page * PAGE) {
                known.insert(addr);
                if !old.contains(&addr) {
                    new.push((addr, run.file));
                }
            }
        }
        new
    }
}

impl Tracer<'_> {
    /// Scans a range; returns the new pages.
    fn look(&mut self, tid: Tid, space: SpaceId, range: PageRange) -> Vec<(u64, bool)> {
        let Some(touched) = &mut self.touched else { return Vec::new() };
        if range.is_empty() {
            return Vec::new();
        }
        let Some(pagemap) = Pagemap::open(tid) else { return Vec::new() };
        let mut runs = Vec::new();
        for mapping in maps::without_flags(tid) {
            let part = range.clip(mapping.start, mapping.end);
            if !part.is_empty() {
                runs.extend(pagemap.present(part.start(), part.end()));
            }
        }
        touched.update(space, range, &runs)
    }

    /// Scans a range and records the pages that were touched since the last scan.
    fn look_and_record(&mut self, tid: Tid, range: PageRange) {
        let Some(space) = self.tasks.get(&tid).map(|task| task.space) else { return };
        let new = self.look(tid, space, range);
        let faults = new.into_iter().map(|(addr, file)| {
            // A file's page was read. A private page was most likely written; but it may be one that is
            // no longer written, or the zero page.
            let access = if file { Access::Read } else { Access::Unknown };
            EventKind::Fault(Fault {
                addr,
                access,
                mode: Mode::User,
                outcome: Outcome::Unknown,
                inferred: true,
            })
        });
        let faults: Vec<EventKind> = faults.collect();
        if !faults.is_empty() {
            self.note(tid, now(), faults);
        }
    }

    /// Scans all spaces in which no thread is in a call from time to time. Pages that are populated and
    /// freed between two calls on them are resident together with others, which scans at calls alone do not
    /// show.
    pub(super) fn touched_in_between(&mut self, time: u64) {
        if !self.begun || self.touched.as_ref().is_none_or(|touched| time < touched.next) {
            return;
        }
        let busy: HashSet<SpaceId> = self
            .tasks
            .values()
            .filter(|task| {
                task.exiting
                    || !matches!(task.state, State::Running | State::Ignored | State::AwaitsCallLock(_))
            })
            .map(|task| task.space)
            .collect();
        // No thread enters a call while this one scans, so the layout is the one that the trace has by now.
        let idle: BTreeMap<SpaceId, Tid> = self
            .tasks
            .iter()
            .filter(|(_, task)| !busy.contains(&task.space))
            .map(|(tid, task)| (task.space, *tid))
            .collect();
        for tid in idle.into_values() {
            self.look_and_record(tid, PageRange::ALL);
        }
        if let Some(touched) = &mut self.touched {
            touched.next = next_look(time, now(), SHARE, LOOK_EVERY_NS);
        }
    }

    /// A call is going to change a range.
    pub(super) fn touched_before_call(&mut self, tid: Tid, number: u64, args: &[u64; 6]) {
        if self.touched.is_none() {
            return;
        }
        let space = self.tasks.get(&tid).and_then(|task| self.spaces.get(&task.space));
        let range = pages_before_call(number, args, space.map_or(0, |space| space.brk));
        self.look_and_record(tid, range);
    }

    /// A call has changed a range: the pages in it now were populated by the call.
    pub(super) fn touched_after_call(&mut self, tid: Tid, number: u64, args: &[u64; 6], result: i64) {
        if self.touched.is_none() {
            return;
        }
        let Some(space) = self.tasks.get(&tid).map(|task| task.space) else { return };
        let brk = self.spaces.get(&space).map_or(0, |space| space.brk);
        for range in pages_after_call(number, args, result, brk) {
            self.look(tid, space, range);
        }
    }

    /// A thread is going to make another one; if that gets a copy of memory, the pages must be
    /// known.
    pub(super) fn touched_before_clone(&mut self, tid: Tid, flags: u64) {
        if self.touched.is_some() && flags & libc::CLONE_VM as u64 == 0 {
            self.look_and_record(tid, PageRange::ALL);
        }
    }

    /// A new process has a copy of memory: it did not touch the pages that are present now.
    pub(super) fn touched_after_fork(&mut self, child: Tid, space: SpaceId) {
        if self.touched.is_some() {
            self.look(child, space, PageRange::ALL);
        }
    }

    /// A new program has begun.
    pub(super) fn touched_at_exec(&mut self, space: SpaceId, image: &ExecImage) {
        let Some(touched) = &mut self.touched else { return };
        let runs: Vec<PageRun> = image.mappings.iter().flat_map(|mapping| mapping.resident.clone()).collect();
        touched.update(space, PageRange::ALL, &runs);
    }

    /// An address space is about to end.
    pub(super) fn touched_before_end(&mut self, tid: Tid) {
        if self.touched.is_some() {
            self.look_and_record(tid, PageRange::ALL);
        }
    }

    /// An access was refused; the signal has its address.
    pub(super) fn touched_refused(&mut self, tid: Tid, addr: u64, denial: Denial, time: u64) {
        let pid = self.tasks.get(&tid).map_or(tid, |task| task.pid);
        let ip = ptrace::registers(tid).ok().flatten().map(|registers| registers.rip);
        let access = ip.map_or(Access::Unknown, |ip| self.accesses.find(pid, tid, Mode::User, addr, ip));
        let outcome = Outcome::Denied(denial);
        let fault = Fault { addr, access, mode: Mode::User, outcome, inferred: true };
        self.note(tid, time, vec![EventKind::Fault(fault)]);
    }
}
