//! Threads and processes of a replay: their beginning, their address spaces, their end.

use super::{ProcessState, RunningReplay, timed_audit};
use crate::digest::{self, Unreadable};
use crate::figures::{AllocatorFigures, ProcessReport};
use crate::image;
use crate::options::Audits;
use crate::settings;
use crate::space::HostSpace;
use crate::task::{Task, can_be_made};
use quire_host::AccessError;
use quire_mm::space::{Error, FaultError, Limits};
use quire_trace::event::{CloneFacts, Event, ExecImage, ExitStatus, Limit, LimitKind, Privileges, TaskId};
use quire_trace::mix::mix;
use std::rc::Rc;
use std::sync::Arc;

/// After this many processes only the last audit remains: each looks at all of RAM.
const MOST_AUDITS: usize = 64;
/// Bytes of an entry of a page table.
const ENTRY_BYTES: u64 = 8;
/// And after so many page-table entries and frames that audits have looked at.
const MOST_AUDITED: u64 = 1 << 27;

impl RunningReplay<'_> {
    pub(super) fn exec(&mut self, event: &Event, recorded: &ExecImage) {
        let process = match self.task(event.task) {
            Some(task) => task.process,
            // The first event of the trace: the root process.
            None => self.add_process(recorded.pid),
        };
        let cpu = self.switch(event);
        let old_space = self.task(event.task).and_then(|task| task.space.as_ref());
        let huge_disable = old_space
            .map_or_else(|| settings::first_huge_disable(&self.header), |old| old.prctl().huge_disable());
        self.leave_space(event.task);
        let vcpu = &self.vcpus[cpu];
        let (machine, memcg, files) = (self.machine, self.options.memcg, &mut self.files);
        let (space, failures) = vcpu.run(|| image::build(machine, recorded, huge_disable, memcg, files));
        // The first thread of all was in no process when it came to this CPU.
        self.processes[process].ran_on(event.cpu, self.header.cpus);
        let report = &mut self.processes[process].report;
        report.images += 1;
        report.program = String::from_utf8_lossy(&recorded.program).into();
        for failure in failures.words {
            report.add_mismatch(self.event, failure, "a new image", "part of it".to_owned());
        }
        if let Some(what) = failures.out_of_memory {
            self.exhausted(process, what);
        }
        match &space {
            Some(space) => self.load(cpu, space),
            None => self.idle(cpu),
        }
        self.own(space.as_ref(), process);
        self.processes[process].limits = image::limits_of(recorded);
        let rights = image::rights_of(recorded.privileges);
        let number = self.ends.made(self.event, None);
        self.own_files.exec(number, recorded);
        self.processes[process].report.images_in_memory |= self.own_files.bytes(number) > 0;
        let task = Task { process, number, space: space.map(Rc::new), rights };
        if self.put(event.task, task) {
            self.begin_thread(process);
        }
    }

    fn begin_thread(&mut self, process: usize) {
        self.threads += 1;
        self.processes[process].threads += 1;
        self.processes[process].report.threads += 1;
    }

    pub(super) fn clone_task(&mut self, event: &Event, clone: &CloneFacts) {
        let cpu = self.switch(event);
        if !can_be_made(clone, event.task) || self.task(event.task).is_none() {
            return;
        }
        // A damaged trace can also name one that lives.
        self.exit(clone.child, ExitStatus::Unknown);
        let Some(parent) = self.task(event.task) else { return };
        let (parent_process, parent_number) = (parent.process, parent.number);
        let (space, rights) = (parent.space.clone(), parent.rights);
        let limits = self.processes[parent_process].limits;
        let process = if clone.same_process { parent_process } else { self.add_process(clone.child_pid) };
        let mut failure = None;
        let space = match space {
            Some(space) if clone.shares_memory => Some(space),
            Some(space) => {
                self.vcpus[cpu].run(|| space.fork()).map_err(|error| failure = Some(error)).ok().map(Rc::new)
            }
            None => None,
        };
        if let Some(error) = failure {
            if matches!(error, Error::NoFrames(_)) {
                self.exhausted(parent_process, "fork".to_owned());
            } else {
                let report = &mut self.processes[process].report;
                report.add_mismatch(self.event, "fork".to_owned(), "a child", error.to_string());
            }
        }
        let mut number = parent_number;
        if !clone.shares_memory {
            if let Some(child) = &space {
                self.forks.forked(self.machine.memory(), child);
            }
            self.own(space.as_deref(), process);
            number = self.ends.made(self.event, Some(parent_number));
            self.sites.copy(parent_number, number);
            self.own_files.fork(parent_number, number);
            if let Some(contents) = &mut self.contents {
                contents.forked.extend([parent_number, number]);
            }
        }
        if !clone.same_process {
            let program = Arc::clone(&self.processes[parent_process].report.program);
            let child = &mut self.processes[process].report;
            child.program = program;
            child.images += 1;
        }
        self.begin_thread(process);
        self.processes[process].limits = limits;
        self.put(clone.child, Task { process, number, space, rights });
    }

    pub(super) fn limit(&mut self, limit: &Limit) {
        let Some(process) = self.process_of(limit.target) else { return };
        let limits = &mut process.limits;
        let field = match limit.kind {
            LimitKind::AddressSpace => &mut limits.address_space,
            LimitKind::Data => &mut limits.data,
            LimitKind::Stack => &mut limits.stack,
            LimitKind::LockedMemory => &mut limits.locked,
        };
        *field = limit.soft;
    }

    /// From now on a thread may do what `privileges` allow.
    pub(super) fn privileges(&mut self, task: TaskId, privileges: Privileges) {
        if let Some(Some(task)) = self.tasks.get_mut(task.0 as usize) {
            task.rights = image::rights_of(privileges);
        }
    }

    pub(super) fn exit(&mut self, task: TaskId, status: ExitStatus) {
        if let Some(cpu) = self.schedule.leave(task) {
            self.idle(cpu);
        }
        self.note_end(task);
        self.leave_space(task);
        let Some(task) = self.tasks.get_mut(task.0 as usize).and_then(Option::take) else { return };
        let process = &mut self.processes[task.process];
        process.threads -= 1;
        self.threads -= 1;
        if process.threads == 0 && status != ExitStatus::Replaced {
            self.end_process(task.process);
        }
    }

    /// A thread leaves its space. The last one takes the figures (others would take those of a vfork
    /// child's parent, or of a process that still runs), and the space exits.
    pub(super) fn leave_space(&mut self, task: TaskId) {
        let Some(Some(task)) = self.tasks.get_mut(task.0 as usize) else { return };
        let Some(space) = task.space.take() else { return };
        self.swap.note(self.machine.memory());
        let (process, number) = (task.process, task.number);
        if Rc::strong_count(&space) == 1 {
            self.compare_at_end(number, process, &space);
            self.own_files.leave(number);
            if self.options.requested.digest {
                self.digest(process, &space);
            }
        }
        self.vcpus[0].run(|| drop(space));
    }

    /// Adds the contents of a space to the digest of its process. A page that cannot be read any more
    /// is a finding.
    pub(super) fn digest(&mut self, process: usize, space: &HostSpace<'_>) {
        match digest::of(&self.vcpus[0], space) {
            Ok(digest) => {
                let report = &mut self.processes[process].report;
                report.digest = mix(report.digest ^ digest);
            }
            Err(Unreadable { addr, error }) => {
                let what = format!("the last look at {:#x}", addr.0);
                if let AccessError::Fault(FaultError::OutOfMemory(_)) = error {
                    return self.exhausted(process, what);
                }
                let report = &mut self.processes[process].report;
                report.add_mismatch(self.event, what, "has the page", error.to_string());
            }
        }
    }

    pub(super) fn add_process(&mut self, pid: u32) -> usize {
        self.processes.push(ProcessState {
            limits: Limits::default(),
            report: ProcessReport { pid, ..ProcessReport::default() },
            threads: 0,
            locked: false,
            allocator_at_start: AllocatorFigures::of(self.machine.memory()),
            cpus: 0,
        });
        self.processes.len() - 1
    }

    pub(super) fn end_process(&mut self, process: usize) {
        let process = &mut self.processes[process];
        let now = AllocatorFigures::of(self.machine.memory());
        process.report.allocator = now - process.allocator_at_start;
        let wanted = self.options.requested.audits == Audits::EachProcess && self.audits < MOST_AUDITS;
        if wanted && self.audited < MOST_AUDITED {
            let memory = self.machine.memory();
            self.audited += memory.frames().reports().totals().present;
            memory.for_each_resident(|_, resident| self.audited += resident.page_tables / ENTRY_BYTES);
            self.audits += 1;
            process.report.audit = timed_audit(self.machine, &mut self.auditing);
        }
    }
}
