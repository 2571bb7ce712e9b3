//! Paging out regions in FIFO order, so that later uses are page faults.
//!
//! A recording of first touches does not say which memory a program continues to use. Here regions of 2 MiB
//! (what one page table maps) are kept in the order in which their first page was faulted in. Whenever more
//! anonymous memory is resident than requested, the oldest regions are paged out, used or not. The next use
//! of each page is a page fault, which is recorded like any other. So each page in use is seen again before
//! twice as many others have been faulted in as may be resident. A replay with more memory than that knows
//! the order in which pages were used as far as its own LRU lists need it.
//!
//! Regions and not pages: `MADV_PAGEOUT` flushes the TLBs of all CPUs that run the program twice for each
//! range. With single pages of a program with random accesses that took 30 us a page in a virtual machine
//! with two CPUs.
//!
//! Before a region is paged out, some of its pages are compressed, so that the replay knows their contents at
//! that time: those that are paged out for the first time, and some of those that came back. Within a limit,
//! swap holds pages that are rarely used, which rarely or never came back; a sample of resident pages would
//! be one of pages in use.
//!
//! Pages that come in without a page fault are found by Linux's count (`recount`).
//!
//! No memory cgroup is involved, so no program is OOM-killed. Shared memory is paged out likewise, on any
//! tmpfs of which a file was mapped by a call. Pages that several processes have mapped, or that one has
//! mapped twice, are not (`MADV_PAGEOUT` leaves them), nor are those of files.

use super::Tracer;
use super::contents::Press;
use super::region::{PAGE, REGION_PAGES, Region, RegionPages};
use super::state::{State, users};
use super::turns::Turns;
use crate::PressureSummary;
use crate::merge::SpaceId;
use crate::perf::{PerfSample, SampleKind};
use crate::proc::maps;
use crate::proc::pagemap::Pagemap;
use crate::proc::status::{Stat, anonymous_pages, shared_pages};
use crate::sys::time::now;
use crate::sys::{Tid, memory, ptrace};
use quire_trace::event::{
    Access, ContentSample, EventKind, Fault, FileFacts, FileKind, Mode, Outcome, PageRun, PageSample,
};
use quire_trace::format::Pressure;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Where Linux has more pages than known by this part of those that may stay, they are looked for.
const UNKNOWN: u64 = 8;

/// Running threads are stopped during page-out if the resident pages beyond the target are more than this
/// part of it: they fault pages in faster than these are paged out.
const OVERRUN: u64 = 4;

/// Linux's count of shared memory is looked at so often at most.
const SHARED_NS: u64 = 20_000_000;

/// After a round that left too much resident, the pause is so many times as long as the round took.
const REST: u64 = 8;

/// The regions that have resident pages, in the order in which the first of these was faulted in.
#[derive(Debug)]
pub(super) struct Rotation {
    /// The state of page-out.
    pub(super) pressure: Pressure,
    /// Pages that may stay resident.
    pub(super) wanted: u64,
    queue: VecDeque<Region>,
    pub(super) regions: HashMap<Region, RegionPages>,
    /// Pages of all regions. Some may have been unmapped.
    pub(super) pages: u64,
    /// Linux's count is looked at again then.
    pub(super) next_count: u64,
    /// The pages of each region that were paged out and not faulted in since.
    out: HashMap<Region, RegionPages>,
    /// How often a region had its turn.
    turns: u64,
    /// How often each page was paged out.
    turns_of: HashMap<Region, Turns>,
    /// Linux's count of shared memory, in pages, and when it is looked at again.
    shared: (u64, u64),
    /// The devices of file systems in memory of which a file was mapped.
    in_memory: BTreeSet<u64>,
    /// The last round did not reach the target; the next one is not before this time.
    rests_until: u64,
    press: Press,
    /// What it did.
    pub(super) figures: PressureSummary,
}

