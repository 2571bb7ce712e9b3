//! What a trace needs: found by looking it through once.
//!
//! The mappings of each address space are followed, and which pages come in: by touches, and by calls that
//! bring in what they name. So a machine has the RAM that these pages take under a setting of large folios,
//! with their tables, and what a recording only claims (a peak, a count in an event) adds nothing beyond its
//! mappings.

mod block;
mod budget;
mod calls;
mod file_pages;
mod layers;
mod layout;
mod pages;
mod shared;
mod space;
mod spare;
mod tables;
#[cfg(test)]
mod tests;

use super::cpus::cpus;
use super::far::{FarChange, FarChanges};
use super::sampled::SampledContents;
use super::task::can_be_made;
use block::{Demand, WAYS};
use budget::Budget;
pub use budget::Claims;
use file_pages::PlannedFiles;
use layers::Layers;
use layout::{Kind, USER_END, pages_of};
use quire_host::host_memory_available;
use quire_mm::file::ShmemHuge;
use quire_mm::space::Overcommit;
use quire_mm::thp::HugePolicy;
use quire_trace::event::{
    Compressibility, Denial, Event, EventKind, ExecImage, Fault, Limit, LimitKind, Outcome, Reuse,
    ReuseAccess, ReuseSource, TaskId,
};
use quire_trace::format::{Pressure, TraceHeader, UseSource};
use shared::SharedPeak;
use space::Image;
pub(super) use spare::SPARE_BYTES;
use spare::Spare;
use std::collections::HashMap;

/// What is known of a trace after it was looked through.
#[derive(Debug)]
pub struct Needs {
    events: u64,
    /// Of the last event.
    time_ns: u64,
    overcommit_mode: u8,
    /// Which address space each thread is in.
    spaces: HashMap<TaskId, usize>,
    /// Address spaces by the order in which they began.
    images: HashMap<usize, Image>,
    begun: usize,
    /// Calls are missing of the address spaces that had begun before so many.
    incomplete_before: usize,
    layers: Layers,
    files: PlannedFiles,
    /// What all need now, beside layers and files.
    now: Demand,
    /// Whether that has grown since the peaks were taken.
    grown: bool,
    /// The most that all needed, by the ways in which touches bring in: in memory that is not advised to have
    /// large folios, and in memory that is.
    peaks: Box<[[u64; WAYS]; WAYS]>,
    /// The most of shared memory.
    shared: SharedPeak,
    /// What a machine needs beside that.
    spare: Spare,
    budget: Budget,
    /// The event that brings in more than a recording may, if there is one. Nothing is planned from it on.
    too_much_at: Option<u64>,
    /// The first event that says what no program can have, and what that is.
    impossible: Option<(u64, &'static str)>,
    contents: SampledContents,
    /// How the recorder paged memory out, if it did: pages fault again and again, and little was resident.
    pressure: Option<Pressure>,
    /// The best source of uses that was seen.
    uses: Option<ReuseSource>,
    far: FarChanges,
    /// The recorder kept huge pages off.
    thp_turned_off: bool,
}

/// What is replayed of a recording under pressure, and stands for all of the program's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledPart {
    /// Which.
    pub(super) pressure: Pressure,
    /// How much of it.
    pub(super) share: f64,
}

impl SampledPart {
    /// What bytes of all memory are of the sample.
    pub(super) fn part(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.share) as u64
    }
}

/// RAM is planned in steps.
const STEP: u64 = 64 << 10;
/// What a replay keeps of a process until its end, in bytes: its figures, and the first differences.
const PROCESS_BYTES: u64 = 2048;
/// What it costs to make a mapping of a new image, in pages that are brought in.
const PAGES_OF_MAPPING: u64 = 4;
/// No plan is for more than 1 TiB.
const MOST_PAGES: u64 = 1 << (40 - 12);

