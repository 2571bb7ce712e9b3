//! Letting all threads go before they have ended.
//!
//! A thread can be let go only while it is stopped. Threads that run are stopped for it; one that waits for its vfork
//! child cannot be, until that child executes or ends. What is left when the time is up dies with the recorder.

use super::heard::Heard;
use super::state::State;
use super::{Tracer, newer};
use crate::event::ExitStatus;
use crate::record::sys::wait::{Happened, Waited, poll};
use crate::record::sys::{Tid, ptrace};
use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

/// The time for it.
const LIMIT: Duration = Duration::from_millis(800);
/// Between two looks at what has stopped.
const PAUSE: Duration = Duration::from_millis(1);

impl Tracer<'_> {
    /// Lets all threads go: none is left stopped, and none that makes new ones is left behind.
    pub(super) fn let_all_go(&mut self) {
        let until = Instant::now() + LIMIT;
        let mut left: HashSet<Tid> = self.tasks.keys().chain(&self.unrecorded).copied().collect();
        for tid in &left {
            // An error means that it is gone.
            drop(ptrace::interrupt(*tid));
        }
        // These stand still, so that nothing more is heard of them.
        let held = self.tasks.iter().filter(|(_, task)| matches!(task.state, State::Held(_)));
        let held: Vec<Tid> = held.map(|(tid, _)| *tid).chain(self.early.keys().copied()).collect();
        for tid in held {
            if ptrace::detach(tid, 0).is_ok() {
                left.remove(&tid);
            }
        }
        while let Some(Heard { tid, happened, .. }) = self.heard.pop(newer) {
            self.let_go_for_good(tid, happened, &mut left);
        }
        while Instant::now() < until {
            match poll(None) {
                Ok(Some(Waited::Thread(tid, happened))) => self.let_go_for_good(tid, happened, &mut left),
                Ok(Some(Waited::Interrupted)) => {}
                Ok(Some(Waited::NoneLeft)) | Err(_) => return,
                Ok(None) if !left.is_empty() => std::thread::sleep(PAUSE),
                Ok(None) => {
                    // Threads that were made meanwhile.
                    left = followed_by_this_thread();
                    if left.is_empty() {
                        return;
                    }
                    for tid in &left {
                        drop(ptrace::interrupt(*tid));
                    }
                }
            }
        }
        self.followed.not_released = left.len();
    }

    fn let_go_for_good(&mut self, tid: Tid, happened: Happened, left: &mut HashSet<Tid>) {
        match happened {
            Happened::Stopped { signal, event } => {
                // A signal that is being delivered is delivered; other stops have no signal of their own.
                let delivered = if event == 0 && signal & 0x80 == 0 { signal } else { 0 };
                if ptrace::detach(tid, delivered).is_ok() {
                    left.remove(&tid);
                }
            }
            Happened::Exited(_) | Happened::Killed(_) => {
                left.remove(&tid);
                if tid == self.root {
                    self.followed.status = ExitStatus::Unknown;
                }
            }
        }
    }
}

/// The threads of the whole system that the calling thread follows.
fn followed_by_this_thread() -> HashSet<Tid> {
    // SAFETY: gettid has no preconditions.
    let own = format!("TracerPid:\t{}\n", unsafe { libc::gettid() });
    let numbers = |path: String| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Tid>().ok())
    };
    let threads = numbers("/proc".to_owned()).flat_map(|pid| numbers(format!("/proc/{pid}/task")));
    threads
        .filter(|tid| fs::read_to_string(format!("/proc/{tid}/status")).is_ok_and(|text| text.contains(&own)))
        .collect()
}
