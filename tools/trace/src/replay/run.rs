//! The state of a replay, and one step of it.

use super::Audits;
use super::call::{self, Verdict};
use super::contents::{self, PAGE_BYTES};
use super::digest::{self, Unreadable};
use super::figures::{AllocatorFigures, ProcessReport, TableFigures};
use super::files::FileIds;
use super::heat::Heat;
use super::image;
use super::life::Life;
use super::limit::GroupLimit;
use super::mappings::{self, MappingLife};
use super::names;
use super::plan::{Needs, Sample};
use super::pressure::{PressureFigures, SwapFigures};
use super::report::{DoesNotFit, Gap, HeldMemory, ReplayReport};
use super::sampled::page_id;
use super::schedule::Schedule;
use super::settings;
use super::sites::Sites;
use super::task::Task;
use super::touch::{self, Touched};
use crate::event::{
    CloneFacts, Event, EventKind, ExecImage, ExitStatus, Fault, Limit, LimitKind, LinuxFigures, LostCause,
    Privileges, Reuse, ReuseAccess, TaskId,
};
use crate::format::{TraceHeader, UseSource};
use crate::mix::mix;
use quire_arch::{Access, PAGE_SHIFT, Platform, VirtAddr};
use quire_host::{AccessError, HostPlatform, Machine, Program, Vcpu};
use quire_mm::abi::CallNumber;
use quire_mm::{
    Memory,
    memcg::MemcgId,
    space::{Errno, Error, FaultError, Limits, Space},
    thp::KhugepagedSetting,
};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is kept of a process beside its report.
struct Process {
    report: ProcessReport,
    limits: Limits,
    threads: u32,
    allocator_at_start: AllocatorFigures,
}

/// What a replay does beside replaying.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) audits: Audits,
    pub(super) digest: bool,
    /// The machine's memory was asked for, not what the trace needs.
    pub(super) limited: bool,
    /// Bytes of RAM with which nothing runs short.
    pub(super) suffices: u64,
    /// What the trace knows of pages that were used again.
    pub(super) uses: UseSource,
    /// Follow memory over the recorded time.
    pub(super) life: bool,
    /// Follow addresses, in so many columns of so many nanoseconds together.
    pub(super) heat: Option<(usize, u64)>,
    /// When khugepaged looks first, if it does.
    pub(super) khugepaged: Option<Duration>,
    /// Stop before the event of this number.
    pub(super) stop_at: Option<u64>,
    /// What all programs are charged to.
    pub(super) memcg: MemcgId,
    /// How much they may have.
    pub(super) limit: Option<GroupLimit>,
    /// The part of the memory that is replayed, where that is not all.
    pub(super) sample: Option<Sample>,
}

/// A replay under way.
pub(super) struct Run<'m> {
    machine: &'m Machine,
    vcpus: Vec<Vcpu>,
    schedule: Schedule,
    header: TraceHeader,
    /// The settings of huge pages are those that were recorded.
    same_settings: bool,
    /// By the number of the thread, which counts from 0.
    tasks: Vec<Option<Task<'m>>>,
    processes: Vec<Process>,
    files: FileIds,
    /// Where memory was mapped, for the mappings where it stops.
    sites: Sites,
    event: u64,
    /// The second of the recorded time up to which the timer ticked.
    second: u64,
    /// The recorded time of khugepaged's next step, if it takes any.
    khugepaged_at: Option<u64>,
    /// Of the last event.
    time_ns: u64,
    life: Option<Life>,
    heat: Option<Heat>,
    lost: u64,
    reuses: u64,
    reuses_gone: u64,
    /// Address spaces that the trace has made so far.
    spaces: usize,
    contents: Option<Writer>,
    how: Manner,
    swap: SwapFigures,
    does_not_fit: Option<DoesNotFit>,
    /// What mappings hold where it stops.
    mappings: Option<Vec<MappingLife>>,
    audited: usize,
    auditing: Duration,
}

