//! Finding resident pages that no page fault told of, so that they are paged out like the others.
//!
//! A call that populates brings pages in, `mremap` takes them to other addresses, a child has those of its
//! maker, and a sample may be lost. Linux's count of anonymous memory tells that there are more pages than
//! known; then the kernel is asked which. Pages that several processes have mapped are left out: they cannot
//! be paged out, and a server has those of all its children.

use super::Tracer;
use super::rotation::{PAGE, REGION_PAGES, Rotation, covered};
use super::state::{State, Task};
use crate::merge::SpaceId;
use crate::proc::pagemap::Pagemap;
use crate::proc::text;
use crate::sys::Tid;
use crate::sys::time::{next_look, now};
use quire_trace::event::PageRun;
use quire_trace::format::Pressure;
use std::collections::HashMap;
use std::ops::Range;

/// It is counted at most this often, and the pause is at least so many times as long as it took.
const EVERY_NS: u64 = 100_000_000;
const SHARE: u64 = 50;

/// Where Linux has more pages than known by this part of those that may stay, they are looked for.
const UNKNOWN: u64 = 8;

/// A thread of each space that is not in exec, and its process.
pub(super) fn users(tasks: &HashMap<Tid, Task>) -> HashMap<SpaceId, (Tid, Tid)> {
    let lasting = |task: &Task| !task.exiting && !matches!(task.state, State::InExec { .. });
    let lasting = tasks.iter().filter(|(_, task)| lasting(task));
    lasting.map(|(tid, task)| (task.space, (*tid, task.pid))).collect()
}

/// Anonymous pages of a process, from `/proc/PID/statm`; 0 if it has ended.
pub(super) fn anonymous_pages(pid: Tid) -> u64 {
    let text = text(pid, "statm");
    let mut words = text.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0));
    let (resident, shared): (u64, u64) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
    resident.saturating_sub(shared)
}

impl Rotation {
    /// Whether so many pages are more than it knows by far.
    fn lacks(&self, anonymous: u64) -> bool {
        let one_in = u64::from(self.pressure.one_in.max(1));
        anonymous / one_in > self.pages + self.wanted / UNKNOWN
    }

    /// Whether one of these pages is not known.
    fn lacks_one_of(&self, space: SpaceId, run: PageRun) -> bool {
        parts(self.pressure, run).any(|(region, mut pages)| {
            let known = self.regions.get(&(space, region));
            known.is_none_or(|known| pages.any(|page| !known.has(page)))
        })
    }

    /// These pages are resident. Those that had been paged out still count as such: no page fault told of
    /// their return.
    fn are_there(&mut self, space: SpaceId, run: PageRun) {
        for (region, pages) in parts(self.pressure, run) {
            let known = self.region((space, region));
            let new = pages.filter(|page| known.insert(*page)).count();
            self.pages += new as u64;
        }
    }
}

/// The regions of a run, as far as it is of the sample: the number of each, and which of its pages.
fn parts(pressure: Pressure, run: PageRun) -> impl Iterator<Item = (u64, Range<u64>)> {
    covered(&pressure, vec![run]).into_iter().flat_map(|PageRun { start, pages, .. }| {
        let (first, end) = (start / PAGE, start / PAGE + pages);
        (first / REGION_PAGES..end.div_ceil(REGION_PAGES)).map(move |region| {
            let begin = region * REGION_PAGES;
            (region, first.max(begin) - begin..end.min(begin + REGION_PAGES) - begin)
        })
    })
}

impl Tracer<'_> {
    /// Looks for resident pages that are not known, from time to time.
    pub(super) fn recount(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        let before = now();
        if !self.begun || before < rotation.next_count {
            return;
        }
        let users = users(&self.tasks);
        let counts: Vec<u64> = users.values().map(|(_, pid)| anonymous_pages(*pid)).collect();
        rotation.has(counts.iter().max().map_or(0, |most| most * PAGE));
        if rotation.lacks(counts.iter().sum()) {
            for (space, (_, pid)) in users {
                let Some(pagemap) = Pagemap::open(pid) else { continue };
                // Older kernels cannot be asked, and the words of all pages would take too long to read.
                pagemap.anonymous(|run| {
                    if rotation.lacks_one_of(space, run) {
                        pagemap.own(run).into_iter().for_each(|own| rotation.are_there(space, own));
                    }
                });
            }
        }
        rotation.next_count = next_look(before, now(), SHARE, EVERY_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_fault_told_of_has_its_turn() {
        let run = |page: u64, pages| PageRun { start: page * PAGE, pages, file: false };
        let (one, other) = (SpaceId(0), SpaceId(1));
        let mut rotation = Rotation::new(Pressure::of(16 * PAGE));
        assert!(rotation.lacks(3) && !rotation.lacks(2));
        rotation.are_there(one, run(REGION_PAGES - 2, REGION_PAGES + 4));
        rotation.are_there(other, run(0, 1));
        assert_eq!(rotation.pages, REGION_PAGES + 5);
        assert!(rotation.lacks_one_of(one, run(REGION_PAGES - 3, 2)));
        rotation.are_there(one, run(REGION_PAGES - 3, 2));
        assert!(!rotation.lacks_one_of(one, run(REGION_PAGES - 3, REGION_PAGES + 5)));
        assert!(rotation.lacks_one_of(other, run(1, 1)) && rotation.lacks_one_of(one, run(9000, 1)));
        assert!(rotation.pages == REGION_PAGES + 6 && !rotation.lacks(REGION_PAGES + 8));
        let regions = std::iter::from_fn(|| rotation.next()).map(|(region, _)| region);
        assert_eq!(regions.collect::<Vec<_>>(), [(one, 0), (one, 1), (one, 2), (other, 0)]);
        assert_eq!(rotation.pages, 0);
        // Of a sample some blocks.
        let mut rotation = Rotation::new(Pressure::of_sample(64 * PAGE, 4, 9));
        rotation.are_there(one, run(0, 400 * REGION_PAGES));
        let quarter = 100 * REGION_PAGES;
        assert!(rotation.pages.abs_diff(quarter) < quarter / 2, "{}", rotation.pages);
        assert!(!rotation.lacks(4 * rotation.pages) && rotation.lacks(8 * rotation.pages));
    }
}