impl Rotation {
    /// Keeps about so much resident.
    pub(super) fn new(pressure: Pressure) -> Self {
        Self {
            pressure,
            wanted: pressure.bytes / PAGE / u64::from(pressure.one_in.max(1)),
            queue: VecDeque::new(),
            regions: HashMap::new(),
            pages: 0,
            next_count: 0,
            out: HashMap::new(),
            turns: 0,
            turns_of: HashMap::new(),
            shared: (0, 0),
            in_memory: BTreeSet::new(),
            rests_until: 0,
            press: Press::with_zstd(),
            figures: PressureSummary::default(),
        }
    }

    /// A file with these facts is about to be mapped.
    pub(super) fn note_mapped(&mut self, facts: &FileFacts) {
        if facts.kind == FileKind::Memory && facts.file_system == libc::TMPFS_MAGIC as u64 {
            self.in_memory.insert(facts.device);
        }
    }

    /// Whether so many pages are more than it knows by far.
    pub(super) fn lacks(&self, anonymous: u64) -> bool {
        let one_in = u64::from(self.pressure.one_in.max(1));
        anonymous / one_in > self.pages + self.wanted / UNKNOWN
    }

    /// Whether one of these pages is not known.
    pub(super) fn lacks_one_of(&self, space: SpaceId, run: PageRun) -> bool {
        parts(self.pressure, run).any(|(region, mut pages)| {
            let known = self.regions.get(&(space, region));
            known.is_none_or(|known| pages.any(|page| !known.has(page)))
        })
    }

    /// These pages are resident. Those that had been paged out still count as such: no page fault told of
    /// their return.
    pub(super) fn note_resident(&mut self, space: SpaceId, run: PageRun) {
        for (region, pages) in parts(self.pressure, run) {
            let known = self.region((space, region));
            let new = pages.filter(|page| known.insert(*page)).count();
            self.pages += new as u64;
        }
    }

    /// A page fault was resolved without a device: the page's contents are new.
    fn is_new(&mut self, space: SpaceId, addr: u64) {
        let page = addr / PAGE;
        if let Some(turns) = self.turns_of.get_mut(&(space, page / REGION_PAGES)) {
            turns.renew(page);
        }
    }

    /// A page was faulted in. Returns whether it had been paged out.
    fn faulted_in(&mut self, space: SpaceId, addr: u64) -> bool {
        if !self.pressure.covers(addr) {
            return false;
        }
        let page = addr / PAGE;
        let region = (space, page / REGION_PAGES);
        let is_new = self.region(region).insert(page % REGION_PAGES);
        self.pages += u64::from(is_new);
        self.out.get_mut(&region).is_some_and(|out| out.remove(page % REGION_PAGES))
    }

    /// The known pages of a region, which then has a turn.
    pub(super) fn region(&mut self, region: Region) -> &mut RegionPages {
        let queue = &mut self.queue;
        self.regions.entry(region).or_insert_with(|| {
            queue.push_back(region);
            RegionPages::default()
        })
    }

    /// The next region, which has another turn when a page is faulted in, and the number of the turn.
    pub(super) fn next(&mut self) -> Option<(Region, u64)> {
        let region = self.queue.pop_front()?;
        self.turns += 1;
        self.pages -= self.regions.remove(&region).map_or(0, |pages| pages.count());
        Some((region, self.turns))
    }

    /// A region had its turn. Returns the addresses of pages that had been paged out before and were resident
    /// again without a page fault: the kernel used them for the program, e.g. for direct I/O.
    fn paged_out(&mut self, (space, region): Region, pages: &PagedOut) -> Vec<u64> {
        let out = self.out.entry((space, region)).or_default();
        let all = |runs: &[PageRun]| -> Vec<u64> {
            runs.iter().flat_map(|run| (run.start / PAGE..).take(run.pages as usize)).collect()
        };
        let present = all(&pages.present);
        let unseen = present.iter().filter(|page| out.remove(*page % REGION_PAGES)).map(|page| page * PAGE);
        let unseen = unseen.collect();
        for page in &present {
            out.insert(page % REGION_PAGES);
        }
        for page in all(&pages.stay) {
            self.faulted_in(space, page * PAGE);
        }
        unseen
    }

    /// So many bytes of anonymous memory are resident by Linux's count, which it does not have of a sample.
    pub(super) fn note_anonymous(&mut self, bytes: u64) {
        if !self.pressure.is_sample() {
            self.figures.most_resident = self.figures.most_resident.max(bytes);
        }
    }

