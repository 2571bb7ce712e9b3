//! Observes memory during a replay: figures, samples, and what holds memory.

use super::RunningReplay;
use super::brought_in::{ACCESSIBLE, is_locked};
use super::work::looks_at;
use crate::charge::{ExtraCharge, shared_bytes};
use crate::ends::SpaceEnd;
use crate::joint::{self, Mapped};
use crate::mappings::{self, MappingLife};
use crate::page_set::PageSet;
use crate::pressure::SwapFigures;
use crate::report::HeldMemory;
use crate::space::HostSpace;
use crate::task::{Task, Tasks};
use quire_arch::PAGE_SHIFT;
use quire_mm::space::{SpaceFigures, VmFlags};
use quire_trace::event::{LinuxFigures, TaskId};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Mappings that are looked at where processes end, and so many more for each event: many that end with many
/// do not take the square of their number.
const FREE_LOOKS: u64 = 1 << 22;
const LOOKS_OF_EVENT: u64 = 16;

impl RunningReplay<'_> {
    /// Takes Linux's figures of an address space, and Quire's of the same moment: until it is left, Linux may
    /// free a file that has no name any more, and the recording unmaps its pages.
    pub(super) fn figures(&mut self, task: TaskId, figures: &LinuxFigures) {
        let Some(Some(task)) = self.tasks.get(task.0 as usize) else { return };
        let report = &mut self.processes[task.process].report;
        report.add_linux(figures);
        self.ends.end((task.number, task.process), self.event, figures);
        if let Some(space) = &task.space {
            let replay = space.figures();
            report.add_quire(replay);
            self.ends.left(task.number, replay);
        }
    }

    /// Address space number `number` is about to be gone: takes Quire's figures of it, and what Linux had
    /// more.
    pub(super) fn compare_at_end(&mut self, number: usize, process: usize, space: &HostSpace<'_>) {
        let figures = space.figures();
        let end = self.ends.left(number, figures);
        // Where memory is limited what is missing may be swapped out.
        let end = end.filter(|_| !self.options.limited);
        let missing = end.map_or(0, |end| self.unrecorded_shared(number, &end, (space, &figures)));
        let report = &mut self.processes[process].report;
        report.add_quire(figures);
        report.unrecorded_shared = report.unrecorded_shared.max(missing);
    }

    /// What Linux has mapped of shared memory in address space number `number`, and no event brought in.
    fn unrecorded_shared(
        &mut self,
        number: usize,
        end: &SpaceEnd,
        (space, figures): (&HostSpace<'_>, &SpaceFigures),
    ) -> u64 {
        let known = end.shared.saturating_add(self.own_files.bytes(number));
        let missing = end.linux_shared.saturating_sub(known);
        if missing == 0 || !self.files.any_shared() {
            return missing;
        }
        let earned = FREE_LOOKS + LOOKS_OF_EVENT * self.event;
        if self.shared_looks.saturating_add(figures.mappings) > earned {
            // What was not looked at is held against nothing.
            return 0;
        }
        looks_at(figures.mappings);
        self.shared_looks += figures.mappings;
        // What a file had when it was mapped may be mapped around a touch.
        let mut around = 0;
        space.mappings().for_each(|mapping| {
            let file = mapping.file.and_then(|file| self.files.shared(file));
            around += file.map_or(0, |file| file.unplaced_within(mapping.range.pages()));
        });
        missing.saturating_sub(around << PAGE_SHIFT)
    }

    /// The memory of each mapping of each process now.
    pub(super) fn mappings(&self) -> Vec<MappingLife> {
        let mut found = Vec::new();
        for (task, space) in spaces(&self.tasks) {
            mappings::add(space, (task.process, task.number), &self.files, &self.sites, &mut found);
        }
        found
    }

    /// Ends the columns of the map of addresses that end before an event at `time_ns`, or all.
    pub(super) fn end_columns(&mut self, time_ns: Option<u64>) {
        if let Some(heat) = &mut self.heat {
            let spaces = spaces(&self.tasks).map(|(task, space)| (task.process, space));
            heat.end_columns(time_ns, spaces, &self.files);
        }
    }

    /// Counts what several processes have mapped before an event at `time_ns`.
    #[cold]
    pub(super) fn count_joint(&mut self, time_ns: u64) {
        let Some(joint) = &mut self.joint else { return };
        let mut mapped = Mapped::default();
        if self.forks.any() || self.files.any_shared() {
            let is_shared = |number| self.files.is_shared(number);
            let stays = |number| self.files.stays(number);
            let parts = spaces(&self.tasks).map(|(_, space)| joint::part_of(space, is_shared, stays));
            mapped = parts.fold(mapped, Mapped::and);
        }
        joint.count(time_ns, mapped);
    }

    /// What holds the machine's memory now.
    pub(super) fn held(&self) -> HeldMemory {
        let memory = self.machine.memory();
        let swapped = SwapFigures::of(memory);
        let mut held = HeldMemory {
            compressed_swap: swapped.ram_bytes,
            free: memory.frames().reports().totals().free << PAGE_SHIFT,
            shared: shared_bytes(memory, self.options.memcg)
                .saturating_add(self.files.beside_touches(self.event).unplaced),
            ..HeldMemory::default()
        };
        for (_, space) in spaces(&self.tasks) {
            let figures = space.figures();
            held.anonymous += figures.resident_anonymous;
            held.files += figures.resident_file;
            held.locked += figures.locked;
            held.page_tables += figures.page_tables;
        }
        if self.files.any_known() {
            // Each page once, and what nothing maps, too.
            held.files = self.files.cached() << PAGE_SHIFT;
        }
        held
    }

    /// `space` is now that of process number `process`.
    pub(super) fn own(&mut self, space: Option<&HostSpace<'_>>, process: usize) {
        if let (Some(life), Some(space)) = (&mut self.life, space) {
            life.own(space.id(), process);
        }
    }

    /// The thread ends after the last sample.
    pub(super) fn note_end(&mut self, task: TaskId) {
        let task = self.tasks.get(task.0 as usize).and_then(Option::as_ref);
        if let (Some(life), Some(0)) = (&mut self.life, task.map(|task| task.process)) {
            life.first_process_ends();
        }
    }

    /// Takes a sample of what is resident.
    #[inline]
    pub(super) fn look(&mut self) {
        if self.life.is_some() {
            self.sample();
        }
    }

    fn sample(&mut self) {
        let extra = self.extra_charge();
        if let Some(life) = &mut self.life {
            life.look(self.machine.memory(), self.options.memcg, (self.time_ns, self.event), &extra);
        }
    }

    /// What Linux would charge to the programs now beside the machine's memory.
    pub(super) fn extra_charge(&self) -> ExtraCharge {
        ExtraCharge {
            costs: self.options.requested.kernel,
            threads: self.threads,
            unplaced: self.files.beside_touches(self.event).unplaced,
            unmapped: self.files.beside_touches(self.event).unmapped,
            locked_files: self.locked_files,
        }
    }

    /// Counts the pages of files that are locked, each once, however often it is mapped. What is locked is
    /// there, and what a program writes of a private mapping is its own. Returns how many spaces
    /// and mappings were looked at.
    pub(super) fn count_locked_files(&mut self) -> u64 {
        let (mut resident, mut looked_at) = (0, 0);
        let mut files = HashMap::<u64, PageSet>::new();
        for space in self.lock_looks.spaces() {
            let figures = space.figures();
            space.mappings().for_each(|mapping| {
                let written = mapping.flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE;
                if let Some(file) = mapping.file
                    && is_locked(mapping.flags)
                    && mapping.flags.intersects(ACCESSIBLE)
                    && !written
                    && !self.files.is_shared(file)
                {
                    let pages = (mapping.range.end().0 - mapping.range.start().0) >> PAGE_SHIFT;
                    let first = mapping.page_offset;
                    files.entry(file).or_default().add(first..first.saturating_add(pages));
                }
            });
            looked_at += 1 + figures.mappings;
            resident += figures.resident_file;
        }
        let pages = files.values().fold(0, |sum: u64, pages| sum.saturating_add(pages.len()));
        looks_at(looked_at);
        self.locked_files = pages.saturating_mul(1 << PAGE_SHIFT).min(resident);
        looked_at
    }
}

/// The address spaces of `tasks`, each once, with the first thread that uses it.
pub(super) fn spaces<'t, 'm>(
    tasks: &'t Tasks<'m>,
) -> impl Iterator<Item = (&'t Task<'m>, &'t HostSpace<'m>)> {
    let mut seen = HashSet::new();
    let of = |task: &'t Task<'m>| task.space.as_ref().map(|space| (task, space));
    let each = tasks.all().map(|(_, task)| task).filter_map(of);
    each.filter(move |(_, space)| seen.insert(Rc::as_ptr(space))).map(|(task, space)| (task, &**space))
}
