//! Tracing threads: the stops of each, and how they are handled.
//!
//! One thread does it all. It waits for a stop, records what it means, and resumes the thread; in between it
//! takes the page faults out of the ring buffers, orders them with the calls (`merge`) and hands them to the
//! writer.

mod begin_call;
mod birth;
mod call;
mod call_lock;
mod cold;
mod contents;
mod cpu;
mod detach;
mod detail;
mod exec;
mod exit;
mod figures;
mod file_calls;
mod file_recorder;
mod files;
mod memory_files;
mod other_tracer;
mod pass_signals;
mod probe;
mod recount;
mod region;
mod resume;
mod reuse;
mod rotation;
mod same_cpu;
mod samples;
mod state;
mod status_queue;
mod stay;
mod switches;
mod tasks;
mod thp;
mod touched;
mod turns;
mod untraced;

use super::error::RecordError;
use super::launch::Child;
use super::launch::ThpOff;
use super::merge::{Merger, SpaceId};
use super::opened::OpenedFiles;
use super::output::Output;
use super::perf::{AccessFinder, PerfSession, Root};
use super::proc::status::own_filters;
use super::seccomp::MARK;
use super::sys::ptrace::{EVENT_STOP, Resume, SyscallStop};
use super::sys::time::{Tick, now, process_cpu};
use super::sys::wait::{ChildStatus, Waited, poll, wait};
use super::sys::{Tid, priority, ptrace, signals};
use super::{RecordOptions, RecordSummary};
use file_recorder::FileRecorder;
use other_tracer::fail_call;
use quire_trace::event::{Denial, ExitStatus, Privileges};
use quire_trace::format::{CallSource, FaultSource};
use reuse::ReuseSampler;
use rotation::Rotation;
use same_cpu::SameCpu;
use state::{Early, TracedProcess, TracedSpace, TracedTask};
use status_queue::{PendingStatus, StatusQueue};
use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, SystemTime};
use switches::Switches;
use touched::TouchedPages;

/// The ring buffers are emptied at least this often.
const TICK: Duration = Duration::from_nanos(TICK_NS);
const TICK_NS: u64 = 20_000_000;
/// How often they are emptied while pages are paged out: a program touches a page in 1 to 2 us.
const ROTATION_TICK: Duration = Duration::from_millis(4);

/// What a tracer did.
#[derive(Debug)]
pub(crate) struct TraceResult {
    pub(crate) summary: RecordSummary,
    /// Why the program could not be executed.
    pub(crate) exec_error: Option<io::Error>,
}

/// How the child is traced before it executes the program.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) perf: Option<PerfSession>,
    pub(crate) calls: CallSource,
    /// Calls that need no stop come from `perf`.
    pub(crate) without_stops: bool,
    pub(crate) faults: FaultSource,
    /// `None`: transparent huge pages are as the host has them.
    pub(crate) thp_off: Option<ThpOff>,
}