    /// An address space has ended.
    pub(super) fn forget(&mut self, space: SpaceId) {
        // Its regions still have their turn, with no page.
        self.regions.retain(|(of, _), pages| {
            let stays = *of != space;
            self.pages -= if stays { 0 } else { pages.count() };
            stays
        });
        self.out.retain(|(of, _), _| *of != space);
        self.turns_of.retain(|(of, _), _| *of != space);
    }
}

/// Ranges (start and bytes) that have all anonymous pages among `present`, and none of a file or of a block
/// that is not paged out.
fn ranges(present: &[PageRun], pressure: &Pressure) -> Vec<(u64, u64)> {
    let block = |addr: u64| if pressure.is_sample() { addr >> pressure.block_shift } else { 0 };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut open = false;
    for run in present {
        let end = run.start + run.pages * PAGE;
        match ranges.last_mut() {
            // The pages between are not resident.
            Some((start, bytes)) if open && !run.file && block(*start) == block(run.start) => {
                *bytes = end - *start;
            }
            _ if !run.file => ranges.push((run.start, end - run.start)),
            _ => {}
        }
        open = !run.file;
    }
    ranges
}

/// Anonymous pages, or those of shared memory, among these.
fn anonymous(present: &[PageRun]) -> u64 {
    present.iter().filter(|run| !run.file).map(|run| run.pages).sum()
}

/// The result of paging a region out.
struct PagedOut {
    /// How many pages were paged out.
    gone: u64,
    /// Those that remained, though they may be paged out another time.
    stay: Vec<PageRun>,
    /// Those that were resident.
    present: Vec<PageRun>,
    /// Their contents, if some could be read.
    contents: Option<ContentSample>,
}

/// Which of these pages are paged out: of a sample only some blocks are.
pub(super) fn covered(pressure: &Pressure, present: Vec<PageRun>) -> Vec<PageRun> {
    if !pressure.is_sample() {
        return present;
    }
    let block = 1 << pressure.block_shift;
    let mut found = Vec::new();
    for PageRun { mut start, pages, file } in present {
        let end = start + pages * PAGE;
        while start < end {
            let next = ((start / block + 1) * block).min(end);
            if pressure.covers(start) {
                found.push(PageRun { start, pages: (next - start) / PAGE, file });
            }
            start = next;
        }
    }
    found
}

/// The same runs, of which those in these parts, which are shared memory, are none of a file.
fn with_shared(present: Vec<PageRun>, shared: &[(u64, u64)]) -> Vec<PageRun> {
    if shared.is_empty() {
        return present;
    }
    let mut found = Vec::new();
    for PageRun { start, pages, file } in present {
        let (mut from, end) = (start, start + pages * PAGE);
        let parts =
            shared.iter().filter(|_| file).map(|part| (part.0.clamp(start, end), part.1.clamp(start, end)));
        for (first, last) in parts.filter(|(first, last)| first < last) {
            for (start, end, file) in [(from, first, true), (first, last, false)] {
                if start < end {
                    found.push(PageRun { start, pages: (end - start) / PAGE, file });
                }
            }
            from = last;
        }
        if from < end {
            found.push(PageRun { start: from, pages: (end - from) / PAGE, file });
        }
    }
    found
}

