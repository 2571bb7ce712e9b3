//! The state of a replay, and one step of it.

mod background;
mod brought_in;
mod candidates;
mod early;
mod exhausted;
mod file_pages;
#[cfg(test)]
mod file_tests;
mod history;
mod lock_looks;
mod memory;
mod order;
mod overlapping;
mod processes;
mod search;
#[cfg(test)]
mod tests;
mod watch;
mod work;
mod writer;

use super::again::Again;
use super::ahead::Upcoming;
use super::charge::ExtraCharge;
use super::cpus::MOST_CPUS;
use super::ends::Ends;
use super::figures::{AllocatorFigures, KEPT_MISMATCHES, ProcessReport, TableFigures};
use super::files::FileIds;
use super::forks::Forks;
use super::heat::Heat;
use super::joint::Joint;
use super::life::{Life, LifeFigures};
use super::limit::{GroupLimit, SpacesCharge};
use super::mappings::MappingLife;
use super::mismatch::Gap;
use super::options::{Audits, ReplayOptions};
use super::own_files::OwnFiles;
use super::plan::{Needs, SampledPart};
use super::pressure::{PressureFigures, SwapFigures};
use super::report::{DoesNotFit, ReplayReport};
use super::schedule::Schedule;
use super::settings;
use super::sites::Sites;
use super::task::{Task, Tasks};
use super::touch;
use crate::space::HostSpace;
use background::Khugepaged;
use early::EarlyKill;
use file_pages::{OtherMapping, Unused};
use lock_looks::{LockLooks, changes_locks};
use order::CallOrders;
use quire_arch::Platform;
use quire_host::{Machine, Vcpu};
use quire_mm::MemoryConfig;
use quire_mm::memcg::MemcgId;
use quire_mm::space::Limits;
use quire_trace::event::{Event, EventKind, ExitStatus, LostCause, TaskId, Window};
use quire_trace::format::{TraceHeader, UseSource};
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::looks_at;
use writer::Writer;

/// The state of a process beside its report.
struct ProcessState {
    report: ProcessReport,
    limits: Limits,
    threads: u32,
    /// Whether it locked memory: from then on each call may bring in pages.
    locked: bool,
    allocator_at_start: AllocatorFigures,
    /// The CPUs that its events name, the first 64 of a host's and those beyond that share a vCPU with them.
    cpus: u64,
}

impl ProcessState {
    /// One of its threads ran on this CPU of a host that has `all`.
    fn ran_on(&mut self, cpu: u32, all: u32) {
        self.cpus |= 1 << (cpu % MOST_CPUS);
        self.report.cpus = self.cpus.count_ones().saturating_mul(all.div_ceil(MOST_CPUS)).min(all);
    }
}

/// Options of a replay: what was requested, and what follows from that and the trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunOptions<'m> {
    /// What was requested.
    pub(super) requested: &'m ReplayOptions,
    /// The size of the machine's memory was requested, and is not derived from the trace.
    pub(super) limited: bool,
    /// Bytes of RAM with which nothing runs short.
    pub(super) suffices: u64,
    /// The event that brings in more than is in proportion to the trace: the replay ends before it.
    pub(super) too_much_at: Option<u64>,
    /// How the trace knows reuses of pages.
    pub(super) uses: UseSource,
    /// Follow addresses, in so many columns of so many nanoseconds together.
    pub(super) heat: Option<(usize, u64)>,
    /// Follow what of the peak is used again, and what processes share, in so many nanoseconds together.
    pub(super) peak_use: Option<u64>,
    /// How the machine was built.
    pub(super) config: MemoryConfig,
    /// The memcg that all programs are charged to.
    pub(super) memcg: MemcgId,
    /// Their limit.
    pub(super) limit: Option<GroupLimit>,
    /// The part of the memory that is replayed, where that is not all.
    pub(super) sample: Option<SampledPart>,
}

