//! The page cache of a replay: what Linux had in its own comes in before a touch that maps it.
//!
//! A read of a page that Linux had not cached is a major fault. Linux then reads it with others, without the
//! lock of the mapping, and makes the fault again: it maps what has come in around the page by then. The
//! recording has that after the touch. So the replay looks for it ahead, as far as the thread does nothing
//! else before. Where it has nothing, Linux read as much around the page as it reads ahead.

use super::RunningReplay;
use super::brought_in::{ACCESSIBLE, is_locked};
use super::work::looks_at;
use crate::ahead::Upcoming;
use crate::args::{Lock, Locking, PROTECTIONS, populates};
use crate::around::around;
use crate::overlap::pages_of;
use crate::page_set::PageSet;
use crate::space::HostSpace;
use crate::touch;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};
use quire_mm::space::{Mapping, VmFlags};
use quire_trace::event::{Access, Call, Event, EventKind, Fault, FileChange, FileEvent, Outcome, TaskId};
use std::ops::Range;

/// What Linux reads around a page if the host was not told otherwise, in bytes.
const READ_AHEAD: u64 = 128 << 10;
/// Events that are looked at ahead for what a touch made Linux read.
const MOST_AHEAD: u64 = 64;
/// The most pages that come in with a touch: those around it, and itself.
const MOST_BROUGHT: u64 = 17;
/// Pages that are looked at for each event where memory is short, beside those that are dropped.
const LOOKS_OF_EVENT: u64 = 64;

/// A mapping of an address space that is none of a file whose size is known: touches of it need nothing.
/// Until a call changes mappings.
#[derive(Clone, Debug, Default)]
pub(super) struct OtherMapping {
    space: usize,
    addrs: Range<u64>,
}

/// When what nothing maps is looked for again: events pay for the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unused {
    from: u64,
}

impl RunningReplay<'_> {
    /// Something is known of a file from here on.
    pub(super) fn file(&mut self, event: &FileEvent) {
        let (memory, files) = (self.machine.memory(), &mut self.files);
        self.vcpus[0].run(|| files.change(memory, event));
    }

    /// Brings pages into the cache for a touch that is about to be made.
    #[inline]
    pub(super) fn bring_around(&mut self, event: &Event, fault: &Fault, upcoming: Option<&mut dyn Upcoming>) {
        if self.files.any_known() || self.files.any_shared() {
            self.bring_known(event, fault, upcoming);
        }
    }

    fn bring_known(&mut self, event: &Event, fault: &Fault, upcoming: Option<&mut dyn Upcoming>) {
        // What was refused brings no page in.
        let was_allowed = touch::was_allowed(fault);
        if !was_allowed && !touch::may_have_mapped(fault) {
            return;
        }
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return };
        let Some(space) = &task.space else { return };
        let (addr, other) = (fault.addr, &self.other_mapping);
        let is_left_out = self.options.sample.as_ref().is_some_and(|sample| !sample.pressure.covers(addr));
        if is_left_out || other.space == task.number && other.addrs.contains(&addr) {
            return;
        }
        let Some(mapping) = mapping_at(space, addr).filter(|mapping| mapping.flags.intersects(ACCESSIBLE))
        else {
            return;
        };
        let addrs = mapping.range.start().0..mapping.range.end().0;
        let number = mapping.file.filter(|&number| self.files.opening(number).is_some());
        let Some(number) = number else {
            self.other_mapping = OtherMapping { space: task.number, addrs };
            return;
        };
        let page_at = |addr: u64| mapping.page_offset + ((addr - addrs.start) >> PAGE_SHIFT);
        let page = page_at(addr);
        let cpu = event.cpu as usize % self.vcpus.len();
        let around = || {
            let window = around(addr & !(PAGE_SIZE - 1), &addrs);
            page_at(window.start)..page_at(window.end - 1) + 1
        };
        if let Some(file) = self.files.shared(number) {
            let reads = reads(fault, &mapping);
            return self.vcpus[cpu].run(|| match fault.outcome {
                Outcome::Denied(_) => file.cut_at(page),
                // The kernel repeats a copy that may not sleep. So the page may be there.
                Outcome::Unresolved => {}
                _ => {
                    file.grow_to(page.saturating_add(1));
                    if reads {
                        file.read(space, page, around());
                    }
                }
            });
        }
        let extra = self.extra_charge();
        let Some(file) = self.files.known(number) else { return };
        if page >= file.pages() && was_allowed {
            self.vcpus[cpu].run(|| file.has_grown_to(page));
        }
        let mut read = PageSet::default();
        let is_known = file.is_cached(page);
        if was_allowed && !is_known {
            read_next(event, (self.event, file.place()), upcoming, &mut read);
            if read.len() == 0 {
                file.read_around(page, self.header.read_ahead.unwrap_or(READ_AHEAD), &mut read);
            }
        }
        match fault.outcome {
            // Linux counted whether it found the page. What came in by several touches can stand behind the
            // first of them, in one event.
            Outcome::Minor | Outcome::Unknown if is_known => {}
            Outcome::Minor => read.add(page..page + 1),
            // It comes in by the touch, which is a major fault.
            Outcome::Major | Outcome::Unknown => {
                read.remove(page..page + 1);
                file.was_not_cached(page);
            }
            Outcome::Denied(_) | Outcome::Unresolved => {}
        }
        let pages = if reads(fault, &mapping) { around() } else { page..page + 1 };
        if let Some(limit) = &self.options.limit {
            let coming = MOST_BROUGHT * PAGE_SIZE;
            limit.set_before(self.machine.memory(), &self.spaces_charge, &extra, coming);
        }
        self.vcpus[cpu].run(|| file.bring_in(space, pages, &read));
        if was_allowed {
            file.touched(page);
        }
    }

    /// Brings what Linux had cached into the cache for a call that is about to populate or lock it.
    pub(super) fn bring_for_call(&mut self, cpu: usize, task: TaskId, call: &Call) {
        let Some(Some(task)) = self.tasks.get(task.0 as usize) else { return };
        let Some(space) = &task.space else { return };
        if !(self.files.any_known() || self.files.any_shared()) || call.errno().is_some() {
            return;
        }
        let [first, second, third, flags, _, offset] = call.args;
        // Where a file ended before what is populated, the call failed; but for a new mapping, and for all.
        let mut ends = i64::from(call.number) != libc::SYS_mmap;
        let mut parts = Vec::new();
        let mut add = |range| parts.extend(files_in(space, range, ACCESSIBLE));
        match i64::from(call.number) {
            libc::SYS_mmap => {
                let at_once = flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) as u64 != 0;
                let comes = (at_once || is_locked(space.locks_future())) && third & PROTECTIONS != 0;
                let file = call.file().filter(|file| comes && self.files.knows(file));
                let number = file.map(|file| self.files.id(file.device, file.inode, &file.name));
                let page = offset >> PAGE_SHIFT;
                parts
                    .extend(number.map(|file| (file, page..page.saturating_add(second.div_ceil(PAGE_SIZE)))));
            }
            libc::SYS_madvise if populates(third) => add(pages_of(first, second)),
            _ => {
                if let Some(Locking { mapped: Some((range, Lock::Now)), .. }) =
                    Locking::of(call, &pages_of(first, second))
                {
                    if i64::from(call.number) == libc::SYS_mlockall {
                        ends = false;
                    }
                    add(range);
                }
            }
        }
        let none = PageSet::default();
        for (number, pages) in parts {
            if let Some(file) = self.files.shared(number).filter(|_| ends) {
                self.vcpus[cpu].run(|| file.grow_to(pages.end));
            } else if let Some(file) = self.files.known(number) {
                self.vcpus[cpu].run(|| file.bring_in(space, pages, &none));
            }
        }
    }

    /// `call`, which succeeded, was made: a hole that it made of files is known.
    pub(super) fn remove_by_call(&mut self, task: TaskId, call: &Call) {
        let [start, len, advice, ..] = call.args;
        let removes = i64::from(call.number) == libc::SYS_madvise && advice as i32 == libc::MADV_REMOVE;
        let Some(Some(task)) = self.tasks.get(task.0 as usize).filter(|_| removes) else { return };
        let Some(space) = &task.space else { return };
        for (number, pages) in files_in(space, pages_of(start, len), VmFlags::SHARED) {
            if let Some(file) = self.files.shared(number) {
                file.removed(pages.end - pages.start);
            } else if let Some(file) = self.files.known(number) {
                file.removed(pages);
            }
        }
    }

    /// Drops pages of files that nothing maps where memory is short, as Linux drops clean ones first.
    pub(super) fn drop_unused_files(&mut self) {
        if self.event < self.unused.from || !self.files.any_known() {
            return;
        }
        let (mut kept, files) = (0, &mut self.files);
        self.vcpus[0].run(|| {
            for file in files.all_known() {
                file.drop_unused();
                kept += 1 + file.cached();
            }
        });
        looks_at(kept);
        self.unused.from = self.event.saturating_add(kept / LOOKS_OF_EVENT);
    }

    /// The replay has ended: no file is open any more. How many there were is kept.
    pub(super) fn close_files(&mut self) {
        let files = std::mem::take(&mut self.files);
        self.known_files = files.known_count();
        self.vcpus[0].run(|| drop(files));
    }
}