impl Default for Needs {
    fn default() -> Self {
        Self {
            events: 0,
            time_ns: 0,
            overcommit_mode: 0,
            spaces: HashMap::new(),
            images: HashMap::new(),
            begun: 0,
            incomplete_before: 0,
            layers: Layers::default(),
            files: PlannedFiles::default(),
            now: Demand::default(),
            grown: false,
            peaks: Box::default(),
            shared: SharedPeak::default(),
            spare: Spare::default(),
            budget: Budget::FIRST,
            too_much_at: None,
            impossible: None,
            contents: SampledContents::default(),
            pressure: None,
            uses: None,
            far: FarChanges::default(),
            thp_turned_off: false,
        }
    }
}

impl Needs {
    /// Of a trace with this header, nothing of which was looked at yet.
    pub(super) fn of(header: &TraceHeader, claims: Claims) -> Self {
        Self {
            budget: Budget::of(claims),
            pressure: header.pressure,
            spare: Spare::of(cpus(header)),
            thp_turned_off: header.settings.as_ref().is_some_and(|settings| settings.thp_turned_off),
            ..Self::default()
        }
    }

    /// The first event that says what no program can have, by its number, and what that is.
    pub(super) fn impossible(&self) -> Option<(u64, &'static str)> {
        self.impossible
    }

    /// Whether no address space was found.
    pub fn is_empty(&self) -> bool {
        self.begun == 0
    }

    /// Number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The recorded time from the start of the recording to the last event, in nanoseconds.
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Bytes of RAM with which nothing runs short under `policy`: the most that the address spaces that live
    /// at once need together, an eighth more, and what a machine needs beside that, 64 MiB at most. Never
    /// more than some 1.1 TiB, whatever the trace claims.
    pub fn ram(&self, policy: HugePolicy) -> u64 {
        self.ram_with(policy, ShmemHuge::NEVER)
    }

    /// The same where folios of shared memory may be large.
    pub fn ram_with(&self, policy: HugePolicy, shmem: ShmemHuge) -> u64 {
        let [plain, advised] = [false, true].map(|advised| block::way(policy, advised));
        let pages = self.peaks[plain][advised].max(self.pages([plain, advised]));
        let mut shared = self.shared;
        shared.note(&self.files);
        let large = shared.pages_of_large(shmem);
        let pages = pages.saturating_add(large).min(MOST_PAGES);
        let mut spare = self.spare;
        spare.note(self.images.len(), [&self.now, &self.layers.demand]);
        let spare = spare.bytes(pages, [plain, advised]);
        ((pages + pages / 8) * 4096 + spare).next_multiple_of(STEP)
    }

    /// The most bytes of shared memory that touches and calls bring in at a time; and those that it has where
    /// all of it comes in folios of 2 MiB.
    pub fn shared(&self) -> (u64, u64) {
        let mut shared = self.shared;
        shared.note(&self.files);
        shared.bytes()
    }

    /// The number of the event, if there is one, with which events have brought in more pages together, or
    /// walked over more page tables, than is in proportion to their number: single events name as many as
    /// they like.
    pub fn too_much_at(&self) -> Option<u64> {
        self.too_much_at
    }

    /// How well the pages of all its programs compress, as far as that was recorded.
    pub fn compressibility(&self) -> &Compressibility {
        self.contents.sizes()
    }

    /// What the recorder paged out.
    pub(super) fn pressure(&self) -> Option<Pressure> {
        self.pressure
    }

    /// Changes that began long before they stand, by their numbers.
    pub(super) fn far_changes(&self) -> &[FarChange] {
        self.far.found()
    }

    /// What pages hold.
    pub(super) fn contents(&self) -> &SampledContents {
        &self.contents
    }

    /// What a trace with this header knows of pages that were used again. Where the header does not say, the
    /// events do.
    pub fn uses(&self, header: &TraceHeader) -> UseSource {
        match (header.uses, self.uses) {
            (UseSource::Unknown, None) => UseSource::None,
            (UseSource::Unknown, Some(ReuseSource::MappingCounts)) => UseSource::Sampled { interval_ms: 0 },
            (UseSource::Unknown, Some(ReuseSource::Exact)) => UseSource::Exact,
            (known, _) => known,
        }
    }