/// The most threads that a recording can have at once is Linux's `PID_MAX_LIMIT`; more in all are not
/// expected.
const MOST_TASKS: usize = 1 << 22;
/// After this many processes only the last audit remains: each looks at all of RAM.
const MOST_AUDITS: usize = 64;
/// A sample of memory at least so often.
const FAULTS_BETWEEN_LOOKS: u64 = 1 << 12;
/// Recorded time between two events that counts as a pause.
const PAUSE_NS: u64 = 5_000_000;
/// The most steps that khugepaged makes up for after a pause: soon nothing is left to collapse.
const MOST_STEPS: u32 = 1000;

impl<'m> Run<'m> {
    pub(super) fn new(
        machine: &'m Machine,
        vcpus: Vec<Vcpu>,
        header: &TraceHeader,
        how: Manner,
        contents: Option<Arc<Needs>>,
    ) -> Self {
        if let Some(limit) = &how.limit {
            limit.set(machine.memory());
        }
        Self {
            machine,
            same_settings: settings::are_recorded(header, machine.memory().huge().policy()),
            schedule: Schedule::new(vcpus.len()),
            vcpus,
            header: header.clone(),
            tasks: Vec::new(),
            processes: Vec::new(),
            files: FileIds::default(),
            sites: Sites::default(),
            event: 0,
            second: 0,
            khugepaged_at: how.khugepaged.map(|first| first.as_nanos() as u64),
            time_ns: 0,
            life: how.life.then(Life::default),
            heat: how.heat.map(|(columns, time_ns)| Heat::new(columns, time_ns)),
            lost: 0,
            reuses: 0,
            reuses_gone: 0,
            spaces: 0,
            contents: contents.map(Writer::new),
            how,
            swap: SwapFigures::default(),
            does_not_fit: None,
            mappings: None,
            audited: 0,
            auditing: Duration::ZERO,
        }
    }

    /// Replays one event.
    pub(super) fn step(&mut self, event: &Event) {
        if self.how.stop_at == Some(self.event) {
            self.mappings = Some(self.mappings());
            return;
        }
        self.tick(event.time_ns);
        if self.heat.as_ref().is_some_and(|heat| heat.is_due(event.time_ns)) {
            self.end_columns(Some(event.time_ns));
        }
        // Faults only add, but a long run of them takes time, and after a pause they begin anew.
        let paused = event.time_ns > self.time_ns + PAUSE_NS;
        if paused {
            self.look();
        }
        self.khugepaged(event.time_ns);
        let is_fault = matches!(event.kind, EventKind::Fault(_));
        if paused || !is_fault || self.event.is_multiple_of(FAULTS_BETWEEN_LOOKS) {
            self.look();
        }
        match &event.kind {
            EventKind::Fault(fault) => self.fault(event, fault),
            EventKind::Call(call) => self.call(event, call),
            EventKind::Clone(clone) => self.clone_task(event, clone),
            EventKind::Exec(image) => self.exec(event, image),
            EventKind::Limit(limit) => self.limit(limit),
            EventKind::Figures(figures) => self.figures(event.task, figures),
            EventKind::Reuse(reuse) => self.reuse(event, reuse),
            EventKind::Compressibility(_) | EventKind::Contents(_) => {}
            EventKind::Privileges(privileges) => self.privileges(event.task, *privileges),
            EventKind::Exit(status) => self.exit(event.task, *status),
            EventKind::Lost(lost) => {
                if lost.cause == LostCause::RingFull {
                    self.lost = self.lost.saturating_add(lost.count);
                }
            }
            EventKind::Unsupported(_) => {
                if let Some(process) = self.process_of(event.task) {
                    process.report.add_gap(Gap("calls of the 32-bit ABI".to_owned()));
                }
            }
        }
        self.event += 1;
        if self.how.limited {
            self.reclaim_in_background();
        }
        if GroupLimit::is_due(self.event)
            && let Some(limit) = &self.how.limit
        {
            limit.set(self.machine.memory());
            self.swap.note(self.machine.memory());
        }
    }