/// The pages of files at `range` of `space`, as far as they are mapped with one of these flags.
fn files_in(space: &HostSpace<'_>, range: Range<u64>, flags: VmFlags) -> Vec<(u64, Range<u64>)> {
    let mut parts = Vec::new();
    space.mappings().for_each_in(VirtAddr(range.start), VirtAddr(range.end), |mapping| {
        let Some(file) = mapping.file.filter(|_| mapping.flags.intersects(flags)) else { return };
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        let page = |addr: u64| mapping.page_offset + ((addr - start) >> PAGE_SHIFT);
        parts.push((file, page(start.max(range.start))..page(end.min(range.end))));
    });
    parts
}

/// The mapping of `space` at `addr`.
fn mapping_at(space: &HostSpace<'_>, addr: u64) -> Option<Mapping> {
    let mut found = None;
    space.mappings().for_each_in(VirtAddr(addr), VirtAddr(addr.checked_add(1)?), |mapping| {
        found = Some(mapping);
    });
    found
}

/// Whether a touch reads a page of what `mapping` shows: as the touches are tried, where it is not known.
fn reads(fault: &Fault, mapping: &Mapping) -> bool {
    match fault.access {
        Access::Write => false,
        Access::Unknown => !mapping.flags.contains(VmFlags::WRITE),
        Access::Read | Access::Execute => true,
    }
}

/// Adds the pages of a file that Linux brought into its cache after `event`, which is event number `number`,
/// before its thread did anything else.
fn read_next(
    event: &Event,
    (number, file): (u64, (u64, u64)),
    upcoming: Option<&mut dyn Upcoming>,
    pages: &mut PageSet,
) {
    let Some(upcoming) = upcoming else { return };
    for at in number + 1..=number + MOST_AHEAD {
        let Some(later) = upcoming.near(at) else { return };
        match &later.kind {
            EventKind::File(change) => {
                if let FileChange::Cached(runs) = &change.change
                    && (change.device, change.inode) == file
                {
                    runs.iter().for_each(|run| pages.add(run.first..run.end()));
                }
            }
            _ if later.task == event.task => return,
            _ => {}
        }
    }
}