/// Traces one program with all its threads and processes.
#[derive(Debug)]
pub(crate) struct Tracer<'a> {
    root: Tid,
    calls: CallSource,
    /// A thread of each space that has made calls without a stop since the last tick.
    called: HashMap<SpaceId, Tid>,
    /// Present if transparent huge pages are off: then the program's own setting is emulated.
    thp_off: Option<ThpOff>,
    output: &'a Output,
    perf: Option<PerfSession>,
    accesses: AccessFinder,
    /// Which pages were found touched, if page faults are not reported.
    touched: Option<TouchedPages>,
    /// Samples reuse, if requested.
    reuse: Option<ReuseSampler>,
    /// Pages out the oldest regions, if requested.
    rotation: Option<Rotation>,
    /// Present if it is wanted to know whether the program opens some files.
    opened: Option<OpenedFiles>,
    files: FileRecorder,
    same_cpu: SameCpu,
    switches: Switches,
    merger: Merger,
    tasks: HashMap<Tid, TracedTask>,
    processes: HashMap<Tid, TracedProcess>,
    spaces: HashMap<SpaceId, TracedSpace>,
    next_task: u32,
    next_space: u32,
    /// New threads that stopped before their parents' clone events.
    early: HashMap<Tid, Early>,
    /// Threads that have ended since the ring buffers were last emptied, and whose perf events they had.
    ended: HashMap<Tid, Root>,
    /// Threads that are traced but not recorded: their parent is not known.
    unrecorded: HashSet<Tid>,
    /// Reports that are not handled yet.
    pending: StatusQueue,
    /// The program has begun.
    begun: bool,
    started: u64,
    /// That, by the clock of files.
    began: SystemTime,
    /// When the ring buffers were last emptied, and when the other periodic work was last done.
    drained: u64,
    ticked: u64,
    seen_signals: [u32; signals::NOTED.len()],
    /// When the first signal came, which is the program's.
    first_signal: Option<u64>,
    /// When the program itself ended; processes that it left behind are followed on.
    root_ended: Option<u64>,
    notify: fn(&str),
    /// The user was told that the program uses ptrace, strict mode, and processes that may not be traced.
    warned_of_tracing: bool,
    warned_of_strict_mode: bool,
    warned_of_untraced: bool,
    /// How many seccomp filters the program has that are not its own.
    filters: u64,
    summary: RecordSummary,
}

impl<'a> Tracer<'a> {
    /// Prepares to trace a child that was seized and has not executed its program.
    pub(crate) fn new(
        root: Tid,
        attached: Attached,
        output: &'a Output,
        options: &RecordOptions,
        started: u64,
    ) -> Self {
        let Attached { perf, calls, without_stops, faults, thp_off } = attached;
        let touched = perf.is_none().then(TouchedPages::default);
        let files = FileRecorder::new(options.cold, perf.is_some());
        // Those of the recorder, and the one that it installed.
        let filters = own_filters(std::process::id() as Tid) + u64::from(calls == CallSource::Seccomp);
        let mut tracer = Self {
            root,
            calls,
            called: HashMap::new(),
            thp_off,
            output,
            perf,
            accesses: AccessFinder::default(),
            touched,
            reuse: options.reuse.map(|every| ReuseSampler::new(every, started, options.pressure.is_none())),
            rotation: options.pressure.map(Rotation::new),
            opened: OpenedFiles::watch(&options.watched),
            files,
            same_cpu: SameCpu::new(),
            switches: Switches::default(),
            merger: Merger::new(started),
            tasks: HashMap::new(),
            processes: HashMap::new(),
            spaces: HashMap::new(),
            next_task: 0,
            next_space: 0,
            early: HashMap::new(),
            ended: HashMap::new(),
            unrecorded: HashSet::new(),
            pending: StatusQueue::default(),
            begun: false,
            started,
            began: SystemTime::now(),
            drained: started,
            ticked: started,
            seen_signals: signals::seen(),
            first_signal: None,
            root_ended: None,
            notify: options.notify,
            warned_of_tracing: false,
            warned_of_strict_mode: false,
            warned_of_untraced: false,
            filters,
            summary: RecordSummary { faults, calls, without_stops, ..RecordSummary::default() },
        };
        let space = tracer.new_space();
        tracer.begin_thp(space);
        // Its privileges are in its first image.
        tracer.add_task(root, root, space, (Privileges::default(), Some(Root::default())));
        tracer
    }