    /// Takes Quire's figures of an address space at the moment at which the recorder took Linux's.
    fn figures(&mut self, task: TaskId, figures: &LinuxFigures) {
        let Some(Some(task)) = self.tasks.get(task.0 as usize) else { return };
        let report = &mut self.processes[task.process].report;
        report.add_linux(figures);
        if let Some(space) = &task.space {
            report.add_quire(space.figures());
        }
    }

    /// What each mapping of each process holds now.
    fn mappings(&self) -> Vec<MappingLife> {
        let mut found = Vec::new();
        for (task, space) in spaces(&self.tasks) {
            mappings::add(space, (task.process, task.number), &self.files, &self.sites, &mut found);
        }
        found
    }

    /// Ends the columns of the map of addresses that end before an event at `time_ns`, or all.
    fn end_columns(&mut self, time_ns: Option<u64>) {
        if let Some(heat) = &mut self.heat {
            let spaces = spaces(&self.tasks).map(|(task, space)| (task.process, space));
            heat.end_columns(time_ns, spaces, &self.files);
        }
    }

    /// What holds the machine's memory now.
    fn held(&self) -> HeldMemory {
        let memory = self.machine.memory();
        let swapped = SwapFigures::of(memory);
        let mut held = HeldMemory {
            compressed_swap: swapped.ram_bytes,
            free: memory.frames().totals().free << PAGE_SHIFT,
            ..HeldMemory::default()
        };
        for (_, space) in spaces(&self.tasks) {
            let figures = space.figures();
            held.anonymous += figures.resident_anonymous;
            held.files += figures.resident_file;
            held.locked += figures.locked;
            held.page_tables += figures.page_tables;
        }
        held
    }

    /// Whether it is to go no further. If memory is exhausted nothing that comes now would be what the programs did.
    pub(super) fn is_over(&self) -> bool {
        self.does_not_fit.is_some() || self.mappings.is_some()
    }

    /// What a thread of the machine does that sleeps until memory becomes short, in the time between two
    /// events.
    fn reclaim_in_background(&mut self) {
        let memory = self.machine.memory();
        if memory.frames().background_target() == 0 {
            return;
        }
        self.vcpus[0].run(|| {
            loop {
                let step = memory.kswapd_step();
                if step.missing == 0 || step.freed == 0 {
                    break;
                }
            }
        });
        self.swap.note(memory);
    }

    /// Process number `process` found no memory for `what`.
    fn exhausted(&mut self, process: usize, what: String) {
        if self.does_not_fit.is_some() {
            return;
        }
        let memory = self.machine.memory();
        let report = &self.processes[process].report;
        self.does_not_fit = Some(DoesNotFit {
            event: self.event,
            pid: report.pid,
            program: report.program.clone(),
            what,
            ram: memory.frames().totals().present << PAGE_SHIFT,
            limit: self.how.limit.map(|limit| limit.bytes),
            swap: memory.swap().total_slots() << PAGE_SHIFT,
            held: self.held(),
            suffices: self.how.suffices,
        });
    }

    /// The timer ticks once a second of the recorded time. After a longer pause it need not make up for all
    /// of it: soon nothing is kept back any more.
    fn tick(&mut self, time_ns: u64) {
        let second = time_ns / 1_000_000_000;
        let passed = second.saturating_sub(self.second);
        self.second = self.second.max(second);
        for _ in 0..passed.min(u64::from(Memory::<HostPlatform>::TICKS_TO_EMPTY) + 1) {
            self.machine.tick(&self.vcpus[0]);
        }
    }

