//! Programs that only root may look into, as setuid and setgid programs are: Linux removes their perf events.

use crate::confined::filter;
use crate::shared::{HIDDEN_PAGES, NOT_PERMITTED, PAGE, TOUCHING_THREADS};
use crate::{PRIVATE, READ_WRITE, end, execute, leave, make_process, map, wait_for};
use std::ffi::CStr;

fn touch(addr: *mut u8) {
    for page in 0..HIDDEN_PAGES {
        // SAFETY: memory of so many pages that stays mapped.
        unsafe { addr.add(page * PAGE).write_volatile(1) };
    }
}

/// From now on the real group is not the effective one, and so what this process executes is hidden.
fn execute_hidden(name: &CStr) -> ! {
    // SAFETY: changes a number of this process.
    if unsafe { libc::setresgid(1, u32::MAX, u32::MAX) } != 0 {
        leave(NOT_PERMITTED);
    }
    execute(&[c"/proc/self/exe", name]);
    leave(1)
}

pub(crate) fn executes_what_is_hidden() {
    execute_hidden(c"touches_with_others");
}

/// Also run as a setgid program.
pub(crate) fn touches_with_others() {
    // SAFETY: both ask for a number.
    if unsafe { libc::getgid() == libc::getegid() } {
        leave(NOT_PERMITTED);
    }
    let addr = map(HIDDEN_PAGES * PAGE, READ_WRITE, PRIVATE);
    touch(addr);
    let status = wait_for(make_process(|| {
        touch(addr);
        end(0);
    }));
    assert_eq!(status, 0);
    touch(addr);
    std::thread::spawn(|| touch(map(HIDDEN_PAGES * PAGE, READ_WRITE, PRIVATE))).join().unwrap();
    // A program that is hidden no longer.
    wait_for(make_process(|| {
        // SAFETY: changes a number of this process.
        unsafe { libc::setresgid(0, 0, 0) };
        execute(&[c"/proc/self/exe", c"touches"]);
    }));
    leave(6);
}

pub(crate) fn touches() {
    touch(map(HIDDEN_PAGES * PAGE, READ_WRITE, PRIVATE));
    leave(0);
}

/// What is executed cannot be asked what it is: the call fails.
pub(crate) fn executes_what_is_hidden_under_a_filter() {
    filter(&[libc::SYS_prctl], libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    execute_hidden(c"touches_with_others");
}

/// The same, but the call would kill it; and it is not hidden.
pub(crate) fn touches_under_a_filter() {
    filter(&[libc::SYS_prctl], libc::SECCOMP_RET_KILL_PROCESS);
    execute(&[c"/proc/self/exe", c"touches"]);
    leave(1)
}

/// Memory that threads write, each a part of it; each ends at once.
pub(crate) fn touches_in_threads() {
    let addr = map(TOUCHING_THREADS * HIDDEN_PAGES * PAGE, READ_WRITE, PRIVATE).expose_provenance();
    for thread in 0..TOUCHING_THREADS {
        let part = addr + thread * HIDDEN_PAGES * PAGE;
        std::thread::spawn(move || touch(std::ptr::with_exposed_provenance_mut(part))).join().unwrap();
    }
    leave(0);
}

pub(crate) fn touches_in_threads_under_a_filter() {
    filter(&[libc::SYS_prctl], libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    execute(&[c"/proc/self/exe", c"touches_in_threads"]);
    leave(1)
}

/// Each of the programs that are tried might have been its end.
pub(crate) fn touches_and_fails_to_execute() {
    touch(map(HIDDEN_PAGES * PAGE, READ_WRITE, PRIVATE));
    for _ in 0..20 {
        execute(&[c"/proc/none"]);
    }
    leave(0);
}

pub(crate) fn fails_to_execute_in_between() {
    leave_no_descriptors();
    execute_hidden(c"touches_and_fails_to_execute");
}

pub(crate) fn leaves_its_recorder_no_descriptors() {
    leave_no_descriptors();
    execute_hidden(c"touches_with_others");
}

/// The recorder has no descriptors left for other events.
fn leave_no_descriptors() {
    // SAFETY: asks for a number.
    let recorder = unsafe { libc::getppid() };
    let open = std::fs::read_dir(format!("/proc/{recorder}/fd")).unwrap().count();
    // A few for the files that it reads.
    let most = open as u64 + 4;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the pointer is to a live local.
    let set = unsafe { libc::prlimit(recorder, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}
