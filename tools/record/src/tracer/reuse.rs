//! Sampling the reuse of pages, and how well they compress.
//!
//! Linux reports for each mapping how many of its pages were referenced since the last reset, not which
//! (`docs/trace-format.md` says why nothing finer is used). This module chooses which, by two properties of
//! most programs: pages that were used in one sample tend to be used in the next, and pages that are used
//! together are neighbours.

use super::Tracer;
use super::contents::Press;
use super::state::State;
use crate::merge::SpaceId;
use crate::proc::pagemap::{self, Pagemap};
use crate::proc::{Keyed, maps};
use crate::sys::Tid;
use crate::sys::time::{next_look, now};
use quire_trace::event::{EventKind, PageRun, Reuse, ReuseAccess, ReuseRun, ReuseSource, TaskId};
use quire_trace::mix::mix;
use std::collections::HashMap;
use std::fs;
use std::time::Duration;

const PAGE: u64 = 4096;
/// The pages of so many bytes are chosen together.
const GROUP_BYTES: u64 = 16 * PAGE;
/// Resets the accessed bits of pages. TLB entries stay, and accesses through them do not set the bit again.
const CLEAR_REFERENCED: &str = "1";
/// Resets the soft-dirty bits, where the kernel has them, and flushes the TLBs.
const CLEAR_SOFT_DIRTY: &str = "4";
/// Contents are sampled this often at most, at the end of a space a little sooner.
const CONTENTS_EVERY_NS: u64 = 1_000_000_000;
/// The pause after a round of samples is so many times as long as the round took. Samples at the end of
/// spaces, which cannot wait, together take no more than this part of the time.
const SHARE: u64 = 50;
/// The time that those may take beyond that: enough for a program that ends soon.
const ALLOWANCE_NS: u64 = 3_000_000;
/// What a first sample takes for each page table, at most: its entries are walked over three times, in 1.5 us
/// together where the caches have room for that.
const TABLE_NS: u64 = 4_000;
/// A sample at the end of a space comes so many times as long after the last one as that took, or not at all.
const PAUSE_BEFORE_END: u64 = 5;
/// The most pages whose contents are read in one sample: some 3 ms of work.
const MOST_CONTENTS: u64 = 256;

/// When a space is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReuseMoment {
    /// While it is in use.
    Between,
    /// Before an exec, which may fail.
    Exec,
    /// At its end.
    Exit,
}

/// The state of each address space.
#[derive(Debug, Default)]
struct SpaceSamples {
    /// The pages that were present at the last sample, by address. Empty before the first.
    present: Vec<PageRun>,
    /// Samples so far.
    samples: u64,
    /// When contents were last sampled, and how often.
    looked: u64,
    looks: u64,
    /// When the last sample was over, and how long it took.
    over: u64,
    took: u64,
}

/// Samples address spaces.
#[derive(Debug)]
pub(super) struct ReuseSampler {
    every_ns: u64,
    started: u64,
    next: u64,
    /// The time that samples at the end of spaces took.
    spent_at_ends: u64,
    /// Uses are sampled, not only contents.
    uses: bool,
    /// TLBs can be flushed without side effects: the kernel has no soft-dirty bits. If it had, the recorder
    /// would cause a fault at every page's next write.
    may_flush: bool,
    known: HashMap<SpaceId, SpaceSamples>,
    press: Press,
}

impl ReuseSampler {
    /// Samples each space once in `every`. Without `uses` only contents are sampled: then uses are known
    /// more exactly.
    pub(super) fn new(every: Duration, started: u64, uses: bool) -> Self {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self {
            every_ns,
            started,
            next: started.saturating_add(every_ns),
            spent_at_ends: 0,
            uses,
            may_flush: !pagemap::notes_writes(),
            known: HashMap::new(),
            press: Press::lz4(),
        }
    }

    /// When the next round of samples is, after one that took from `before` to `after`.
    fn next_round(&self, before: u64, after: u64) -> u64 {
        next_look(before, after, SHARE, self.every_ns)
    }

    /// The time that may have been spent outside of rounds until `time`.
    fn allowance(&self, time: u64) -> u64 {
        ALLOWANCE_NS.saturating_add(time.saturating_sub(self.started) / SHARE)
    }

    /// Whether a space with so many bytes of page tables may be sampled in a round. How long a first sample
    /// takes is only known from those.
    fn affords(&self, space: SpaceId, tables: impl FnOnce() -> u64, time: u64) -> bool {
        let is_known = self.known.get(&space).is_some_and(|known| known.samples > 0);
        is_known || walk_ns(tables()) <= self.allowance(time)
    }