    /// The promise that Linux's policy in the trace allows.
    pub(super) fn overcommit(&self, header: &TraceHeader) -> Overcommit {
        let pages = |bytes: u64| bytes / u64::from(header.page_size.max(1));
        match self.overcommit_mode {
            1 => Overcommit::Always,
            // The ratio is not recorded: Linux's default is half of RAM, plus swap.
            2 => Overcommit::Never { limit_pages: pages((header.ram / 2).saturating_add(header.swap)) },
            _ => Overcommit::Guess { total_pages: Some(pages(header.ram.saturating_add(header.swap))) },
        }
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.time_ns = self.time_ns.max(event.time_ns);
        self.far.add(event);
        match &event.kind {
            EventKind::Exec(image) => {
                self.overcommit_mode = image.overcommit_memory;
                if let (None, Some(what)) = (self.impossible, super::image::impossible(image)) {
                    self.impossible = Some((self.events, what));
                }
            }
            EventKind::Reuse(reuse) if self.uses != Some(ReuseSource::Exact) => {
                self.uses = Some(reuse.source);
            }
            _ => {}
        }
        if self.too_much_at.is_none() {
            self.budget.event();
            self.follow(event);
        }
        if self.too_much_at == Some(self.events) {
            self.stop();
        }
        self.events += 1;
    }

