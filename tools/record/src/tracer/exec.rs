//! New programs.

use super::Tracer;
use super::probe::{Probed, probe};
use super::reuse::ReuseMoment;
use super::state::{Entry, Rseq, State, TracedTask};
use crate::merge::{Record, Rule};
use crate::proc::pagemap::Pagemap;
use crate::proc::status::{Stat, is_hidden, own_filters, privileges};
use crate::proc::{Keyed, maps, read, system, text};
use crate::sys::ptrace::{Resume, SyscallStop};
use crate::sys::time::{now, process_cpu};
use crate::sys::wait::{ChildStatus, Waited, wait};
use crate::sys::{Tid, ptrace};
use quire_trace::event::{Abi, EventKind, ExecImage, ExitStatus, FiguresCause, Limits, Rlimit};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest command line that is kept of an image.
const ARGS_LIMIT: usize = 16 << 10;

impl Tracer<'_> {
    /// A thread calls exec. If that succeeds its address space is gone, so it is read before.
    pub(super) fn enter_exec(&mut self, tid: Tid, entry: Entry) {
        self.cpu(tid);
        let Some(task) = self.tasks.get(&tid) else { return };
        let (pid, space) = (task.pid, task.space);
        // A vfork child uses its parent's address space, which remains.
        let alone = !self.tasks.values().any(|other| other.space == space && other.pid != pid);
        let mut figures = None;
        if alone && self.begun {
            self.touched_before_end(tid);
            self.sample_reuse_before_end(tid, ReuseMoment::Exec);
            figures = self.figures(tid, pid, space, FiguresCause::Exec).map(Box::new);
        }
        if alone {
            self.note_unheard(tid, now());
        }
        self.drain_before_program_ends(now());
        self.make_program_cold(tid, &entry);
        let stack = Stat::read(tid).start_stack;
        let start = now();
        self.merger.begin_exec(tid, start);
        self.set_state(tid, State::InExec { entry, start, figures, stack });
        self.resume(tid, 0);
    }

    /// A process has a new program. `pid` is the thread that runs it, no matter which one called exec.
    pub(super) fn at_exec_stop(&mut self, pid: Tid, time: u64) {
        let former = match ptrace::event_message(pid, libc::PTRACE_EVENT_EXEC) {
            Some(former) => former as Tid,
            // It was killed meanwhile. Of several threads that call exec one succeeds; it no longer matters
            // which.
            None => self.executing_thread(pid),
        };
        // All other threads of the process are gone, also the leader if another thread called: then that
        // thread has taken its place and its id.
        let others: Vec<Tid> = self
            .tasks
            .iter()
            .filter(|(tid, task)| task.pid == pid && **tid != former)
            .map(|(tid, _)| *tid)
            .collect();
        for other in others {
            self.note(other, time, vec![EventKind::Exit(ExitStatus::Replaced)]);
            self.remove_task(other, time);
        }
        let Some(mut task) = self.tasks.remove(&former) else { return };
        self.merger.ended(former, time);
        self.ended.extend(task.event_set.map(|event_set| (former, event_set)));
        let (start, figures) = match std::mem::replace(&mut task.state, State::Running) {
            State::InExec { start, figures, .. } => (start, figures),
            _ => (time, None),
        };
        let old_space = task.space;
        let last = self.leave_space(old_space);
        let id = task.id;
        let mut kinds = Vec::new();
        if let Some(figures) = figures.filter(|_| last) {
            kinds.push(EventKind::Figures(figures));
        }
        let space = self.new_space();
        (task.space, task.rseq) = (space, Rseq::NEW);
        let cpu = task.cpu;
        task.privileges = privileges(pid);
        self.tasks.insert(pid, task);
        let thp_disable = self.spaces.get(&old_space).map(|old| old.thp_disable).unwrap_or_default();
        if let Some(space) = self.spaces.get_mut(&space) {
            space.users = 1;
            space.thp_disable = thp_disable;
        }
        if last {
            self.forget_space(old_space);
        }
        self.accesses.forget_process(pid);
        self.merger.identify(pid, time, id, space);
        self.begun = true;
        let image = self.finish_exec(pid).then(|| self.image(pid));
        let is_hidden = image.as_ref().and_then(|(_, is_hidden)| *is_hidden);
        let image = image.map(|(image, _)| image);
        // If it is still in that stop, the image is complete.
        let Some(image) = image.filter(|_| !self.pending.has(pid) && is_at_end_of_call(pid)) else {
            // It was killed before its first instruction: the new image is not in the trace, nor are
            // accesses to it.
            let rule = Rule::KilledExec { pid };
            let record =
                Record { start, end: time, tid: former, task: id, space: old_space, cpu, rule, kinds };
            self.merger.record(record);
            self.merger.leave_out(pid, time, space);
            // Nor are its figures.
            self.leave_space(space);
            if let Some(task) = self.tasks.get_mut(&pid) {
                task.exiting = true;
            }
            return;
        };
        if let Some(space) = self.spaces.get_mut(&space) {
            space.brk = image.brk;
        }
        self.see_image(pid, id, &image);
        self.reopen_events_after_exec(pid, is_hidden);
        self.touched_at_exec(space, &image);
        let stat = Stat::read(pid);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.faults_before = (stat.minor_faults, stat.major_faults);
            process.unheard_faults = 0;
            process.cpu_before = process_cpu(pid).unwrap_or(0);
            process.threads_peak = process.threads;
        }
        if image.abi != Abi::X86_64 {
            kinds.push(EventKind::Exec(Box::new(image)));
            kinds.push(EventKind::Unsupported(quire_trace::event::Unsupported::ForeignAbi));
            if let Some(space) = self.spaces.get_mut(&space) {
                space.foreign = true;
            }
        } else {
            kinds.push(EventKind::Exec(Box::new(image)));
        }
        self.merger.cancel(former, start);
        let rule = Rule::Exec { pid, switched: time };
        let record = Record { start, end: now(), tid: former, task: id, space: old_space, cpu, rule, kinds };
        self.merger.record(record);
        self.note_unheard_image(pid);
        self.resume(pid, 0);
    }

    /// A thread ends with the id of its process. If another thread of it was in exec and no longer exists,
    /// that one has taken the place of the leader, which ended without a report, and was killed before its
    /// exec event.
    pub(super) fn takes_place_before_end(&mut self, pid: Tid, time: u64) {
        if self.processes.get(&pid).is_none_or(|process| process.threads < 2) {
            return;
        }
        let former = self.executing_thread(pid);
        if former == pid || Path::new(&format!("/proc/{pid}/task/{former}")).exists() {
            return;
        }
        self.note(pid, time, vec![EventKind::Exit(ExitStatus::Replaced)]);
        self.remove_task(pid, time);
        let Some(task) = self.tasks.remove(&former) else { return };
        self.merger.ended(former, time);
        self.ended.extend(task.event_set.map(|event_set| (former, event_set)));
        self.merger.identify(pid, time, task.id, task.space);
        if let State::InExec { start, .. } = task.state {
            // From here on it is in the call under its new id.
            self.merger.cancel(former, start);
            self.merger.begin_exec(pid, start);
        }
        self.tasks.insert(pid, task);
    }

    /// A thread of a process that is in exec; the leader if there is none.
    fn executing_thread(&self, pid: Tid) -> Tid {
        let is_in_exec = |task: &TracedTask| task.pid == pid && matches!(task.state, State::InExec { .. });
        self.tasks.iter().find(|(_, task)| is_in_exec(task)).map_or(pid, |(tid, _)| *tid)
    }

    /// Resumes the thread from the exec event to the stop at the end of the call, where its registers are the
    /// program's.
    fn finish_exec(&mut self, pid: Tid) -> bool {
        if self.pending.has(pid) {
            return false;
        }
        self.restart(pid, Resume::Syscall, 0);
        loop {
            match wait(Some(pid)) {
                Ok(Waited::Thread(_, ChildStatus::Stopped { signal, event: 0 }))
                    if signal == libc::SIGTRAP | 0x80 =>
                {
                    return is_at_end_of_call(pid);
                }
                Ok(Waited::Thread(tid, status)) => {
                    self.pending.push(tid, status, now());
                    return false;
                }
                Ok(Waited::Interrupted) => {}
                Ok(Waited::NoneLeft) | Err(_) => return false,
            }
        }
    }

    /// The whole layout of a new program, before its first instruction; and whether Linux removed its perf
    /// events, if that is known.
    fn image(&mut self, pid: Tid) -> (ExecImage, Option<bool>) {
        let mut mappings = maps::with_flags(pid);
        let is_64_bit = matches!(ptrace::registers(pid), Ok(Some(regs)) if regs.cs == 0x33);
        let may_ask = own_filters(pid) <= self.filters;
        let probed =
            if is_64_bit { probe(pid, &mappings, &mut self.pending, may_ask) } else { Probed::default() };
        let pagemap = Pagemap::open(pid);
        for mapping in &mut mappings {
            if let Some(pagemap) = &pagemap {
                mapping.resident = pagemap.present(mapping.start, mapping.end);
            }
        }
        let (stat, status) = (Stat::read(pid), Keyed::status(pid));
        let mmap_min_addr = system::sysctl("vm/mmap_min_addr").unwrap_or(65536);
        let personality = text(pid, "personality");
        let image = ExecImage {
            pid: pid as u32,
            abi: if is_64_bit { Abi::X86_64 } else { Abi::I386 },
            program: fs::read_link(format!("/proc/{pid}/exe"))
                .map_or_else(|_| Box::default(), |path| path.as_os_str().as_bytes().into()),
            args: arguments(pid),
            start_brk: stat.start_brk,
            // The heap is empty at exec: if the probe fails, the break is the start of the heap.
            brk: probed.brk.unwrap_or(stat.start_brk),
            start_stack: stat.start_stack,
            arg_start: stat.arg_start,
            arg_end: stat.arg_end,
            env_start: stat.env_start,
            env_end: stat.env_end,
            mmap_base: probed.mmap_base,
            limits: limits(pid),
            max_map_count: system::sysctl("vm/max_map_count").unwrap_or(65530),
            overcommit_memory: system::sysctl("vm/overcommit_memory").unwrap_or(0) as u8,
            mmap_min_addr,
            lowest_placed: probed.lowest_placed.unwrap_or(mmap_min_addr),
            personality: u32::from_str_radix(personality.trim(), 16).unwrap_or(0),
            privileges: privileges(pid),
            exec_gain: probed.exec_gain,
            thp: system::thp(),
            page_tables: status.bytes("VmPTE"),
            mappings,
        };
        // The calls of a 32-bit program are not recorded, but its children may be 64-bit programs.
        (image, probed.is_hidden.or_else(|| is_hidden(pid)))
    }
}

fn is_at_end_of_call(tid: Tid) -> bool {
    matches!(ptrace::syscall_stop(tid), Ok(SyscallStop::Exit { .. }))
}

fn arguments(pid: Tid) -> Vec<Box<[u8]>> {
    let mut bytes = read(pid, "cmdline");
    bytes.truncate(ARGS_LIMIT);
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if bytes.is_empty() { Vec::new() } else { bytes.split(|byte| *byte == 0).map(Into::into).collect() }
}

/// The limits of a process. `prlimit` refuses those of another user, this text has them.
fn limits(pid: Tid) -> Limits {
    let text = text(pid, "limits");
    let one = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        // The soft and the hard one; what is not a number is `unlimited`.
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX));
        let mut next = || words.next().unwrap_or(u64::MAX);
        Rlimit { soft: next(), hard: next() }
    };
    Limits {
        address_space: one("Max address space"),
        data: one("Max data size"),
        stack: one("Max stack size"),
        locked: one("Max locked memory"),
    }
}
