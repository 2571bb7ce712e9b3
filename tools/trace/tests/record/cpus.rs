//! The CPUs on which a program may run are the same recorded and alone.

use super::{is_permitted, output};
use quire_trace::record::{RecordOptions, record};

/// The CPUs of this thread.
fn cpus() -> Vec<usize> {
    // SAFETY: the set is plain numbers, for which zeros are valid; it is live and of the size that is told.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

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

#[test]
#[ignore = "a program that tests record"]
fn child_looks_at_its_cpus() {
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

#[test]
fn a_program_sees_its_own_cpus() {
    let program = std::env::current_exe().unwrap().into_os_string();
    let words = ["cpus::child_looks_at_its_cpus", "--exact", "--ignored", "--quiet", "--test-threads=1"];
    let command = std::iter::once(program).chain(words.map(Into::into)).collect();
    let path = output("cpus");
    let before = cpus();
    let result = record(&RecordOptions::new(command, path.clone()));
    assert_eq!(cpus(), before, "the recorder's thread has its own again");
    if !is_permitted(&result) {
        return;
    }
    assert_eq!(result.unwrap().exit_code(), 0);
    std::fs::remove_file(&path).unwrap();
}