    /// Whether such a space that ends may be sampled: not if that takes long, or took long and has just been
    /// done.
    fn affords_end(&self, space: SpaceId, tables: u64, time: u64) -> bool {
        let is_new = self.known.get(&space).is_none_or(|known| {
            time.saturating_sub(known.over) >= known.took.saturating_mul(PAUSE_BEFORE_END)
        });
        is_new && self.spent_at_ends.saturating_add(walk_ns(tables)) <= self.allowance(time)
    }

    /// A space has ended.
    pub(super) fn forget(&mut self, space: SpaceId) {
        self.known.remove(&space);
    }

    /// Samples a space: which pages were used since the last sample, and at times how they compress.
    fn sample(&mut self, tid: Tid, space: SpaceId, time: u64, moment: ReuseMoment) -> Vec<EventKind> {
        let known = self.known.entry(space).or_default();
        let Some(pagemap) = Pagemap::open(tid) else { return Vec::new() };
        known.samples += 1;
        let mut used = Vec::new();
        // Nothing is known to be used again in a first sample: the faults tell of all uses before. So what
        // was referenced is not asked for, which for many sparse mappings takes longer than all the rest.
        let all = if known.samples == 1 { pagemap.all() } else { None };
        let counted = if all.is_some() { Vec::new() } else { maps::referenced(tid) };
        let [mut present, filled] = all.unwrap_or_default();
        for mapping in counted {
            let runs = pagemap.present(mapping.start, mapping.end);
            let both = common(&runs, &known.present);
            // Pages that were not present at the last sample were used since: when they faulted, which
            // is recorded.
            let new = pages(&runs) - pages(&both);
            if self.uses {
                used.extend(choose(&both, mapping.pages.saturating_sub(new), known.samples));
            }
            present.extend(runs);
        }
        let mut kinds: Vec<EventKind> =
            Reuse::split(ReuseSource::MappingCounts, used).into_iter().map(EventKind::Reuse).collect();
        // An exec that fails is no end: a shell may try many paths for a program.
        let is_last = moment != ReuseMoment::Between;
        let every = if is_last { CONTENTS_EVERY_NS / 8 } else { CONTENTS_EVERY_NS };
        if time.saturating_sub(known.looked) >= every {
            (known.looked, known.looks) = (time, known.looks + 1);
            // Other pages in each sample.
            let filled = if filled.is_empty() { &present } else { &filled };
            let anonymous: u64 = filled.iter().filter(|run| !run.file).map(|run| run.pages).sum();
            let step = anonymous.div_ceil(MOST_CONTENTS).max(1);
            let sizes = self.press.one_in(tid, filled, step, mix(known.looks) % step).sizes;
            kinds.extend((sizes.pages() > 0).then_some(EventKind::Compressibility(sizes)));
        }
        known.present = present;
        if !self.uses || moment == ReuseMoment::Exit {
            return kinds;
        }
        // Last, since reading contents is a use, too. The process may have ended by now; then this does
        // nothing.
        let file = format!("/proc/{tid}/clear_refs");
        drop(fs::write(&file, CLEAR_REFERENCED));
        if self.may_flush {
            drop(fs::write(&file, CLEAR_SOFT_DIRTY));
        }
        kinds
    }
}

