//! Faults, uses and calls of a replay, and exhaustion of memory.

use super::file_pages::OtherMapping;
use super::work::looks_at;
use super::{ProcessState, RunningReplay, brought_in};
use crate::call::{self, Verdict};
use crate::mismatch::Gap;
use crate::names;
use crate::touch::{self, Found, Touched};
use quire_arch::{Access, PAGE_SHIFT, VirtAddr};
use quire_host::AccessError;
use quire_mm::abi::CallNumber;
use quire_mm::space::{Errno, Error, FaultError};
use quire_trace::event::{Call, Event, Fault, Reuse, ReuseAccess, TaskId};

impl RunningReplay<'_> {
    /// Touches memory where that stands.
    pub(super) fn fault_as_it_stands(&mut self, event: &Event, fault: &Fault) {
        self.bring_around(event, fault, None);
        if let Some(found) = self.touched(event, fault) {
            self.mismatch(event, fault, found);
        }
    }

    pub(super) fn mismatch(&mut self, event: &Event, fault: &Fault, found: String) {
        let number = self.event;
        if let Some(process) = self.process_of(event.task) {
            let (what, recorded) = (touch::describe(fault), touch::describe_recorded(fault));
            process.report.add_mismatch(number, what, recorded, found);
        }
    }

    /// Touches memory; what was found, if that is not what Linux found.
    #[inline]
    pub(super) fn touched(&mut self, event: &Event, fault: &Fault) -> Option<String> {
        let was_allowed = touch::was_allowed(fault);
        if self.options.sample.as_ref().is_some_and(|sample| !sample.pressure.covers(fault.addr)) {
            return None;
        }
        let cpu = self.switch(event);
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return None };
        let ProcessState { report: process, limits, .. } = &mut self.processes[task.process];
        process.faults += 1;
        if let Some(heat) = &mut self.heat {
            heat.touch(task.process, fault.addr);
        }
        let space = task.acting(limits)?;
        let before = space.resident_anonymous();
        if self.forks.any() {
            self.forks.touches(self.machine.memory());
        }
        let (found, wrote) = touch::make(&self.vcpus[cpu], &space, fault);
        let Some(translation) = found.ok().filter(|_| was_allowed) else {
            return self.judge_touch(event, fault, cpu, found);
        };
        let present = touch::was_present(fault, translation);
        // Where nothing is shared or followed, whether the page is in memory matters to none.
        if self.again.is_some() || wrote && self.forks.any() {
            let added_none = before == space.resident_anonymous();
            let is_there = added_none && (wrote || present);
            if is_there && !present && self.forks.any() {
                self.forks.wrote(self.machine.memory());
            }
            if let Some(again) = &mut self.again
                && (added_none || !again.has(self.machine.memory().resident_anonymous()))
            {
                again.touch(task.number, fault.addr, is_there);
            }
        }
        if present {
            process.already_present.add(translation);
        }
        if let Some(contents) = &mut self.contents
            && (wrote || contents.changes(task.number, fault.addr, self.event))
        {
            contents.fill(&self.vcpus[cpu].program(&*space), task.number, fault.addr, self.event);
        }
        None
    }

    /// What came of a touch that Linux refused, or that was refused here; what was found, if that is not what
    /// Linux found.
    #[cold]
    fn judge_touch(&mut self, event: &Event, fault: &Fault, cpu: usize, found: Found) -> Option<String> {
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return None };
        let number = task.process;
        let ProcessState { report: process, limits, .. } = &mut self.processes[number];
        let space = task.acting(limits)?;
        match touch::compare(&self.vcpus[cpu], &space, fault, found) {
            Touched::Same => self.keep_refused(event, fault),
            Touched::Present(found) => {
                process.already_present.add(found);
                self.keep_refused(event, fault);
            }
            Touched::Unsupported(what) => process.add_gap(Gap(what.to_owned())),
            Touched::OutOfMemory => self.exhausted(number, touch::describe(fault)),
            Touched::Differs(found) => return Some(found),
        }
        None
    }

    /// Uses pages again. The recorder sampled while the program ran, so a page may be unmapped by now.
    pub(super) fn reuse(&mut self, event: &Event, reuse: &Reuse) {
        let cpu = self.switch(event);
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return };
        let Some(space) = task.acting(&self.processes[task.process].limits) else { return };
        let program = self.vcpus[cpu].program(&*space);
        for run in &reuse.runs {
            let write = run.access == ReuseAccess::Write;
            let access = if write { Access::Write } else { Access::Read };
            for page in 0..run.pages {
                // Behind the last address there is none.
                let Some(addr) = run.start.checked_add(page << PAGE_SHIFT) else {
                    self.reuses_gone += 1;
                    continue;
                };
                let before = space.resident_anonymous();
                match program.touch(VirtAddr(addr), access) {
                    Ok(()) => {
                        self.reuses += 1;
                        if let Some(again) = &mut self.again {
                            let is_there = before == space.resident_anonymous();
                            if is_there || !again.has(self.machine.memory().resident_anonymous()) {
                                again.touch(task.number, addr, is_there);
                            }
                        }
                        if let Some(heat) = &mut self.heat {
                            heat.touch(task.process, addr);
                        }
                        if let Some(contents) = self.contents.as_mut().filter(|_| write) {
                            contents.fill(&program, task.number, addr, self.event);
                        }
                    }
                    Err(AccessError::Fault(FaultError::OutOfMemory(_))) => {
                        let process = task.process;
                        return self.exhausted(process, format!("use of {addr:#x}"));
                    }
                    Err(_) => self.reuses_gone += 1,
                }
            }
        }
    }

    /// Makes a call as it stands; `None` if its thread has no space.
    pub(super) fn verdict(&mut self, event: &Event, call: &Call) -> Option<(usize, Verdict)> {
        let cpu = self.schedule.cpu_of(event.task)?;
        self.other_mapping = OtherMapping::default();
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return None };
        let ProcessState { limits, locked, .. } = &mut self.processes[task.process];
        *locked |= brought_in::locks(call);
        let may_bring_in = *locked || brought_in::populates(call);
        let Some(space) = task.acting(limits) else {
            self.processes[task.process].report.calls += 1;
            return None;
        };
        let (number, process, program_break) = (task.number, task.process, space.program_break().0);
        let is_shared = |file| self.files.is_shared(file);
        let limit = self.options.limit;
        let coming = limit.map_or(0, |_| brought_in::files_brought_in(&space, call, is_shared));
        let limit = limit.filter(|_| coming > 0);
        if let Some(limit) = limit {
            looks_at(self.spaces_charge.update(self.machine.memory(), self.event));
            let extra = self.extra_charge();
            limit.set_before(self.machine.memory(), &self.spaces_charge, &extra, coming);
        }
        drop(space);
        if call.errno().is_none() {
            let (memory, files) = (self.machine.memory(), &mut self.files);
            self.vcpus[cpu].run(|| files.share(memory, call));
        }
        if may_bring_in {
            self.bring_for_call(cpu, event.task, call);
        }
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return None };
        let space = task.acting(&self.processes[process].limits)?;
        let resident = || {
            let figures = space.figures();
            figures.resident_anonymous + figures.resident_file + figures.resident_shmem
        };
        let before = if may_bring_in { resident() } else { 0 };
        let files = &mut self.files;
        let verdict = self.vcpus[cpu].run(|| call::replay(&space, call, files, self.same_settings));
        if may_bring_in {
            self.processes[process].report.populated += resident().saturating_sub(before) >> PAGE_SHIFT;
        }
        self.own_files.call(call);
        if let Some(again) = &mut self.again {
            again.has(self.machine.memory().resident_anonymous());
        }
        if self.options.requested.stop_at.is_some() {
            self.sites.note(number, &space, files, call);
        }
        drop(space);
        if let Some(limit) = limit {
            looks_at(self.spaces_charge.update(self.machine.memory(), self.event));
            limit.set(self.machine.memory(), &self.spaces_charge, &self.extra_charge());
        }
        let succeeded = call.errno().is_none() && matches!(verdict, Verdict::Same);
        if self.options.limited && succeeded && self.falls_short(event.task, call, program_break) {
            self.exhausted(process, names::of_form(CallNumber::from_raw(call.number), &call.args));
        }
        if succeeded && (self.files.any_known() || self.files.any_shared()) {
            self.remove_by_call(event.task, call);
        }
        Some((process, verdict))
    }

    /// Whether memory is short for private memory that `call`, which succeeded, brought in on Linux. The
    /// program break was at `program_break`. What fits is brought in.
    fn falls_short(&mut self, task: TaskId, call: &Call, program_break: u64) -> bool {
        let Some(space) = self.task(task).and_then(|task| task.space.clone()) else { return false };
        let Some(cpu) = self.schedule.cpu_of(task) else { return false };
        let parts = brought_in::brought_in(&space, call, program_break);
        let is_short = || {
            self.vcpus[cpu].run(|| {
                parts.iter().any(|(range, advice)| {
                    let (start, len) = (VirtAddr(range.start), range.end - range.start);
                    matches!(space.madvise(start, len, *advice), Err(Error::NoFrames(_)))
                })
            })
        };
        if !is_short() {
            return false;
        }
        // The limit has room for pages of files, but not yet for those that came in with this call.
        let Some(limit) = &self.options.limit else { return true };
        looks_at(self.spaces_charge.update(self.machine.memory(), self.event));
        limit.set(self.machine.memory(), &self.spaces_charge, &self.extra_charge());
        is_short()
    }

    /// Counts what a call came to.
    pub(super) fn judge(&mut self, process: usize, call: &Call, verdict: Verdict) {
        let report = &mut self.processes[process].report;
        report.calls += 1;
        match verdict {
            Verdict::Same => {}
            Verdict::DependsOnSettings => report.settings_dependent += 1,
            Verdict::Unsupported(gap) => report.add_gap(gap),
            // Linux had the memory for it. With less memory this is not a difference, but the end
            // of the replay.
            Verdict::Differs(found) if self.options.limited && is_for_want_of_memory(call, &found) => {
                self.exhausted(process, names::of_form(CallNumber::from_raw(call.number), &call.args));
            }
            Verdict::Differs(found) => {
                let name = names::of_call(CallNumber::from_raw(call.number));
                let args: Vec<String> = call.args.iter().map(|arg| format!("{arg:#x}")).collect();
                let what = format!("{name}({})", args.join(", "));
                report.add_mismatch(self.event, what, call::describe_recorded(call), found);
            }
        }
    }
}

/// Whether a call that succeeded on Linux failed here as calls fail when there is no memory.
fn is_for_want_of_memory(call: &Call, found: &str) -> bool {
    call.errno().is_none() && [Errno::ENOMEM, Errno::EAGAIN].iter().any(|errno| errno.to_string() == found)
}