    /// Runs until there is no tracee left.
    pub(crate) fn run(mut self, mut child: Child) -> Result<TraceResult, RecordError> {
        let broken = |source| RecordError::Ptrace { source };
        priority::run_first();
        let tick = if self.rotation.is_some() { ROTATION_TICK } else { TICK };
        let _tick = Tick::start(tick, signals::TICK).map_err(|source| RecordError::Start { source })?;
        if self.calls == CallSource::EveryCall {
            // Before it may execute: from the stop on it is seen at every call.
            ptrace::interrupt(self.root).map_err(broken)?;
        }
        child.execute().map_err(broken)?;
        loop {
            match self.pending.pop(newer) {
                Some(PendingStatus { tid, status, time }) => self.handle_status(tid, status, time),
                None if !self.wait_for_status().map_err(broken)? => break,
                None => {}
            }
            let time = now();
            if self.rotation.is_some() && time.saturating_sub(self.drained) >= ROTATION_TICK.as_nanos() as u64
            {
                self.drain(time);
                self.recount();
                self.rotate();
            }
            if time.saturating_sub(self.ticked) >= TICK_NS {
                self.ticked = time;
                self.summary.released = self.pass_signals_on();
                if self.summary.released.is_some() {
                    self.end_recording();
                    let pids = self.processes.keys();
                    let spent = pids.filter_map(|pid| process_cpu(*pid)).sum();
                    self.summary.programs_cpu += Duration::from_nanos(spent);
                    self.detach_all();
                    break;
                }
                self.overtake_stuck_calls(time);
                self.release_orphans(time);
                self.sample_reuse(time);
                self.touched_in_between(time);
                self.note_opened();
                self.drain(time);
                self.look_at_files(time);
                self.note_ended_files(time);
                self.settle(false);
                self.sample_peaks_after_calls(time);
            }
        }
        if self.summary.released.is_none() {
            self.end_recording();
        }
        // A signal that ended the program at once.
        self.new_signal();
        let exec_error = if self.begun { None } else { child.exec_error() };
        self.summary.wall = Duration::from_nanos(now() - self.started);
        self.summary.switch = Duration::from_nanos(self.switches.mean());
        self.summary.stray_faults = self.merger.stray_faults();
        self.summary.pressure = self.rotation.map(|rotation| rotation.figures);
        self.summary.files = self.files.summary;
        Ok(TraceResult { summary: self.summary, exec_error })
    }

    /// Waits for a report, and collects all pending ones. Returns `false` if nothing is left to wait for.
    fn wait_for_status(&mut self) -> io::Result<bool> {
        let first = wait(None)?;
        // A single thread is stopped now.
        let is_alone = self.tasks.len() + self.early.len() + self.unrecorded.len() < 2;
        self.pending.collect(first, now, || if is_alone { Ok(None) } else { poll(None) })
    }

    /// Hands over the events whose order is final.
    fn settle(&mut self, all: bool) {
        let events = self.merger.settle(self.drained, all);
        self.output.push(events);
    }

    /// Notes the first watched file that the program opened; later ones make no difference.
    fn note_opened(&mut self) {
        let Some(opened) = &self.opened else { return };
        self.summary.opened = opened.first(|pid| self.processes.contains_key(&pid));
        if self.summary.opened.is_some() {
            self.opened = None;
        }
    }

    fn handle_status(&mut self, tid: Tid, status: ChildStatus, time: u64) {
        match status {
            ChildStatus::Exited(_) | ChildStatus::Killed(_) if !self.tasks.contains_key(&tid) => {
                if !self.unrecorded.remove(&tid) {
                    self.keep_early_status(tid, status, time);
                }
            }
            ChildStatus::Exited(code) => self.at_end(tid, ExitStatus::Code(code), time),
            ChildStatus::Killed(signal) => self.at_end(tid, ExitStatus::Signal(signal), time),
            ChildStatus::Stopped { signal, event } => {
                self.summary.stops += 1;
                self.same_cpu.stopped(tid, time);
                self.stopped(tid, signal, event, time);
                // A thread that is held stays stopped; that time is added when it is resumed.
                self.summary.stopped += Duration::from_nanos(now() - time);
            }
        }
    }

    /// A child stays in its stop until the clone event; what happened to it before that is handled here.
    fn follow_early(&mut self, child: Tid, time: u64) {
        match self.early.remove(&child) {
            Some(Early { status: ChildStatus::Stopped { signal, event }, .. }) => {
                self.stopped(child, signal, event, time);
            }
            Some(Early { status: ChildStatus::Exited(code), .. }) => {
                self.at_end(child, ExitStatus::Code(code), time);
            }
            Some(Early { status: ChildStatus::Killed(signal), .. }) => {
                self.at_end(child, ExitStatus::Signal(signal), time);
            }
            None => {}
        }
    }

