//! A program that looks at the CPUs on which it may run.

use crate::shared::cpus;

/// Stops often enough for the recorder to bring this thread to its CPU.
fn stop_often() {
    for _ in 0..200 {
        // SAFETY: advice about nothing changes nothing.
        unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
    }
}

/// The CPUs of a process that is made now.
fn cpus_of_child(expected: &[usize]) -> bool {
    // SAFETY: the child makes system calls only and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(cpus() != expected));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status == 0
    }
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
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(last, &mut set);
        stop_often();
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
    for _ in 0..5 {
        stop_often();
        assert_eq!(cpus(), [last]);
        assert!(cpus_of_child(&[last]));
    }
}
