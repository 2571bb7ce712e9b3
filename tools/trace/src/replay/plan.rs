//! What a trace needs: found by looking it through once.

use super::call::populated_bytes;
use super::overcommit;
use super::sampled::SampledContents;
use crate::event::{Compressibility, Event, EventKind, Reuse, ReuseSource, TaskId};
use crate::format::{Pressure, TraceHeader, UseSource};
use quire_arch::Order;
use quire_mm::{space::Overcommit, thp::HugePolicy};
use std::collections::{HashMap, HashSet};

/// What is known of a trace after it was looked through.
#[derive(Debug, Default)]
pub struct Needs {
    events: u64,
    /// Of the last event.
    time_ns: u64,
    overcommit_mode: u8,
    /// Which address space each thread is in.
    spaces: HashMap<TaskId, usize>,
    images: Vec<Image>,
    contents: SampledContents,
    /// How the recorder paged memory out, if it did: pages fault again and again, and little was resident.
    pressure: Option<Pressure>,
    /// The best source of uses that was seen.
    uses: Option<ReuseSource>,
}

/// What is replayed of a recording under pressure, and stands for all of the program's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Which.
    pub(super) pressure: Pressure,
    /// How much of it.
    pub(super) share: f64,
}

impl Sample {
    /// What bytes of all memory are of the sample.
    pub(super) fn part(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.share) as u64
    }
}

/// One address space of the trace.
#[derive(Clone, Debug, Default)]
struct Image {
    /// Events between which it lives.
    born: u64,
    died: u64,
    users: u32,
    /// Pages that were touched in it: no more can be resident at once.
    touched: u64,
    /// PTE tables that these need: those of blocks that are known not one by one, and the blocks that are.
    tables: u64,
    blocks: HashSet<u64>,
    /// Some of its memory is to be of large folios (`MADV_HUGEPAGE`), so that a fault may bring in many
    /// pages.
    large_folios: bool,
    /// The most pages that one sample found in use. They may not have faulted: Linux also maps the pages
    /// around.
    reused: u64,
    /// Pages that are known to be used one by one.
    used: HashSet<u64>,
    /// The most that Linux had resident, where it was asked; counted loosely.
    resident: Option<u64>,
    /// The most that was mapped (`VmPeak`), in pages, where Linux was asked.
    mapped: Option<u64>,
}

/// Memory that a replay needs beside the program's: tables, slabs, lists, and Linux's watermarks.
const SPARE_BYTES: u64 = 64 << 20;
/// No replay gets more than 64 GiB unless it is told to: the numbers of a trace are only claims, and the
/// memory map alone, which the host must back at once, takes a 64th.
const MOST_PAGES: u64 = 64 << (30 - 12);

/// Advice after which a range is there as a whole.
const POPULATING_ADVICE: [i32; 3] =
    [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE, libc::MADV_COLLAPSE];

/// Advice that makes tables.
const MADV_GUARD_INSTALL: i32 = 102;

/// Pages of 2 MiB.
const PAGES_OF_HUGE: u64 = 512;

/// The most pages that one touch brings in under `policy`, in memory that is advised to have large folios or
/// in memory that is not. khugepaged makes as much of one page as a fault can.
fn pages_of_touch(policy: HugePolicy, advised: bool) -> u64 {
    policy.enabled_orders(advised).largest().map_or(1, Order::pages)
}

impl Image {
    /// A page is used.
    fn note_use(&mut self, page: u64) {
        if (self.used.len() as u64) < MOST_PAGES {
            self.used.insert(page);
        }
    }

    fn all_tables(&self) -> u64 {
        self.tables.saturating_add(self.blocks.len() as u64)
    }

    /// Pages that suffice under `policy`, their PTE tables included.
    fn pages(&self, policy: HugePolicy) -> u64 {
        let unadvised = pages_of_touch(policy, false);
        let of_each = if self.large_folios { unadvised.max(PAGES_OF_HUGE) } else { unadvised };
        let touched = self.touched.saturating_add(self.reused).saturating_add(self.used.len() as u64);
        let mapped = self.mapped.unwrap_or(u64::MAX);
        // What Linux had resident says nothing of other folios than the recorded ones.
        let resident = match self.resident {
            Some(pages) if of_each == 1 => pages + pages / 8 + 256,
            _ => u64::MAX,
        };
        let pages = touched.saturating_mul(of_each).min(mapped).min(resident);
        pages.saturating_add(self.all_tables()).min(MOST_PAGES)
    }
}

impl Needs {
    /// Of a trace with this header, nothing of which was looked at yet.
    pub(super) fn of(header: &TraceHeader) -> Self {
        Self { pressure: header.pressure, ..Self::default() }
    }