/// A replay in progress.
pub(super) struct RunningReplay<'m> {
    machine: &'m Machine,
    vcpus: Vec<Vcpu>,
    schedule: Schedule,
    header: TraceHeader,
    /// The settings of huge pages are those that were recorded.
    same_settings: bool,
    /// By the number of the thread, which counts from 0.
    tasks: Tasks<'m>,
    processes: Vec<ProcessState>,
    /// Threads that live.
    threads: u64,
    files: FileIds<'m>,
    /// Those whose sizes are known.
    known_files: u64,
    other_mapping: OtherMapping,
    unused: Unused,
    own_files: OwnFiles,
    /// Parts of it that were looked at where processes ended.
    shared_looks: u64,
    /// Bytes of pages of files that are locked, as they were counted last.
    locked_files: u64,
    lock_looks: LockLooks<'m>,
    spaces_charge: SpacesCharge,
    early_kill: EarlyKill,
    /// Where memory was mapped, for the mappings where it stops.
    sites: Sites,
    event: u64,
    /// The event before which the replay ends, if not at the end of the trace.
    ends_at: u64,
    /// The recorded time of the timer's next tick.
    ticks_at: u64,
    /// If it runs.
    khugepaged: Option<Khugepaged>,
    /// Of the last event.
    time_ns: u64,
    life: Option<Life>,
    forks: Forks,
    again: Option<Again>,
    joint: Option<Joint>,
    heat: Option<Heat>,
    lost: u64,
    unheard: u64,
    reuses: u64,
    reuses_gone: u64,
    /// Address spaces that the trace has made so far.
    ends: Ends,
    contents: Option<Writer>,
    order: CallOrders,
    options: RunOptions<'m>,
    swap: SwapFigures,
    does_not_fit: Option<DoesNotFit>,
    /// What mappings hold where it stops.
    mappings: Option<Vec<MappingLife>>,
    audits: usize,
    /// Entries and frames that they looked at.
    audited: u64,
    auditing: Duration,
}

/// A sample of memory at least so often.
const FAULTS_BETWEEN_LOOKS: u64 = 1 << 12;
/// Recorded time between two events that counts as a pause.
const PAUSE_NS: u64 = 5_000_000;

impl<'m> RunningReplay<'m> {
    pub(super) fn new(
        machine: &'m Machine,
        vcpus: Vec<Vcpu>,
        header: &TraceHeader,
        options: RunOptions<'m>,
        contents: Option<Arc<Needs>>,
    ) -> Self {
        if let Some(limit) = &options.limit {
            let extra = ExtraCharge { costs: options.requested.kernel, ..ExtraCharge::default() };
            limit.set(machine.memory(), &SpacesCharge::default(), &extra);
        }
        let shmem = options.requested.shmem.unwrap_or_else(|| settings::shmem_huge_of_programs(header));
        let files = FileIds::new(settings::has_other_places(header, shmem));
        Self {
            machine,
            same_settings: settings::are_recorded(header, machine.memory().huge().policy()),
            schedule: Schedule::new(vcpus.len()),
            vcpus,
            header: header.clone(),
            tasks: Tasks::default(),
            processes: Vec::new(),
            threads: 0,
            files,
            known_files: 0,
            other_mapping: OtherMapping::default(),
            unused: Unused::default(),
            own_files: OwnFiles::default(),
            shared_looks: 0,
            locked_files: 0,
            lock_looks: LockLooks::default(),
            spaces_charge: SpacesCharge::default(),
            early_kill: EarlyKill::new(header),
            sites: Sites::default(),
            event: 0,
            ends_at: [options.requested.stop_at, options.too_much_at]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(u64::MAX),
            ticks_at: background::SECOND_NS,
            khugepaged: options.requested.khugepaged.map(Khugepaged::new),
            time_ns: 0,
            life: options.requested.life.then(Life::default),
            forks: Forks::default(),
            again: options.peak_use.map(|_| Again::default()),
            joint: options.peak_use.map(Joint::new),
            heat: options.heat.map(|(columns, time_ns)| Heat::new(columns, time_ns)),
            lost: 0,
            unheard: 0,
            reuses: 0,
            reuses_gone: 0,
            ends: Ends::default(),
            contents: contents.map(Writer::new),
            order: CallOrders::new(options.requested.claims),
            options,
            swap: SwapFigures::default(),
            does_not_fit: None,
            mappings: None,
            audits: 0,
            audited: 0,
            auditing: Duration::ZERO,
        }
    }