    /// khugepaged keeps its pace in the recorded time.
    fn khugepaged(&mut self, time_ns: u64) {
        self.time_ns = self.time_ns.max(time_ns);
        let Some(mut at) = self.khugepaged_at.filter(|&at| at <= time_ns) else { return };
        let memory = self.machine.memory();
        let milliseconds = |setting| u64::from(memory.huge().khugepaged(setting)) * 1_000_000;
        self.look();
        for _ in 0..MOST_STEPS {
            let step = self.vcpus[0].run(|| memory.khugepaged_step());
            if let Some(life) = &mut self.life {
                life.collapsed(step.collapsed);
            }
            at += milliseconds(if step.out_of_memory {
                KhugepagedSetting::AllocSleepMillisecs
            } else {
                KhugepagedSetting::ScanSleepMillisecs
            });
            if at > time_ns {
                break;
            }
        }
        self.khugepaged_at = Some(at.max(time_ns + 1));
        self.look();
    }

    /// `space` is now that of process number `process`.
    fn own(&mut self, space: Option<&Space<'_, HostPlatform>>, process: usize) {
        if let (Some(life), Some(space)) = (&mut self.life, space) {
            life.own(space.id(), process);
        }
    }

    /// Takes a sample of what is resident.
    fn look(&mut self) {
        if let Some(life) = &mut self.life {
            life.look(self.machine.memory(), self.how.memcg, self.time_ns, self.event);
        }
    }

    /// The thread of `event` runs on the vCPU that the event names, which is the result. The vCPU that it
    /// comes from, if it does, is idle.
    fn switch(&mut self, event: &Event) -> usize {
        let cpu = event.cpu as usize % self.vcpus.len();
        if let Some(arrival) = self.schedule.enter(event.task, cpu) {
            if let Some(left) = arrival.left {
                self.idle(left);
            }
            match self.task(event.task).and_then(|task| task.space.as_ref()) {
                Some(space) => self.load(cpu, space),
                None => self.idle(cpu),
            }
        }
        cpu
    }

    /// Makes `space` the one that a vCPU runs.
    fn load(&self, cpu: usize, space: &Space<'_, HostPlatform>) {
        self.vcpus[cpu].run(|| space.activate(&self.machine.memory().platform().pin()));
    }

    /// Leaves a vCPU without a space.
    fn idle(&self, cpu: usize) {
        let memory = self.machine.memory();
        self.vcpus[cpu].run(|| memory.spaces().deactivate(&memory.platform().pin()));
    }