impl Tracer<'_> {
    /// Samples all spaces if it is time.
    pub(super) fn sample_reuse(&mut self, time: u64) {
        let Some(sampler) = &mut self.reuse else { return };
        if !self.begun || time < sampler.next {
            return;
        }
        let mut spaces: Vec<(SpaceId, TaskId, Tid)> = self
            .tasks
            .iter()
            .filter(|(_, task)| !task.exiting && !matches!(task.state, State::InExec { .. }))
            .filter(|(_, task)| self.spaces.get(&task.space).is_some_and(|space| !space.foreign))
            .map(|(tid, task)| (task.space, task.id, *tid))
            .collect();
        // One thread of each space: the oldest.
        spaces.sort_unstable();
        spaces.dedup_by_key(|(space, ..)| *space);
        for (space, _, tid) in spaces {
            if self.reuse.as_ref().is_some_and(|sampler| sampler.affords(space, || page_tables(tid), time)) {
                self.look_at_use(tid, space, ReuseMoment::Between);
            }
        }
        if let Some(sampler) = &mut self.reuse {
            sampler.next = sampler.next_round(time, now());
        }
    }

    /// An address space is about to end, or may be.
    pub(super) fn sample_reuse_before_end(&mut self, tid: Tid, moment: ReuseMoment) {
        let before = now();
        let Some(space) = self.tasks.get(&tid).map(|task| task.space) else { return };
        let affords =
            self.reuse.as_ref().is_some_and(|sampler| sampler.affords_end(space, page_tables(tid), before));
        if affords && self.spaces.get(&space).is_some_and(|space| !space.foreign) {
            self.look_at_use(tid, space, moment);
            if let Some(sampler) = &mut self.reuse {
                sampler.spent_at_ends += now().saturating_sub(before);
            }
        }
    }

    fn look_at_use(&mut self, tid: Tid, space: SpaceId, moment: ReuseMoment) {
        let Some(sampler) = &mut self.reuse else { return };
        // The program may meanwhile unmap pages that are found used.
        let time = now();
        let kinds = sampler.sample(tid, space, time, moment);
        if let Some(known) = sampler.known.get_mut(&space) {
            known.over = now();
            known.took = known.over.saturating_sub(time);
        }
        if !kinds.is_empty() {
            self.note(tid, time, kinds);
        }
    }
}

/// Bytes of page tables that the space of a thread has.
fn page_tables(tid: Tid) -> u64 {
    Keyed::status(tid).bytes("VmPTE")
}

/// How long it takes to walk over page tables of so many bytes.
fn walk_ns(tables: u64) -> u64 {
    (tables / PAGE).saturating_mul(TABLE_NS)
}

fn pages(runs: &[PageRun]) -> u64 {
    runs.iter().map(|run| run.pages).sum()
}

fn end(run: &PageRun) -> u64 {
    run.start + run.pages * PAGE
}

/// The intersection of two lists. Both are by address.
fn common(runs: &[PageRun], others: &[PageRun]) -> Vec<PageRun> {
    let mut both = Vec::new();
    let first = runs.first().map_or(0, |run| others.partition_point(|other| end(other) <= run.start));
    let mut others = others[first..].iter().peekable();
    for run in runs {
        while let Some(other) = others.peek() {
            let (from, to) = (run.start.max(other.start), end(run).min(end(other)));
            if from < to {
                both.push(PageRun { start: from, pages: (to - from) / PAGE, file: run.file });
            }
            // The other one may reach into the next run.
            if end(other) > end(run) {
                break;
            }
            others.next();
        }
    }
    both
}

/// Chooses so many pages of these, in whole groups of neighbours, for sample number `sample`. The larger the
/// part of the pages that is used, the more of the choice is the same in each sample; the rest is drawn anew.
fn choose(runs: &[PageRun], count: u64, sample: u64) -> Vec<ReuseRun> {
    let access = ReuseAccess::Unknown;
    let whole = |run: &PageRun| ReuseRun { start: run.start, pages: run.pages, access };
    let all = pages(runs);
    if count >= all {
        return runs.iter().map(whole).collect();
    }
    let mut groups = groups(runs);
    groups.sort_unstable_by_key(|group| (mix(group.start / GROUP_BYTES), group.start));
    let steady = (u128::from(count) * u128::from(count) / u128::from(all)) as u64;
    let mut taken = 0;
    let first = groups.iter().take_while(|group| {
        taken += group.pages;
        taken <= steady
    });
    let first = first.count();
    groups[first..]
        .sort_unstable_by_key(|group| (mix((group.start / GROUP_BYTES) ^ mix(sample)), group.start));
    let mut left = count;
    let mut chosen: Vec<PageRun> = Vec::new();
    for group in groups {
        if left == 0 {
            break;
        }
        chosen.push(PageRun { pages: group.pages.min(left), ..group });
        left -= group.pages.min(left);
    }
    chosen.sort_unstable_by_key(|run| run.start);
    let mut joined: Vec<ReuseRun> = Vec::new();
    for run in &chosen {
        match joined.last_mut() {
            Some(last) if last.start + last.pages * PAGE == run.start => last.pages += run.pages,
            _ => joined.push(whole(run)),
        }
    }
    joined
}