    fn follow(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Fault(fault) => self.fault(event.task, fault),
            EventKind::Call(call) => self.call(event.task, call),
            EventKind::Exec(image) => {
                if !self.spaces.contains_key(&event.task) {
                    self.begin_process();
                }
                self.leave(event.task);
                self.exec(event.task, image);
            }
            EventKind::Clone(clone) if can_be_made(clone, event.task) => {
                if let Some(&space) = self.spaces.get(&event.task) {
                    if !clone.same_process {
                        self.begin_process();
                    }
                    if clone.shares_memory {
                        if let Some(image) = self.images.get_mut(&space) {
                            image.users += 1;
                        }
                        self.leave(clone.child);
                        self.spaces.insert(clone.child, space);
                    } else {
                        self.leave(clone.child);
                        self.fork(space, clone.child);
                    }
                }
            }
            EventKind::Reuse(reuse) => self.reuse(event.task, reuse),
            EventKind::Compressibility(sample) => self.contents.add_space(sample),
            EventKind::Contents(sample) => {
                if let Some(&space) = self.spaces.get(&event.task) {
                    let ok =
                        self.contents.add_region(space, self.events, sample, |bytes| self.budget.hold(bytes));
                    self.check(ok);
                }
            }
            EventKind::Limit(limit) if limit.kind == LimitKind::Stack => self.raise_stack(limit),
            EventKind::Exit(_) => self.leave(event.task),
            EventKind::File(file) => self.file(file),
            // Calls may be missing.
            EventKind::Lost(_) => self.incomplete_before = self.begun,
            _ => {}
        }
    }

    /// From now on stacks may have so much; what a thread of vfork shares keeps what it may have.
    fn raise_stack(&mut self, limit: &Limit) {
        if let Some(space) = self.spaces.get(&limit.target)
            && let Some(image) = self.images.get_mut(space)
        {
            image.most_stack = image.most_stack.max(limit.soft);
        }
    }

    fn begin_process(&mut self) {
        let ok = self.budget.hold(PROCESS_BYTES);
        self.check(ok);
    }

    /// Nothing is planned any more.
    fn stop(&mut self) {
        self.take_peaks();
        (self.spaces, self.images) = (HashMap::new(), HashMap::new());
        self.layers.clear();
        self.files = PlannedFiles::default();
    }

    fn fault(&mut self, task: TaskId, fault: &Fault) {
        let writes = match fault.access {
            quire_trace::event::Access::Write => Some(true),
            quire_trace::event::Access::Read | quire_trace::event::Access::Execute => Some(false),
            quire_trace::event::Access::Unknown => None,
        };
        match fault.outcome {
            Outcome::Denied(denial) => self.denied(task, fault.addr, (denial, writes)),
            _ => self.touch(task, fault.addr, writes),
        }
    }

    /// A touch that is denied brings its page not in. But it comes after a stack has grown, whose file may
    /// end there; and past the end of a file it has its table, and maps what is before the end.
    fn denied(&mut self, task: TaskId, addr: u64, (denial, writes): (Denial, Option<bool>)) {
        let Some(&space) = self.spaces.get(&task) else { return };
        let Some(image) = self.images.get_mut(&space) else { return };
        image.grow_stack(addr);
        if denial != Denial::NoBacking {
            return;
        }
        let file = image.layout.at(addr).and_then(|(_, kind)| kind.file);
        if image.touch_past_end(&mut self.budget, addr, writes) {
            self.recount(space);
        }
        if let Some(file) = file {
            self.cut(file);
        }
    }

    fn touch(&mut self, task: TaskId, addr: u64, writes: Option<bool>) {
        let Some(&space) = self.spaces.get(&task) else { return };
        let incomplete = space < self.incomplete_before;
        let Some(image) = self.images.get_mut(&space) else { return };
        image.incomplete |= incomplete;
        if image.touch(&mut self.budget, addr, writes) {
            self.recount(space);
        }
    }

    /// Changes the address space of a thread, which can need less then. `change` says whether there was
    /// little to look at.
    fn change(&mut self, task: TaskId, change: impl FnOnce(&mut Image, &mut Budget) -> bool) {
        let Some(&space) = self.spaces.get(&task) else { return };
        self.take_peaks();
        let incomplete = space < self.incomplete_before;
        if let Some(image) = self.images.get_mut(&space) {
            image.incomplete |= incomplete;
            let ok = change(image, &mut self.budget);
            self.check(ok);
        }
        self.recount(space);
    }

    /// Whether this event is still in proportion.
    fn check(&mut self, ok: bool) {
        if !ok {
            self.too_much_at.get_or_insert(self.events);
        }
    }

    /// The address space needs something else than when it was counted.
    fn recount(&mut self, space: usize) {
        let Some(image) = self.images.get_mut(&space) else { return };
        let (demand, bytes) = (image.demand(), image.bytes());
        self.now.subtract(&image.counted);
        self.now.add(&demand);
        image.counted = demand;
        self.budget.release(image.held);
        image.held = bytes;
        let (brought, changed) = (std::mem::take(&mut image.brought), image.layout.take_changed());
        let ok = self.budget.hold(bytes) && brought.iter().all(|brought| self.bring_in(brought));
        self.check(ok);
        self.files.note_mapped(&changed);
        self.grown = true;
    }

    /// Pages that all need now, by the ways in which touches bring in.
    fn pages(&self, ways: [usize; 2]) -> u64 {
        let programs = [&self.now, &self.layers.demand].map(|demand| demand.pages(ways));
        programs.into_iter().fold(self.files.pages(), u64::saturating_add)
    }

    fn take_peaks(&mut self) {
        if std::mem::take(&mut self.grown) {
            self.spare.note(self.images.len(), [&self.now, &self.layers.demand]);
            self.shared.note(&self.files);
            for plain in 0..WAYS {
                for advised in 0..WAYS {
                    let pages = self.pages([plain, advised]);
                    let peak = &mut self.peaks[plain][advised];
                    *peak = pages.max(*peak);
                }
            }
        }
    }

    fn reuse(&mut self, task: TaskId, reuse: &Reuse) {
        for run in &reuse.runs {
            // A replay tries each, mapped or not.
            let ok = self.budget.bring_in(run.pages);
            self.check(ok);
            if !ok {
                return;
            }
            let writes = run.access == ReuseAccess::Write;
            for addr in pages_of(run.start & !4095, run.pages.saturating_mul(4096)).step_by(4096) {
                self.touch(task, addr, Some(writes));
            }
        }
    }

    fn exec(&mut self, task: TaskId, recorded: &ExecImage) {
        let mut image = Image::new();
        image.brk = recorded.brk.checked_next_multiple_of(4096).unwrap_or(0);
        image.start_brk = recorded.start_brk;
        image.most_stack = recorded.limits.stack.soft;
        // As the replay installs them: what none can have, or lies over another, is left out with its pages.
        let mut installed = Vec::new();
        for mapping in &recorded.mappings {
            let range = mapping.start..mapping.end;
            let can_be = [range.start, range.end].iter().all(|place| place.is_multiple_of(4096))
                && !range.is_empty()
                && range.end <= USER_END;
            if can_be && image.layout.within(range.clone()).next().is_none() {
                let file = self.files.at((mapping.device, mapping.inode), mapping.offset, mapping.start);
                image.layout.set(range, Kind::of(mapping, file));
                installed.push(mapping);
            }
        }
        let mut left = super::image::MOST_RESIDENT;
        let (mut runs, mut named) = (0, 0_u64);
        for run in installed.iter().flat_map(|mapping| super::image::resident_runs(mapping)) {
            runs += 1;
            named = named.saturating_add(run.pages);
        }
        let made = (recorded.mappings.len() as u64).saturating_mul(PAGES_OF_MAPPING).saturating_add(runs);
        let ok = self.budget.bring_in(named.min(left).saturating_add(made));
        self.check(ok);
        if !ok {
            left = 0;
        }
        for run in installed.iter().flat_map(|mapping| super::image::resident_runs(mapping)) {
            let pages = run.pages.min(left);
            left -= pages;
            for page in 0..pages {
                image.touch(&mut self.budget, run.start + page * 4096, Some(!run.file));
            }
        }
        self.enter(task, image);
    }

    fn fork(&mut self, parent: usize, child: TaskId) {
        let (number, incomplete) = (self.begun, parent < self.incomplete_before);
        let Some(image) = self.images.get_mut(&parent) else { return self.enter(child, Image::new()) };
        image.incomplete |= incomplete;
        let shares = self.layers.fork(image, [parent, number], &mut self.budget);
        let copy = if shares { image.fork(&mut self.budget) } else { None };
        self.recount(parent);
        self.check(copy.is_some());
        self.enter(child, copy.unwrap_or_else(Image::new));
    }

    fn enter(&mut self, task: TaskId, image: Image) {
        let space = self.begun;
        self.begun += 1;
        self.images.insert(space, image);
        self.spaces.insert(task, space);
        self.recount(space);
    }

    fn leave(&mut self, task: TaskId) {
        let Some(space) = self.spaces.remove(&task) else { return };
        let Some(image) = self.images.get_mut(&space) else { return };
        image.users -= 1;
        if image.users > 0 {
            return;
        }
        self.take_peaks();
        let Some(image) = self.images.remove(&space) else { return };
        self.now.subtract(&image.counted);
        self.budget.blocks += image.own.blocks.len() as u64;
        self.budget.release(image.held);
        if let Some(top) = image.top {
            let (heir, ok) = self.layers.leave(top, space, &mut self.images, &mut self.budget);
            self.check(ok);
            if let Some(heir) = heir {
                self.recount(heir);
            }
        }
        self.files.note_mapped(&image.layout.into_left());
    }
}

/// RAM for a machine that needs so much, as far as half of what the host has left allows: a trace is only a
/// claim.
pub(super) fn affordable(needed: u64) -> u64 {
    if needed <= SPARE_BYTES {
        return needed;
    }
    let half = host_memory_available().map_or(u64::MAX, |bytes| bytes / 2 / STEP * STEP);
    needed.min(half.max(SPARE_BYTES))
}
