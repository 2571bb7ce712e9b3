//! Entering and leaving calls.

use super::Tracer;
use super::same_cpu::Until;
use super::state::{Entry, InCall, State};
use super::untraced::untraced_in_32_bit;
use crate::calls::{self, Class, Effect};
use crate::merge::Rule;
use crate::seccomp::{ARCH_X86_64, X32_BIT, X32_END};
use crate::sys::Tid;
use crate::sys::process::has_x32;
use crate::sys::time::now;
use quire_trace::event::{Call, EventKind, Limit, LimitKind, Unsupported};
use quire_trace::format::CallSource;

/// Results from here to -512 mean that the kernel restarts the call by itself: it had no effect.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

impl Tracer<'_> {
    /// A thread is about to make a call.
    pub(super) fn at_syscall_entry(&mut self, tid: Tid, arch: u32, number: u64, args: [u64; 6], time: u64) {
        if arch != ARCH_X86_64 || (u64::from(X32_BIT)..u64::from(X32_END)).contains(&number) {
            self.foreign(tid, arch, number, time);
            return match untraced_in_32_bit(tid, arch, number, args) {
                Some((entry, flags)) => self.make_thread(tid, entry, flags),
                None => self.ignore(tid),
            };
        }
        let class = calls::classify(number, &args);
        let before_program = !self.begun && class != Class::Exec;
        if class == Class::Memory {
            // What has ended before a call has ended before it in the recording.
            self.note_ended_files(now());
        }
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let entry = Entry::new(number, args);
        let space = task.space;
        let has_samples = self.summary.without_stops && task.event_set.is_some();
        match class {
            _ if before_program => self.ignore(tid),
            Class::Other => self.ignore(tid),
            Class::Affinity => {
                self.set_ignored(tid);
                self.resume_until(tid, Until::UsesCpus, 0);
            }
            Class::Exec => self.enter_exec(tid, entry),
            Class::End => {
                self.look_before_end(tid);
                self.ignore(tid);
            }
            Class::Traces => {
                if !std::mem::replace(&mut self.warned_of_tracing, true) {
                    (self.notify)(
                        "the program traces others with ptrace, which fails (EPERM) while it is recorded: each process \
                         has one tracer, and that is the recorder (for LeakSanitizer: ASAN_OPTIONS=detect_leaks=0)",
                    );
                }
                self.ignore(tid);
            }
            Class::Strict => {
                if !std::mem::replace(&mut self.warned_of_strict_mode, true) {
                    (self.notify)(
                        "the program asks for seccomp's strict mode, which fails (EINVAL) while it is recorded: a thread \
                         has that or filters, and the recorder has one",
                    );
                }
                self.ignore(tid);
            }
            Class::Waiting => self.make_call(tid, entry),
            Class::File => self.enter_file_call(tid, entry),
            Class::Credentials => {
                self.set_state(tid, State::InCall(InCall::new(entry, time)));
                self.resume(tid, 0);
            }
            // Its effect and its end come from tracepoints.
            Class::Memory if number as i64 == libc::SYS_mmap && has_samples => {
                let file = self.detail_before(tid, number, &args);
                self.merger.will_map(tid, now(), file);
                self.ignore(tid);
            }
            Class::Memory | Class::Clone => {
                task.state = State::AwaitsCallLock(entry);
                if self.acquire(tid, space, time) {
                    self.make_call(tid, entry);
                }
            }
        }
    }

    /// A call of another ABI, which the trace cannot represent.
    fn foreign(&mut self, tid: Tid, arch: u32, number: u64, time: u64) {
        // A call that the recorder's filter reports is one that no other filter kills a program for.
        let is_refused = arch == ARCH_X86_64 && self.calls == CallSource::Seccomp && !has_x32();
        if is_refused {
            return;
        }
        let is_memory = arch == ARCH_X86_64 || calls::FOREIGN.contains(&(number as u32));
        let Some(task) = self.tasks.get(&tid) else { return };
        let Some(space) = self.spaces.get_mut(&task.space) else { return };
        if is_memory && self.begun && !std::mem::replace(&mut space.foreign, true) {
            self.note(tid, time, vec![EventKind::Unsupported(Unsupported::ForeignAbi)]);
        }
    }

    /// A thread has made its call.
    pub(super) fn at_syscall_exit(&mut self, tid: Tid, result: i64, time: u64) {
        self.restore_after_clone(tid);
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let space = task.space;
        match std::mem::replace(&mut task.state, State::Running) {
            // A held thread did not enter its call, so it cannot return from it.
            State::Running | State::Ignored | State::AwaitsCallLock(_) => {}
            State::InCall(call) => {
                self.switches.note(time.saturating_sub(call.start));
                self.note_call(tid, call, result, time);
                self.release(tid, space, time);
            }
            // Success is reported by an event, so these are failures.
            State::InClone { entry, start, .. } if entry.is_32_bit => self.merger.cancel(tid, start),
            State::InClone { entry, start, .. } => {
                self.note_call(tid, InCall::new(entry, start), result, time);
                self.release(tid, space, time);
            }
            State::InExec { entry, start, .. } => {
                self.note_call(tid, InCall::new(entry, start), result, time);
            }
        }
        self.resume(tid, 0);
    }

    pub(super) fn note_call(&mut self, tid: Tid, call: InCall, result: i64, time: u64) {
        let Entry { number, args, .. } = call.entry;
        let class = calls::classify(number, &args);
        if class == Class::Credentials {
            return self.note_privileges(tid, time);
        }
        if class == Class::File {
            return self.note_file_call(tid, &call, result, time);
        }
        // Before the program has begun, these are searches for it in PATH.
        if RESTARTS.contains(&result) || !self.begun {
            self.merger.cancel(tid, call.start);
            return;
        }
        if call.emulated {
            self.made_thp_call(tid, &args, result);
        }
        let detail = self.detail_after(tid, number, &args, result, call.detail);
        let effect = self.effect(tid, number, &args, result);
        self.touched_after_call(tid, number, &args, result);
        let Some(task) = self.tasks.get(&tid) else { return };
        let event = Call { number: number as u32, args, result, detail };
        let mut kinds = vec![EventKind::Call(event)];
        if let Some((target, soft, hard)) = call.limit.filter(|_| result == 0) {
            let resource = args[usize::from(number as i64 == libc::SYS_prlimit64)] as u32;
            let target = self.tasks.get(&target).map(|target| target.id);
            if let (Some(target), Some(kind)) = (target, limit_kind(resource)) {
                kinds.push(EventKind::Limit(Limit { target, kind, soft, hard }));
            }
        }
        let space = task.space;
        self.record(tid, (call.start, time), Rule::Call(effect), kinds);
        self.sample_peaks(tid, space, time);
    }

    /// What the call did, with the program break taken into account.
    fn effect(&mut self, tid: Tid, number: u64, args: &[u64; 6], result: i64) -> Effect {
        let effect = calls::effect(number, args, result);
        if number as i64 != libc::SYS_brk {
            return effect;
        }
        let space = self.tasks.get(&tid).map(|task| task.space);
        let Some(space) = space.and_then(|space| self.spaces.get_mut(&space)) else { return effect };
        let (old, new) = (std::mem::replace(&mut space.brk, result as u64), result as u64);
        if new < old {
            Effect::Removes { start: new, end: old }
        } else {
            Effect::Creates { start: old, end: new }
        }
    }
}

fn limit_kind(resource: u32) -> Option<LimitKind> {
    match resource {
        libc::RLIMIT_AS => Some(LimitKind::AddressSpace),
        libc::RLIMIT_DATA => Some(LimitKind::Data),
        libc::RLIMIT_STACK => Some(LimitKind::Stack),
        libc::RLIMIT_MEMLOCK => Some(LimitKind::LockedMemory),
        _ => None,
    }
}