    fn task(&self, task: TaskId) -> Option<&Task<'m>> {
        self.tasks.get(task.0 as usize)?.as_ref()
    }

    /// Puts a thread into its slot and returns whether the slot was empty. A number that no Linux gives out
    /// can only come from a damaged trace: such a thread is left out.
    fn put(&mut self, task: TaskId, state: Task<'m>) -> bool {
        self.tasks.slot(task.0 as usize).is_some_and(|slot| slot.replace(state).is_none())
    }

    fn process_of(&mut self, task: TaskId) -> Option<&mut ProcessState> {
        let process = self.task(task)?.process;
        self.processes.get_mut(process)
    }

    /// Replays one event.
    pub(super) fn step(&mut self, event: &Event, upcoming: &mut dyn Upcoming) {
        if self.event == self.ends_at {
            return self.ends_before(event.task);
        }
        self.tick(event.time_ns);
        if self.heat.as_ref().is_some_and(|heat| heat.is_due(event.time_ns)) {
            self.end_columns(Some(event.time_ns));
        }
        if self.joint.as_ref().is_some_and(|joint| joint.is_due(event.time_ns)) {
            self.count_joint(event.time_ns);
        }
        // Faults only add, but where a file ended before; a long run of them takes time, and a pause ends it.
        let follows = self.life.is_some();
        let paused = follows && event.time_ns > self.time_ns.saturating_add(PAUSE_NS);
        if paused {
            self.look();
        }
        self.khugepaged(event.time_ns);
        let fault = if let EventKind::Fault(fault) = &event.kind { Some(fault) } else { None };
        let only_adds = fault.is_some_and(|fault| !touch::found_no_page(fault));
        if follows && (paused || !only_adds || self.event.is_multiple_of(FAULTS_BETWEEN_LOOKS)) {
            self.look();
        }
        let window = self.order.window_of(event.task);
        if self.order.was_made(self.event) {
            // In another order.
        } else if let Some(fault) = fault {
            self.fault(event, fault, upcoming);
        } else {
            self.make(event, window, upcoming);
        }
        self.event += 1;
        if self.options.limited {
            self.reclaim_in_background();
        }
        if fault.is_none() {
            self.follow_locks(event);
        }
        if let Some(limit) = &self.options.limit
            && GroupLimit::is_due(self.event)
        {
            looks_at(self.spaces_charge.update(self.machine.memory(), self.event));
            let room = limit.set(self.machine.memory(), &self.spaces_charge, &self.extra_charge());
            self.early_kill.note(self.machine.memory(), self.options.memcg, room, self.time_ns);
            self.swap.note(self.machine.memory());
            // What is not among the pages of the machine refuses none of them.
            if room == 0
                && let Some(process) = self.task(event.task).map(|task| task.process)
            {
                self.exhausted(process, "what stays in memory is more than that".to_owned());
            }
        }
    }

    /// It was to stop before this event of `task`, or the event is out of proportion.
    #[cold]
    fn ends_before(&mut self, task: TaskId) {
        if self.options.requested.stop_at == Some(self.event) {
            self.mappings = Some(self.mappings());
        } else {
            self.out_of_proportion(task);
        }
    }

    /// Counts locked pages of files again where this event, which is no touch, may have changed that, and
    /// where it is of use.
    fn follow_locks(&mut self, event: &Event) {
        let is_of_use = self.options.limit.is_some() || self.life.is_some();
        if !is_of_use || !changes_locks(&event.kind) {
            return;
        }
        if let Some(Some(task)) = self.tasks.get(event.task.0 as usize)
            && let Some(space) = &task.space
        {
            self.lock_looks.note(task.number, space);
        }
        if self.lock_looks.are_due(self.event) {
            let looked_at = self.count_locked_files();
            self.lock_looks.looked_at(looked_at, self.event);
        }
    }

    /// Replays an event that need not be a touch.
    #[inline(never)]
    fn make(&mut self, event: &Event, window: Option<Window>, upcoming: &mut dyn Upcoming) {
        self.other_mapping = OtherMapping::default();
        match &event.kind {
            EventKind::Fault(fault) => self.fault(event, fault, upcoming),
            EventKind::Call(call) => self.call(event, call, window, upcoming),
            EventKind::Window(window) => self.order.note(event.task, *window),
            EventKind::Clone(clone) => self.clone_task(event, clone),
            EventKind::Exec(image) => self.exec(event, image),
            EventKind::Limit(limit) => self.limit(limit),
            EventKind::Figures(figures) => self.figures(event.task, figures),
            EventKind::Reuse(reuse) => self.reuse(event, reuse),
            EventKind::Compressibility(_) | EventKind::Contents(_) => {}
            EventKind::File(file) => self.file(file),
            EventKind::Privileges(privileges) => self.privileges(event.task, *privileges),
            EventKind::Exit(status) => self.exit(event.task, *status),
            EventKind::Lost(lost) => {
                if lost.cause != LostCause::Damage {
                    self.lost = self.lost.saturating_add(lost.count);
                }
                if lost.cause == LostCause::Unheard {
                    self.unheard = self.unheard.saturating_add(lost.count);
                }
            }
            EventKind::Unsupported(_) => {
                if let Some(process) = self.process_of(event.task) {
                    process.report.add_gap(Gap("calls of the 32-bit ABI".to_owned()));
                }
            }
        }
    }

    /// Whether it must end here. After memory is exhausted the replay would no longer be what the programs
    /// did.
    pub(super) fn is_over(&self) -> bool {
        self.does_not_fit.is_some() || self.mappings.is_some()
    }

    /// The thread of `event` runs on the vCPU that the event names, which is the result. The vCPU that it
    /// comes from, if it does, is idle.
    #[inline]
    fn switch(&mut self, event: &Event) -> usize {
        let cpu = event.cpu as usize % self.vcpus.len();
        if !self.schedule.runs(event.task, cpu) {
            self.migrate(event.task, cpu);
            let all = self.header.cpus;
            if let Some(process) = self.process_of(event.task) {
                process.ran_on(event.cpu, all);
            }
        }
        cpu
    }

    fn migrate(&mut self, task: TaskId, cpu: usize) {
        let Some(arrival) = self.schedule.enter(task, cpu) else { return };
        if let Some(left) = arrival.left {
            self.idle(left);
        }
        match self.task(task).and_then(|task| task.space.as_ref()) {
            Some(space) => self.load(cpu, space),
            None => self.idle(cpu),
        }
    }

    /// Makes `space` the one that a vCPU runs.
    fn load(&self, cpu: usize, space: &HostSpace<'_>) {
        self.vcpus[cpu].run(|| space.activate(&self.machine.memory().platform().pin()));
    }

    /// Leaves a vCPU without a space.
    fn idle(&self, cpu: usize) {
        let memory = self.machine.memory();
        self.vcpus[cpu].run(|| memory.spaces().deactivate(&memory.platform().pin()));
    }

    /// Ends all remaining spaces, audits the empty machine, and reports.
    pub(super) fn finish(mut self, elapsed: Duration) -> ReplayReport {
        self.look();
        self.end_columns(None);
        self.count_joint(self.time_ns);
        // It was to stop at the end.
        if self.options.requested.stop_at.is_some() && self.mappings.is_none() {
            self.mappings = Some(self.mappings());
        }
        for task in self.tasks.all().map(|(number, _)| number).collect::<Vec<_>>() {
            self.exit(TaskId(task as u32), ExitStatus::Unknown);
        }
        self.close_files();
        let mut unseen = Duration::ZERO;
        let last_audit = match self.options.requested.audits {
            Audits::EachProcess => timed_audit(self.machine, &mut unseen),
            Audits::Never => Vec::new(),
        };
        for process in &mut self.processes {
            // Findings at the end are attributed to every process until it is known which.
            process.report.audit.extend(last_audit.iter().cloned());
        }
        let memory = self.machine.memory();
        let forks = self.forks.figures();
        let life = self.life.take().map(|life| LifeFigures { forks, ..life.finish(memory) });
        ReplayReport {
            zstd_of_lz4: self.contents.and_then(|contents| contents.needs.contents().zstd_of_lz4()),
            header: self.header,
            processes: self
                .processes
                .into_iter()
                .map(|process| ProcessReport { limits: process.limits, ..process.report })
                .collect(),
            events: self.event,
            lost: self.lost,
            unheard: self.unheard,
            elapsed,
            auditing: self.auditing.min(elapsed),
            allocator: AllocatorFigures::of(memory),
            tables: TableFigures::of(memory),
            machine: memory.platform().counters(),
            may_be_killed: self.early_kill.may_be_killed(),
            pressure: PressureFigures::of(memory, self.swap)
                .scaled(self.options.sample.map_or(1.0, |sample| 1.0 / sample.share)),
            sampled: self.options.sample.map(|sample| sample.share),
            reuses: self.reuses,
            reuses_gone: self.reuses_gone,
            limited: self.options.limited,
            host_is_short: false,
            known_files: self.known_files,
            does_not_fit: self.does_not_fit,
            uses: self.options.uses,
            ram: memory.frames().reports().totals().present * 4096,
            limit: self.options.limit.map(|limit| limit.bytes),
            damage: None,
            ended_early: false,
            life,
            heat: self.heat.map(Heat::finish),
            mappings: self.mappings.unwrap_or_default(),
            ends: self.ends.finish(),
            peak_use: self.again.zip(self.joint).map(|(again, joint)| again.finish(joint.finish())),
        }
    }
}

/// Findings of an audit in words, at most as many as mismatches are kept.
fn timed_audit(machine: &Machine, spent: &mut Duration) -> Vec<String> {
    let started = Instant::now();
    let findings = machine.audit();
    *spent += started.elapsed();
    findings.iter().take(KEPT_MISMATCHES).map(ToString::to_string).collect()
}