/// The runs, cut where groups of neighbours begin.
fn groups(runs: &[PageRun]) -> Vec<PageRun> {
    let mut groups = Vec::new();
    for run in runs {
        let mut start = run.start;
        while start < end(run) {
            let to = ((start / GROUP_BYTES + 1) * GROUP_BYTES).min(end(run));
            groups.push(PageRun { start, pages: (to - start) / PAGE, file: run.file });
            start = to;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(page: u64, pages: u64) -> PageRun {
        PageRun { start: page * PAGE, pages, file: false }
    }

    fn listed(runs: &[ReuseRun]) -> Vec<u64> {
        runs.iter().flat_map(|run| (run.start / PAGE..).take(run.pages as usize)).collect()
    }

    #[test]
    fn looks_take_a_small_part_of_the_time() {
        const MS: u64 = 1_000_000;
        let mut sampler = ReuseSampler::new(Duration::from_millis(100), 0, true);
        assert_eq!(sampler.next_round(0, MS), 101 * MS, "a short look changes nothing");
        assert_eq!(sampler.next_round(100 * MS, 110 * MS), 610 * MS);
        assert_eq!(sampler.next_round(0, u64::MAX), u64::MAX);
        let space = SpaceId(7);
        sampler.spent_at_ends = 20 * MS;
        assert!(!sampler.affords_end(space, 0, 800 * MS) && sampler.affords_end(space, 0, 900 * MS));
        sampler.spent_at_ends = 0;
        assert!(sampler.affords_end(space, 700 * PAGE, 0), "the first, if it is short");
        // After one that took 100 ms.
        sampler
            .known
            .insert(space, SpaceSamples { over: 1000 * MS, took: 100 * MS, ..SpaceSamples::default() });
        assert!(!sampler.affords_end(space, 0, 1499 * MS) && sampler.affords_end(space, 0, 1500 * MS));
        assert!(sampler.affords_end(SpaceId(8), 0, 1499 * MS));
    }

    /// Thousands of mappings with a page in each: a walk over their page tables takes as long as the program.
    #[test]
    fn a_first_sample_of_many_page_tables_waits_until_it_is_a_small_part_of_the_time() {
        const MS: u64 = 1_000_000;
        let mut sampler = ReuseSampler::new(Duration::from_millis(100), 0, true);
        let (space, tables) = (SpaceId(7), 10_000 * PAGE);
        assert!(sampler.affords(space, || 100 * PAGE, 100 * MS));
        assert!(
            !sampler.affords(space, || tables, 1840 * MS) && sampler.affords(space, || tables, 1860 * MS)
        );
        assert!(
            !sampler.affords_end(space, tables, 1840 * MS) && sampler.affords_end(space, tables, 1860 * MS)
        );
        // What others took counts at the end only: a round is followed by a pause.
        sampler.spent_at_ends = MS;
        assert!(
            !sampler.affords_end(space, tables, 1860 * MS) && sampler.affords(space, || tables, 1860 * MS)
        );
        sampler.known.insert(space, SpaceSamples { samples: 1, ..SpaceSamples::default() });
        assert!(sampler.affords(space, || tables, 100 * MS), "how long it takes is known now");
        assert!(!sampler.affords(SpaceId(8), || u64::MAX, 1000 * MS));
    }

    #[test]
    fn what_lists_have_in_common_is_found() {
        let runs = [run(10, 5), run(20, 5), run(40, 1)];
        assert_eq!(common(&runs, &[run(0, 100)]), runs);
        assert_eq!(
            common(&runs, &[run(0, 5), run(12, 10), run(24, 20)]),
            [run(12, 3), run(20, 2), run(24, 1), run(40, 1)]
        );
        assert_eq!(common(&runs, &[]), []);
        assert_eq!(common(&[], &runs), []);
    }

    #[test]
    fn so_many_pages_are_chosen_as_were_used() {
        let runs = [run(3, 100), run(200, 7), run(1000, 500)];
        let all = listed(&choose(&runs, u64::MAX, 0));
        for count in 0..=pages(&runs) + 1 {
            let chosen = listed(&choose(&runs, count, count % 3));
            assert_eq!(chosen.len() as u64, count.min(607));
            assert!(chosen.is_sorted() && chosen.iter().all(|page| all.contains(page)), "{count}");
        }
    }

    /// In a mapping that is used nearly whole, the same pages are chosen each time; in one that is little
    /// used, others.
    #[test]
    fn what_is_used_little_is_used_elsewhere_each_time() {
        let runs = [run(0, 16_000)];
        let shared = |count| {
            let [one, other] = [1, 2].map(|sample| listed(&choose(&runs, count, sample)));
            one.iter().filter(|page| other.binary_search(page).is_ok()).count() as u64
        };
        assert!(shared(15_000) > 14_000);
        assert!(shared(1600) < 800, "{}", shared(1600));
        assert!(shared(1600) >= 160, "{}", shared(1600));
    }
}