/// Pages a region out. In another `round`, compresses others of its pages that were paged out
/// before.
fn page_out(
    pid: Tid,
    (region, turns): (u64, &mut Turns),
    round: u64,
    (pressure, in_memory): (&Pressure, &BTreeSet<u64>),
    press: &mut Press,
) -> Option<PagedOut> {
    let pagemap = Pagemap::open(pid)?;
    let (start, end) = (region * REGION_PAGES * PAGE, (region + 1) * REGION_PAGES * PAGE);
    // The kernel counts pages of shared memory among those of files.
    let look = || covered(pressure, pagemap.present(start, end));
    let mut present = look();
    let shared = match present.iter().any(|run| run.file) {
        true => maps::shared_memory(pid, (start, end), in_memory),
        false => Vec::new(),
    };
    present = with_shared(present, &shared);
    let found = press.those(pid, &present, |addr| turns.add(addr / PAGE, round));
    memory::page_out(pid, ranges(&present, pressure));
    let mut stay = look();
    let gone = anonymous(&present).saturating_sub(anonymous(&with_shared(stay.clone(), &shared)));
    // Shared memory that stays has no other turn: others have it mapped.
    stay.retain(|run| !run.file);
    present.retain(|run| !run.file);
    let (sizes, compressed, lz4_of_both, zstd) = (found.sizes, found.bytes, found.lz4_of_both, found.zstd);
    let pages = found.pages.into_iter();
    let pages = pages.map(|(addr, contents)| PageSample { page: ((addr - start) / PAGE) as u32, contents });
    let pages: Vec<PageSample> = pages.collect();
    let is_any = !pages.is_empty();
    let sample = ContentSample { start, bytes: end - start, sizes, compressed, lz4_of_both, zstd, pages };
    Some(PagedOut { gone, stay, present, contents: is_any.then_some(sample) })
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
    /// Page faults that were resolved.
    pub(super) fn note_faulted_in(&mut self, samples: &[PerfSample]) {
        let Some(rotation) = &mut self.rotation else { return };
        for sample in samples {
            let SampleKind::End { addr, major } = sample.what else { continue };
            // The thread may have ended, and its address space, too.
            let space = self.merger.space_of(sample.tid as Tid, sample.time);
            let Some(space) = space.filter(|space| self.spaces.contains_key(space)) else { continue };
            if !major {
                rotation.is_new(space, addr);
            }
            rotation.figures.pages_back += u64::from(rotation.faulted_in(space, addr));
        }
    }

    /// Pages out what is resident beyond the target.
    pub(super) fn rotate(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        if !self.begun || rotation.pages <= rotation.wanted {
            return;
        }
        let before = now();
        if before < rotation.rests_until {
            return;
        }
        let users = users(&self.tasks);
        // The count here still includes unmapped pages; Linux counts pages that a child shares with its
        // parent for each of them. For a sample Linux has no count.
        let pids = || users.values().map(|(_, pid)| *pid);
        let mut resident = rotation.pages;
        if !rotation.pressure.is_sample() {
            let mut all = pids().map(anonymous_pages).sum();
            if resident > all {
                if before >= rotation.shared.1 {
                    rotation.shared = (pids().map(shared_pages).sum(), before + SHARED_NS);
                }
                all += rotation.shared.0;
            }
            resident = resident.min(all);
        }
        rotation.figures.most_resident = rotation.figures.most_resident.max(resident * PAGE);
        let mut excess = resident.saturating_sub(rotation.wanted);
        if excess > rotation.wanted / OVERRUN {
            // They stop at once, and are resumed when this thread handles the stops, after the page-out.
            let running = self.tasks.iter().filter(|(tid, task)| {
                matches!(task.state, State::Running) && !task.exiting && Stat::read(**tid).runs
            });
            running.for_each(|(tid, _)| drop(ptrace::interrupt(*tid)));
        }
        let mut notes = Vec::new();
        // Each has its turn once: pages of a region may have to stay.
        for _ in 0..rotation.queue.len() {
            if excess == 0 {
                break;
            }
            let Some((region, turn)) = rotation.next() else { break };
            let (space, number) = region;
            let Some(&(tid, pid)) = users.get(&space) else { continue };
            let time = now();
            let turns = rotation.turns_of.entry(region).or_default();
            let what = (&rotation.pressure, &rotation.in_memory);
            let pages = page_out(pid, (number, turns), turn, what, &mut rotation.press);
            let Some(pages) = pages else { continue };
            excess = excess.saturating_sub(pages.gone);
            rotation.figures.pages_out += pages.gone;
            let unseen = rotation.paged_out(region, &pages).into_iter().map(|addr| {
                let (access, mode, outcome) = (Access::Unknown, Mode::Kernel, Outcome::Unknown);
                EventKind::Fault(Fault { addr, access, mode, outcome, inferred: true })
            });
            let mut kinds: Vec<EventKind> = unseen.collect();
            kinds.extend(pages.contents.map(|sample| EventKind::Contents(Box::new(sample))));
            if !kinds.is_empty() && self.spaces.get(&space).is_some_and(|space| !space.foreign) {
                notes.push((tid, time, kinds));
            }
        }
        let after = now();
        rotation.figures.took += Duration::from_nanos(after - before);
        if excess > 0 {
            // What is left cannot be paged out: it is shared, or the swap is full.
            rotation.rests_until = after + REST * (after - before);
        }
        for (tid, time, kinds) in notes {
            self.note(tid, time, kinds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    #[test]
    fn regions_go_in_the_order_in_which_they_came_in() {
        const REGION: u64 = REGION_PAGES * PAGE;
        let (one, other) = (SpaceId(0), SpaceId(1));
        let mut rotation = Rotation::new(Pressure::of(2 * PAGE));
        for (space, addr) in
            [(one, 9 * REGION + 5), (other, 9 * REGION), (one, 7 * REGION), (one, 9 * REGION)]
        {
            rotation.faulted_in(space, addr);
        }
        rotation.faulted_in(one, 10 * REGION - 1);
        assert_eq!((rotation.pages, rotation.next(), rotation.pages), (4, Some(((one, 9), 1)), 2));
        rotation.faulted_in(one, 9 * REGION + PAGE);
        let rest: Vec<Region> = std::iter::from_fn(|| rotation.next()).map(|(region, _)| region).collect();
        assert_eq!((rest, rotation.pages), (vec![(other, 9), (one, 7), (one, 9)], 0));
        assert!(rotation.regions.is_empty());
    }

    #[test]
    fn of_a_sample_only_its_regions_go() {
        let pressure = Pressure::of_sample(64 * PAGE, 4, 9);
        let mut rotation = Rotation::new(pressure);
        assert_eq!(rotation.wanted, 16);
        for region in 0..4000 {
            assert!(!rotation.faulted_in(SpaceId(0), region * REGION_PAGES * PAGE), "none was out");
        }
        let regions: Vec<u64> =
            std::iter::from_fn(|| rotation.next()).map(|((_, region), _)| region).collect();
        assert!(regions.len().abs_diff(1000) < 150, "{}", regions.len());
        assert!(regions.iter().all(|region| pressure.covers(region * REGION_PAGES * PAGE + 5)));
    }

    #[test]
    fn pages_that_came_in_without_a_fault_are_found() {
        let run = |page: u64, pages| PageRun { start: page * PAGE, pages, file: false };
        let gone = |present: &[PageRun], stay: &[PageRun]| PagedOut {
            gone: 0,
            stay: stay.to_vec(),
            present: present.to_vec(),
            contents: None,
        };
        let (one, other) = (SpaceId(0), SpaceId(1));
        let mut rotation = Rotation::new(Pressure::of(0));
        // Nothing is known of pages before their first turn: they were populated, or there at the exec.
        assert_eq!(rotation.paged_out((one, 0), &gone(&[run(0, 4)], &[run(3, 1)])), []);
        assert_eq!(rotation.pages, 1, "the one that stays");
        rotation.faulted_in(one, PAGE);
        assert_eq!(rotation.paged_out((one, 0), &gone(&[run(0, 2), run(3, 2)], &[])), [0]);
        assert_eq!(rotation.paged_out((other, 0), &gone(&[run(0, 2)], &[])), []);
        rotation.forget(one);
        assert_eq!(rotation.pages, 0);
        assert_eq!(rotation.paged_out((one, 0), &gone(&[run(0, 2)], &[])), []);
        assert_eq!(rotation.paged_out((other, 0), &gone(&[run(0, 1)], &[])), [0]);
    }

    #[test]
    fn what_came_in_anew_is_looked_at_again() {
        let mut rotation = Rotation::new(Pressure::of(0));
        let (space, page) = (SpaceId(1), 3 * REGION_PAGES + 7);
        let turns = |rotation: &mut Rotation, space, rounds: Range<u64>| {
            let turns = rotation.turns_of.entry((space, 3)).or_default();
            rounds.filter(|&round| turns.add(page, round)).count()
        };
        turns(&mut rotation, space, 0..100);
        let round = (100..).find(|&round| turns(&mut rotation, space, round..round + 1) == 0).unwrap();
        // Pages of another space at this address, and other pages, are separate.
        rotation.is_new(SpaceId(0), page * PAGE);
        rotation.is_new(space, (page + 1) * PAGE);
        assert_eq!(turns(&mut rotation, space, round..round + 1), 0);
        assert_eq!(turns(&mut rotation, SpaceId(0), round..round + 1), 1);
        rotation.is_new(space, page * PAGE + 5);
        assert_eq!(turns(&mut rotation, space, round..round + 1), 1);
        turns(&mut rotation, space, 0..100);
        rotation.forget(space);
        assert_eq!(turns(&mut rotation, space, round..round + 1), 1);
    }

    #[test]
    fn ranges_leave_files_out() {
        let run = |page: u64, pages, file| PageRun { start: page * PAGE, pages, file };
        let present =
            [run(1, 2, false), run(5, 1, false), run(6, 1, true), run(9, 1, false), run(11, 1, true)];
        let all = Pressure::of(0);
        assert_eq!(ranges(&present, &all), [(PAGE, 5 * PAGE), (9 * PAGE, PAGE)]);
        assert_eq!((anonymous(&present), ranges(&[], &all)), (4, Vec::new()));
    }

    #[test]
    fn shared_memory_is_none_of_a_file() {
        let run = |page: u64, pages, file| PageRun { start: page * PAGE, pages, file };
        let shared = [(2 * PAGE, 5 * PAGE), (7 * PAGE, 8 * PAGE), (20 * PAGE, 30 * PAGE)];
        let present = vec![run(0, 10, true), run(12, 2, false), run(15, 2, true), run(25, 2, true)];
        let found = with_shared(present.clone(), &shared);
        let expected = [
            run(0, 2, true),
            run(2, 3, false),
            run(5, 2, true),
            run(7, 1, false),
            run(8, 2, true),
            run(12, 2, false),
            run(15, 2, true),
            run(25, 2, false),
        ];
        assert_eq!(found, expected);
        assert_eq!(with_shared(present.clone(), &[]), present);
    }

    #[test]
    fn a_file_system_in_memory_is_known_by_a_file_that_was_mapped() {
        let mut rotation = Rotation::new(Pressure::of(0));
        let tmpfs = libc::TMPFS_MAGIC as u64;
        let all = [
            (FileKind::Memory, tmpfs, 30),
            (FileKind::Regular, 0xef53, 31),
            (FileKind::Directory, tmpfs, 32),
            (FileKind::Memory, 0x794c_7630, 33),
        ];
        for (kind, file_system, device) in all {
            rotation.note_mapped(&FileFacts { kind, file_system, device, ..FileFacts::default() });
        }
        assert_eq!(rotation.in_memory, BTreeSet::from([30]), "an overlay has files on disks as well");
    }

    #[test]
    fn blocks_that_are_not_of_the_sample_stay() {
        let run = |page: u64, pages| PageRun { start: page * PAGE, pages, file: false };
        let pressure = Pressure::of_sample(1 << 20, 3, 5).in_small_blocks();
        assert_eq!(pressure.block_shift, 16, "16 pages");
        let present = vec![run(3, 200), run(210, 2)];
        let found = covered(&pressure, present.clone());
        let pages = |runs: &[PageRun]| -> Vec<u64> {
            runs.iter().flat_map(|run| (run.start / PAGE..).take(run.pages as usize)).collect()
        };
        let mut expected = pages(&present);
        expected.retain(|page| pressure.covers(page * PAGE));
        assert_eq!(pages(&found), expected);
        assert!(expected.len() > 16 && expected.len() < 150, "{}", expected.len());
        for (start, bytes) in ranges(&found, &pressure) {
            assert!((0..bytes / PAGE).all(|page| pressure.covers(start + page * PAGE)));
        }
        assert_eq!(covered(&Pressure::of(0), present.clone()), present);
    }
}
