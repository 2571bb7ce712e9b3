//! A program that looks at the CPUs on which it may run.

use crate::shared::cpus;
use crate::{end, make_process, wait_for};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Stops often enough for the recorder to bring this thread to its CPU.
fn stop_often() {
    for _ in 0..200 {
        // SAFETY: advice about nothing changes nothing.
        unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
    }
}

/// The CPUs of a process that is made now.
fn cpus_of_child(expected: &[usize]) -> bool {
    wait_for(make_process(|| {
        if cpus() != expected {
            end(1);
        }
    })) == 0
}

pub(crate) fn looks_at_its_cpus() {
    let own = cpus();
    for round in 0..50 {
        stop_often();
        assert_eq!(cpus(), own, "round {round}");
        stop_often();
        assert!(cpus_of_child(&own), "round {round}");
    }
    let last = *own.last().unwrap();
    let mut set = CpuSet::new();
    set.set(last);
    stop_often();
    sched_setaffinity(None, &set).unwrap();
    for _ in 0..5 {
        stop_often();
        assert_eq!(cpus(), [last]);
        assert!(cpus_of_child(&[last]));
    }
}
