//! Detaching from all threads before they have ended.
//!
//! A thread can be detached only while it is stopped. Running threads are stopped for it; one that waits
//! for its vfork child cannot be, until that child executes or ends. Threads that are left when the time is
//! up die with the recorder.

use super::other_tracer::may_go_on;
use super::state::State;
use super::status_queue::PendingStatus;
use super::stay::detach_all;
use super::{Tracer, newer};
use crate::proc::Keyed;
use crate::sys::ptrace::{EVENT_STOP, Resume};
use crate::sys::wait::{ChildStatus, Waited, poll};
use crate::sys::{Tid, ptrace};
use quire_trace::format::CallSource;
use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

/// The time limit.
const LIMIT: Duration = Duration::from_millis(800);
/// The time between two checks for stopped threads.
const PAUSE: Duration = Duration::from_millis(1);

/// Threads on the way to a stop in which they can be detached.
#[derive(Debug, Default)]
struct Gathered {
    running: HashSet<Tid>,
    /// They are in PTRACE_EVENT_STOP: in no call, and with no signal in delivery.
    standing: HashSet<Tid>,
}

impl Gathered {
    /// Stops a thread that runs or is in another stop.
    fn stop(&mut self, tid: Tid) {
        // An error means that it has ended.
        if ptrace::interrupt(tid).is_ok() {
            self.running.insert(tid);
        }
    }

    fn note(&mut self, tid: Tid, status: ChildStatus) {
        match status {
            ChildStatus::Stopped { event: EVENT_STOP, .. } => {
                self.running.remove(&tid);
                self.standing.insert(tid);
            }
            ChildStatus::Stopped { signal, event } => {
                self.stop(tid);
                if event == libc::PTRACE_EVENT_SECCOMP && !may_go_on(tid) {
                    return;
                }
                // A signal in delivery is delivered; other stops have no signal. The thread stops again
                // before its next instruction.
                let delivered = if event == 0 && signal & 0x80 == 0 { signal } else { 0 };
                drop(ptrace::resume(tid, Resume::Continue, delivered));
            }
            ChildStatus::Exited(_) | ChildStatus::Killed(_) => {
                self.running.remove(&tid);
                self.standing.remove(&tid);
            }
        }
    }
}

impl Tracer<'_> {
    /// Detaches from all threads: none is left stopped, and none that makes new ones is left behind.
    pub(super) fn detach_all(&mut self) {
        let mut gathered = Gathered::default();
        self.gather(&mut gathered);
        let standing = Vec::from_iter(gathered.standing);
        detach_all(&standing, self.calls == CallSource::Seccomp);
        self.summary.not_released = gathered.running.len();
    }

    /// Stops all threads.
    fn gather(&mut self, gathered: &mut Gathered) {
        let until = Instant::now() + LIMIT;
        for tid in self.tasks.keys().chain(&self.unrecorded) {
            gathered.stop(*tid);
        }
        while let Some(PendingStatus { tid, status, .. }) = self.pending.pop(newer) {
            gathered.note(tid, status);
        }
        for (tid, early) in &self.early {
            gathered.note(*tid, early.status);
        }
        for (tid, task) in &self.tasks {
            if matches!(task.state, State::AwaitsCallLock(_)) {
                drop(ptrace::resume(*tid, Resume::Continue, 0));
            }
        }
        while Instant::now() < until {
            match poll(None) {
                Ok(Some(Waited::Thread(tid, status))) => gathered.note(tid, status),
                Ok(Some(Waited::Interrupted)) => {}
                Ok(Some(Waited::NoneLeft)) | Err(_) => {
                    *gathered = Gathered::default();
                    return;
                }
                Ok(None) if !gathered.running.is_empty() => {
                    std::thread::sleep(PAUSE);
                    // A thread that executed a program has another id.
                    gathered.running.retain(|tid| ptrace::interrupt(*tid).is_ok());
                }
                Ok(None) => {
                    // Threads that were made meanwhile.
                    let followed = followed_by_this_thread();
                    gathered.standing.retain(|tid| followed.contains(tid));
                    for tid in followed.difference(&gathered.standing).copied().collect::<Vec<_>>() {
                        gathered.stop(tid);
                    }
                    if gathered.running.is_empty() {
                        return;
                    }
                }
            }
        }
    }
}

/// All tracees of the calling thread in the whole system.
fn followed_by_this_thread() -> HashSet<Tid> {
    let own = rustix::thread::gettid().as_raw_pid() as u64;
    let numbers = |path: String| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Tid>().ok())
    };
    let threads = numbers("/proc".to_owned()).flat_map(|pid| numbers(format!("/proc/{pid}/task")));
    threads.filter(|tid| Keyed::status(*tid).number("TracerPid") == Some(own)).collect()
}