    fn task(&self, task: TaskId) -> Option<&Task<'m>> {
        self.tasks.get(task.0 as usize)?.as_ref()
    }

    /// Puts a thread into its place and tells whether the place was empty. A number that no Linux gives out
    /// can only come from a damaged trace: such a thread is left out.
    fn put(&mut self, task: TaskId, state: Task<'m>) -> bool {
        let index = task.0 as usize;
        if index >= MOST_TASKS {
            return false;
        }
        if index >= self.tasks.len() {
            self.tasks.resize_with(index + 1, || None);
        }
        self.tasks[index].replace(state).is_none()
    }

    fn process_of(&mut self, task: TaskId) -> Option<&mut Process> {
        let process = self.task(task)?.process;
        self.processes.get_mut(process)
    }

    fn fault(&mut self, event: &Event, fault: &Fault) {
        if self.how.sample.is_some_and(|sample| !sample.pressure.covers(fault.addr)) {
            return;
        }
        let cpu = self.switch(event);
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return };
        let Process { report: process, limits, .. } = &mut self.processes[task.process];
        process.faults += 1;
        if let Some(heat) = &mut self.heat {
            heat.touch(task.process, fault.addr);
        }
        let Some(space) = task.acting(limits) else { return };
        let (touched, wrote) = touch::replay(&self.vcpus[cpu], &space, fault);
        if let Touched::Present(found) = touched {
            process.already_present.add(found);
        }
        let found = match touched {
            Touched::Same | Touched::Present(_) => {
                let (number, event) = (task.number, self.event);
                if let Some(contents) = &mut self.contents
                    && touch::was_allowed(fault)
                    && (wrote || contents.changes(number, fault.addr, event))
                {
                    contents.fill(&self.vcpus[cpu].program(&*space), number, fault.addr, event);
                }
                return;
            }
            Touched::Unsupported(what) => return process.add_gap(Gap(what.to_owned())),
            Touched::OutOfMemory => {
                let process = task.process;
                return self.exhausted(process, touch::describe(fault));
            }
            Touched::Differs(found) => found,
        };
        process.add_mismatch(self.event, touch::describe(fault), touch::describe_recorded(fault), found);
    }

    /// Uses pages again. The recorder looked while the program went on, so that a page may be gone by now.
    fn reuse(&mut self, event: &Event, reuse: &Reuse) {
        let cpu = self.switch(event);
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return };
        let Some(space) = task.acting(&self.processes[task.process].limits) else { return };
        let program = self.vcpus[cpu].program(&*space);
        for run in &reuse.runs {
            let write = run.access == ReuseAccess::Write;
            let access = if write { Access::Write } else { Access::Read };
            for page in 0..run.pages {
                let addr = run.start.wrapping_add(page << PAGE_SHIFT);
                match program.touch(VirtAddr(addr), access) {
                    Ok(()) => {
                        self.reuses += 1;
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

    fn call(&mut self, event: &Event, call: &crate::event::Call) {
        let cpu = self.switch(event);
        let Some(Some(task)) = self.tasks.get(event.task.0 as usize) else { return };
        let Process { report: process, limits, .. } = &mut self.processes[task.process];
        process.calls += 1;
        let Some(space) = task.acting(limits) else { return };
        let files = &mut self.files;
        let verdict = self.vcpus[cpu].run(|| call::replay(&space, call, files, self.same_settings));
        if self.how.stop_at.is_some() {
            self.sites.note(task.number, &space, files, call);
        }
        match verdict {
            Verdict::Same => {}
            Verdict::DependsOnSettings => process.settings_dependent += 1,
            Verdict::Unsupported(gap) => process.add_gap(gap),
            // Linux had the memory for it. With less of it this is no difference but the end.
            Verdict::Differs(found) if self.how.limited && is_for_want_of_memory(call, &found) => {
                let process = task.process;
                self.exhausted(process, names::of_form(CallNumber::from_raw(call.number), &call.args));
            }
            Verdict::Differs(found) => {
                let name = names::of_call(CallNumber::from_raw(call.number));
                let args: Vec<String> = call.args.iter().map(|arg| format!("{arg:#x}")).collect();
                let what = format!("{name}({})", args.join(", "));
                process.add_mismatch(self.event, what, call::describe_recorded(call), found);
            }
        }
    }

    fn exec(&mut self, event: &Event, recorded: &ExecImage) {
        let process = match self.task(event.task) {
            Some(task) => task.process,
            // The first event of the trace: the root process.
            None => self.add_process(recorded.pid),
        };
        let cpu = self.switch(event);
        let old_space = self.task(event.task).and_then(|task| task.space.as_ref());
        let huge_disable =
            old_space.map_or_else(|| settings::first_huge_disable(&self.header), |old| old.huge_disable());
        self.leave_space(event.task);
        let vcpu = &self.vcpus[cpu];
        let (machine, memcg, files) = (self.machine, self.how.memcg, &mut self.files);
        let (space, failures) = vcpu.run(|| image::build(machine, recorded, huge_disable, memcg, files));
        let report = &mut self.processes[process].report;
        report.images += 1;
        report.program = String::from_utf8_lossy(&recorded.program).into_owned();
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
        let task = Task { process, number: self.next_number(), space: space.map(Rc::new), rights };
        if self.put(event.task, task) {
            self.processes[process].threads += 1;
            self.processes[process].report.threads += 1;
        }
    }

    /// The number of an address space that is made.
    fn next_number(&mut self) -> usize {
        self.spaces += 1;
        self.spaces - 1
    }

    fn clone_task(&mut self, event: &Event, clone: &CloneFacts) {
        let cpu = self.switch(event);
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
            self.own(space.as_deref(), process);
            number = self.next_number();
            self.sites.copy(parent_number, number);
            if let Some(contents) = &mut self.contents {
                contents.forked.extend([parent_number, number]);
            }
        }
        if !clone.same_process {
            let program = self.processes[parent_process].report.program.clone();
            let child = &mut self.processes[process].report;
            child.program = program;
            child.images += 1;
        }
        self.processes[process].threads += 1;
        self.processes[process].report.threads += 1;
        self.processes[process].limits = limits;
        self.put(clone.child, Task { process, number, space, rights });
    }

    fn limit(&mut self, limit: &Limit) {
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
    fn privileges(&mut self, task: TaskId, privileges: Privileges) {
        if let Some(Some(task)) = self.tasks.get_mut(task.0 as usize) {
            task.rights = image::rights_of(privileges);
        }
    }

    fn exit(&mut self, task: TaskId, status: ExitStatus) {
        if let Some(cpu) = self.schedule.leave(task) {
            self.idle(cpu);
        }
        self.leave_space(task);
        let Some(task) = self.tasks.get_mut(task.0 as usize).and_then(Option::take) else { return };
        let process = &mut self.processes[task.process];
        process.threads -= 1;
        if process.threads == 0 && status != ExitStatus::Replaced {
            self.end_process(task.process);
        }
    }

    /// A thread gives its space up. The last one takes the figures (others would count those of the process
    /// that a child of vfork came from, or of a process in its middle), and the space exits.
    fn leave_space(&mut self, task: TaskId) {
        let Some(Some(task)) = self.tasks.get_mut(task.0 as usize) else { return };
        let Some(space) = task.space.take() else { return };
        self.swap.note(self.machine.memory());
        let process = task.process;
        if Rc::strong_count(&space) == 1 {
            self.processes[process].report.add_quire(space.figures());
            if self.how.digest {
                self.digest(process, &space);
            }
        }
        self.vcpus[0].run(|| drop(space));
    }

    /// Adds what a space holds to the digest of its process. A page that cannot be read any more is a
    /// finding.
    fn digest(&mut self, process: usize, space: &Space<'_, HostPlatform>) {
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

    fn add_process(&mut self, pid: u32) -> usize {
        self.processes.push(Process {
            limits: Limits::default(),
            report: ProcessReport { pid, ..ProcessReport::default() },
            threads: 0,
            allocator_at_start: AllocatorFigures::of(self.machine.memory()),
        });
        self.processes.len() - 1
    }

    fn end_process(&mut self, process: usize) {
        let process = &mut self.processes[process];
        let now = AllocatorFigures::of(self.machine.memory());
        process.report.allocator = now - process.allocator_at_start;
        if self.how.audits == Audits::EachProcess && self.audited < MOST_AUDITS {
            self.audited += 1;
            process.report.audit = timed_audit(self.machine, &mut self.auditing);
        }
    }

    /// Ends whatever still lives, audits the empty machine, and reports.
    pub(super) fn finish(mut self, elapsed: Duration) -> ReplayReport {
        self.look();
        self.end_columns(None);
        // It was to stop at the end.
        if self.how.stop_at.is_some() && self.mappings.is_none() {
            self.mappings = Some(self.mappings());
        }
        for task in (0..self.tasks.len() as u32).map(TaskId) {
            self.exit(task, ExitStatus::Unknown);
        }
        let mut unseen = Duration::ZERO;
        let last_audit = match self.how.audits {
            Audits::EachProcess => timed_audit(self.machine, &mut unseen),
            Audits::Never => Vec::new(),
        };
        for process in &mut self.processes {
            // What is wrong at the end is every process's fault until it is known whose.
            process.report.audit.extend(last_audit.iter().cloned());
        }
        let memory = self.machine.memory();
        let life = self.life.take().map(|life| life.finish(memory));
        ReplayReport {
            zstd_of_lz4: self.contents.and_then(|contents| contents.needs.contents().zstd_of_lz4()),
            header: self.header,
            processes: self.processes.into_iter().map(|process| process.report).collect(),
            events: self.event,
            lost: self.lost,
            elapsed,
            auditing: self.auditing.min(elapsed),
            allocator: AllocatorFigures::of(memory),
            tables: TableFigures::of(memory),
            machine: memory.platform().counters(),
            pressure: PressureFigures::of(memory, self.swap)
                .scaled(self.how.sample.map_or(1.0, |sample| 1.0 / sample.share)),
            sampled: self.how.sample.map(|sample| sample.share),
            reuses: self.reuses,
            reuses_gone: self.reuses_gone,
            limited: self.how.limited,
            does_not_fit: self.does_not_fit,
            uses: self.how.uses,
            ram: memory.frames().totals().present * 4096,
            limit: self.how.limit.map(|limit| limit.bytes),
            damage: None,
            ended_early: false,
            life,
            heat: self.heat.map(Heat::finish),
            mappings: self.mappings.unwrap_or_default(),
        }
    }
}

/// The address spaces of `tasks`, each once, with the first thread that uses it.
fn spaces<'t, 'm>(
    tasks: &'t [Option<Task<'m>>],
) -> impl Iterator<Item = (&'t Task<'m>, &'t Space<'m, HostPlatform>)> {
    let mut seen = HashSet::new();
    let of = |task: &'t Task<'m>| task.space.as_ref().map(|space| (task, space));
    let each = tasks.iter().flatten().filter_map(of);
    each.filter(move |(_, space)| seen.insert(Rc::as_ptr(space))).map(|(task, space)| (task, &**space))
}

/// Whether a call that succeeded on Linux failed here as calls fail when there is no memory.
fn is_for_want_of_memory(call: &crate::event::Call, found: &str) -> bool {
    call.errno().is_none() && [Errno::ENOMEM, Errno::EAGAIN].iter().any(|errno| errno.to_string() == found)
}

/// Fills pages that programs write.
struct Writer {
    needs: Arc<Needs>,
    /// Pages filled so far: no page gets the same contents twice.
    filled: u64,
    /// Address spaces that were copied by fork, or are copies: a write may copy a page.
    forked: HashSet<usize>,
    page: Box<[u8; PAGE_BYTES]>,
}

impl Writer {
    fn new(needs: Arc<Needs>) -> Self {
        Self { needs, filled: 0, forked: HashSet::new(), page: Box::new([0; PAGE_BYTES]) }
    }

    /// Whether the page of `addr` in address space `number` is written without a fault after it came in at event `event`.
    fn changes(&self, number: usize, addr: u64, event: u64) -> bool {
        !self.forked.contains(&number) && self.needs.contents().changes(number, addr, event)
    }

    /// Writes the page of `addr` as a program in address space `number` at event `event`.
    fn fill(&mut self, program: &Program<'_, Space<'_, HostPlatform>>, number: usize, addr: u64, event: u64) {
        let start = addr & !(PAGE_BYTES as u64 - 1);
        self.filled += 1;
        let held = self.needs.contents().of_page(number, start, event);
        contents::fill(held, page_id(number, start), self.filled, &mut self.page);
        // A page that may not be written, or for which there is no memory, was told of when it was touched.
        let _ = program.write(VirtAddr(start), &self.page[..]);
    }
}

/// Findings of an audit in words, at most as many as mismatches are kept.
fn timed_audit(machine: &Machine, spent: &mut Duration) -> Vec<String> {
    let started = Instant::now();
    let findings = machine.audit();
    *spent += started.elapsed();
    findings.iter().take(super::figures::KEPT_MISMATCHES).map(ToString::to_string).collect()
}