    fn keep_early_status(&mut self, tid: Tid, status: ChildStatus, time: u64) {
        let since = self.early.get(&tid).map_or(time, |early| early.since);
        self.early.insert(tid, Early { status, since });
    }

    fn stopped(&mut self, tid: Tid, signal: i32, event: i32, time: u64) {
        self.merger.stopped(tid, time);
        if !self.tasks.contains_key(&tid) {
            if self.unrecorded.contains(&tid) {
                return self.pass(tid, signal, event, time);
            }
            // Most often the first stop of a new thread, before its parent's clone event. It stays stopped
            // until then.
            return self.keep_early_status(tid, ChildStatus::Stopped { signal, event }, time);
        }
        match event {
            libc::PTRACE_EVENT_SECCOMP => self.at_syscall_stop(tid, time),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.at_clone_stop(tid, event, time);
            }
            libc::PTRACE_EVENT_EXEC => self.at_exec_stop(tid, time),
            libc::PTRACE_EVENT_EXIT => self.at_exit_stop(tid, time),
            EVENT_STOP => {
                self.restore_what_made(tid);
                self.group_stop(tid, signal);
            }
            _ if signal == libc::SIGTRAP | 0x80 => self.at_syscall_stop(tid, time),
            _ => self.at_signal_delivery(tid, signal, time),
        }
    }

    fn at_syscall_stop(&mut self, tid: Tid, time: u64) {
        match ptrace::syscall_stop(tid) {
            Ok(SyscallStop::Filtered { told, .. }) if told != MARK => {
                if fail_call(tid) {
                    self.resume(tid, 0);
                }
            }
            Ok(
                SyscallStop::Entry { arch, number, args } | SyscallStop::Filtered { arch, number, args, .. },
            ) => {
                self.at_syscall_entry(tid, arch, number, args, time);
            }
            Ok(SyscallStop::Exit { result }) => self.at_syscall_exit(tid, result, time),
            // It was killed meanwhile. The next wait reports its end; resuming it could skip that.
            Ok(SyscallStop::None) | Err(_) => {}
        }
    }

    /// A stop of the whole process by a stop signal, or the first stop of a new thread.
    fn group_stop(&mut self, tid: Tid, signal: i32) {
        let stop_signals = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        if !stop_signals.contains(&signal) {
            self.resume(tid, 0);
            return;
        }
        self.restart(tid, Resume::Listen, 0);
        // The terminal stopped the whole job; the shell expects the recorder to stop as well.
        if tid == self.root && signal != libc::SIGSTOP {
            signals::stop_self();
        }
    }

    /// A signal is about to be delivered: it is passed on untouched.
    fn at_signal_delivery(&mut self, tid: Tid, signal: i32, time: u64) {
        if (signal == libc::SIGSEGV || signal == libc::SIGBUS)
            && let Ok((code, addr)) = ptrace::fault_signal(tid)
        {
            self.note_refused(tid, signal, code, addr, time);
        }
        self.resume(tid, signal);
    }

    fn note_refused(&mut self, tid: Tid, signal: i32, code: i32, addr: u64, time: u64) {
        // Codes from 1 to 8 are faults; others say what sent the signal.
        let denial = match (signal, code) {
            (libc::SIGSEGV, 1) => Denial::NotMapped,
            (libc::SIGSEGV, 2) => Denial::NotAllowed,
            (libc::SIGSEGV, 4) => Denial::ProtectionKey,
            (libc::SIGBUS, 2) => Denial::NoBacking,
            (_, 1..=8) => Denial::Other,
            _ => return,
        };
        if self.touched.is_some() {
            self.touched_refused(tid, addr, denial, time);
        } else {
            self.merger.denied(tid, time, addr, denial);
        }
    }
}

/// A newer report of a thread, if there is one.
fn newer(tid: Tid) -> Option<(ChildStatus, u64)> {
    match poll(Some(tid)) {
        Ok(Some(Waited::Thread(_, status))) => Some((status, now())),
        _ => None,
    }
}