    /// Whether no address space was found.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The recorded time from the start of the recording to the last event, in nanoseconds.
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Bytes of RAM with which nothing runs short under `policy`: what the address spaces that live at once
    /// need together, and an eighth more. Never more than some 72 GiB, whatever the trace claims.
    pub fn ram(&self, policy: HugePolicy) -> u64 {
        let mut changes: Vec<(u64, i64)> = Vec::with_capacity(2 * self.images.len());
        for image in &self.images {
            let pages = image.pages(policy) as i64;
            changes.push((image.born, pages));
            changes.push((image.died, -pages));
        }
        // At one moment what is born counts before what dies.
        changes.sort_by_key(|&(event, pages)| (event, -pages));
        let mut now = 0;
        let most = changes.iter().map(|&(_, pages)| {
            now += pages;
            now
        });
        let pages = most.max().unwrap_or(0).clamp(0, MOST_PAGES as i64) as u64;
        ((pages + pages / 8) * 4096 + SPARE_BYTES).next_multiple_of(4 << 20)
    }

    /// How well the pages of all its programs compress, as far as that was recorded.
    pub fn compressibility(&self) -> &Compressibility {
        self.contents.sizes()
    }

    /// What the recorder paged out.
    pub(super) fn pressure(&self) -> Option<Pressure> {
        self.pressure
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

    pub(super) fn overcommit(&self, header: &TraceHeader) -> Overcommit {
        overcommit(self.overcommit_mode, header)
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.time_ns = self.time_ns.max(event.time_ns);
        match &event.kind {
            EventKind::Fault(fault) => {
                let pressed = self.pressure.is_some();
                if let Some(image) = self.image(event.task) {
                    if pressed {
                        image.note_use(fault.addr >> 12);
                    } else {
                        image.touched = image.touched.saturating_add(1);
                    }
                    if (image.blocks.len() as u64) < MOST_PAGES {
                        image.blocks.insert(fault.addr >> (12 + 9));
                    }
                }
            }
            EventKind::Call(call) => {
                let len = call.args[1];
                // POPULATE and LOCKED fault pages in without a fault event, and so do mlock and some advice.
                // A range that is collapsed to large folios is there as a whole afterwards.
                let advice = call.args[2] as i32;
                let number = i64::from(call.number);
                let bytes = if number == libc::SYS_mmap { populated_bytes(call) } else { len };
                let populates = match number {
                    libc::SYS_mmap => call.args[3] as i32 & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0,
                    libc::SYS_madvise => POPULATING_ADVICE.contains(&advice),
                    libc::SYS_mlock | libc::SYS_mlock2 => true,
                    _ => false,
                };
                if call.errno().is_none() && populates {
                    self.touch(event.task, bytes.div_ceil(4096));
                }
                if call.errno().is_none()
                    && (number, advice) == (libc::SYS_madvise, MADV_GUARD_INSTALL)
                    && let Some(image) = self.image(event.task)
                {
                    // Guards need tables, and no pages.
                    let tables = (len >> 12) / PAGES_OF_HUGE + 2;
                    image.tables = image.tables.saturating_add(tables);
                }
                if call.errno().is_none()
                    && (number, advice) == (libc::SYS_madvise, libc::MADV_HUGEPAGE)
                    && let Some(image) = self.image(event.task)
                {
                    image.large_folios = true;
                }
            }
            EventKind::Exec(image) => {
                self.overcommit_mode = image.overcommit_memory;
                self.leave(event.task);
                let resident = image.mappings.iter().flat_map(|mapping| &mapping.resident);
                let pages = resident.fold(0u64, |sum, run| sum.saturating_add(run.pages));
                self.enter(event.task, pages);
            }
            EventKind::Clone(clone) => {
                if let Some(&space) = self.spaces.get(&event.task) {
                    if clone.shares_memory {
                        self.images[space].users += 1;
                        self.spaces.insert(clone.child, space);
                    } else {
                        let parent = &self.images[space];
                        // A page that both used counts twice then, which is more than enough.
                        let touched = parent.touched.saturating_add(parent.used.len() as u64);
                        let large_folios = parent.large_folios;
                        let (tables, mapped) = (parent.all_tables(), parent.mapped);
                        let child = self.enter(clone.child, touched);
                        (child.large_folios, child.tables, child.mapped) = (large_folios, tables, mapped);
                    }
                }
            }
            EventKind::Figures(figures) => {
                let pressed = self.pressure.is_some();
                if let Some(image) = self.image(event.task) {
                    image.resident = (!pressed).then_some(figures.vm_hwm / 4096);
                    image.mapped = Some(figures.vm_peak / 4096);
                }
            }
            EventKind::Reuse(reuse) => self.reuse(event.task, reuse),
            EventKind::Compressibility(sample) => self.contents.add_space(sample),
            EventKind::Contents(sample) => {
                if let Some(&space) = self.spaces.get(&event.task) {
                    let number = self.events;
                    self.contents.add_region(space, number, sample);
                }
            }
            EventKind::Exit(_) => self.leave(event.task),
            _ => {}
        }
        self.events += 1;
    }

    /// The address space that a thread is in.
    fn image(&mut self, task: TaskId) -> Option<&mut Image> {
        let space = *self.spaces.get(&task)?;
        self.images.get_mut(space)
    }

    fn touch(&mut self, task: TaskId, pages: u64) {
        if let Some(image) = self.image(task) {
            image.touched = image.touched.saturating_add(pages);
            image.tables = image.tables.saturating_add(pages / PAGES_OF_HUGE + 1);
        }
    }

    fn reuse(&mut self, task: TaskId, reuse: &Reuse) {
        if self.uses != Some(ReuseSource::Exact) {
            self.uses = Some(reuse.source);
        }
        let Some(image) = self.image(task) else { return };
        match reuse.source {
            // A sample names what was in use together; the next one names most of it again.
            ReuseSource::MappingCounts => image.reused = image.reused.max(reuse.pages()),
            ReuseSource::Exact => {
                let pages = reuse.runs.iter().flat_map(|run| (run.start >> 12..).take(run.pages as usize));
                for page in pages {
                    image.note_use(page);
                }
            }
        }
    }

    fn enter(&mut self, task: TaskId, pages: u64) -> &mut Image {
        let (born, died) = (self.events, u64::MAX);
        self.images.push(Image { born, died, users: 1, touched: pages, ..Image::default() });
        let space = self.images.len() - 1;
        self.spaces.insert(task, space);
        &mut self.images[space]
    }

    fn leave(&mut self, task: TaskId) {
        if let Some(space) = self.spaces.remove(&task) {
            let image = &mut self.images[space];
            image.users -= 1;
            if image.users == 0 {
                image.died = self.events;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Access, Call, CallDetail, CloneFacts, ExitStatus, Fault, Mode, Outcome};

    const TASKS: [TaskId; 2] = [TaskId(0), TaskId(1)];

    fn step(needs: &mut Needs, task: usize, kind: EventKind) {
        needs.add(&Event { time_ns: 0, task: TASKS[task], cpu: 0, kind });
    }

    fn touch(needs: &mut Needs, task: usize, pages: u64) {
        for page in 0..pages {
            let fault = Fault {
                addr: page << 12,
                access: Access::Write,
                mode: Mode::User,
                outcome: Outcome::Minor,
                inferred: false,
            };
            step(needs, task, EventKind::Fault(fault));
        }
    }

    fn ram_of(pages: u64, tables: u64) -> u64 {
        let pages = pages + tables;
        ((pages + pages / 8) * 4096 + SPARE_BYTES).next_multiple_of(4 << 20)
    }

    #[test]
    fn only_spaces_that_live_at_once_add_up() {
        let mut needs = Needs::default();
        needs.enter(TASKS[0], 0);
        touch(&mut needs, 0, 10_000);
        let fork = CloneFacts {
            child: TASKS[1],
            child_tid: 2,
            child_pid: 2,
            flags: 0,
            shares_memory: false,
            same_process: false,
        };
        step(&mut needs, 0, EventKind::Clone(fork));
        assert_eq!(needs.ram(HugePolicy::MADVISE), ram_of(20_000, 40));
        step(&mut needs, 0, EventKind::Exit(ExitStatus::Code(0)));
        step(&mut needs, 1, EventKind::Exit(ExitStatus::Code(0)));
        needs.enter(TASKS[0], 15_000);
        assert_eq!(needs.ram(HugePolicy::MADVISE), ram_of(20_000, 40));
    }

    fn advise(needs: &mut Needs, len: u64, advice: u64) {
        let call = Call { number: 28, args: [0, len, advice, 0, 0, 0], result: 0, detail: CallDetail::None };
        step(needs, 0, EventKind::Call(call));
    }

    #[test]
    fn large_folios_bring_in_more_than_was_touched() {
        let mut needs = Needs::default();
        needs.enter(TASKS[0], 0);
        touch(&mut needs, 0, 40);
        advise(&mut needs, 20_000 << 12, 25);
        assert_eq!(needs.ram(HugePolicy::MADVISE), ram_of(20_040, 41), "a collapsed range is resident");
        let mut needs = Needs::default();
        needs.enter(TASKS[0], 0);
        advise(&mut needs, 20_000 << 12, 14);
        touch(&mut needs, 0, 40);
        assert_eq!(needs.ram(HugePolicy::MADVISE), ram_of(40 * 512, 1));
    }

    #[test]
    fn guards_need_tables() {
        let mut needs = Needs::default();
        needs.enter(TASKS[0], 0);
        touch(&mut needs, 0, 40);
        advise(&mut needs, 20_000 << 12, 102);
        assert_eq!(needs.ram(HugePolicy::MADVISE), ram_of(40, 1 + 20_000 / 512 + 2));
    }

    #[test]
    fn claims_without_bounds_give_a_bounded_machine() {
        let mut needs = Needs::default();
        for (number, task) in TASKS.into_iter().enumerate() {
            needs.enter(task, u64::MAX - 1);
            touch(&mut needs, number, 3);
        }
        assert_eq!(needs.ram(HugePolicy::MADVISE), ram_of(MOST_PAGES, 0));
    }
}
