//! The recorder's priority.

use rustix::process::{getpriority_process, setpriority_process};

/// Lets the calling thread run before programs: it empties ring buffers that do not wait for it. Processes
/// that it makes have the usual priority. Where this is not permitted, the priority stays as it is.
pub(crate) fn run_first() {
    let Ok(own) = getpriority_process(None) else { return };
    // SAFETY: it asks for the policy of this thread, then sets it to the same one; the parameters are a live
    // local.
    unsafe {
        let policy = libc::sched_getscheduler(0);
        let none = libc::sched_param { sched_priority: 0 };
        if policy != libc::SCHED_OTHER
            || libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const none) != 0
        {
            return;
        }
    }
    // Of two recorders the one with the better priority keeps it.
    let _ = setpriority_process(None, (own - BETTER).max(BEST));
}

/// The best priority.
const BEST: i32 = -20;
/// From the priority that programs usually have to the best one.
const BETTER: i32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process;
    use rustix::process::{Pid, WaitOptions, waitpid};

    #[test]
    fn processes_of_a_thread_that_runs_first_do_not() {
        let usual = getpriority_process(None).unwrap();
        // A thread's priority is its own.
        std::thread::spawn(move || {
            run_first();
            let raised = getpriority_process(None).unwrap();
            if raised == usual {
                return eprintln!("skipped: a better priority is not permitted here");
            }
            assert_eq!(raised, (usual - BETTER).max(BEST));
            // SAFETY: the child makes one system call.
            let child = unsafe { process::fork(|| getpriority_process(None).map_or(99, |nice| nice)) };
            let child = Pid::from_raw(child.unwrap());
            let (_, status) = waitpid(child, WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(status.exit_status(), Some(raised.max(0)));
        })
        .join()
        .unwrap();
        assert_eq!(getpriority_process(None).unwrap(), usual);
    }
}
