//! Programs that set `PR_SET_THP_DISABLE`, or touch memory that asks for huge pages. What they find goes to
//! the standard output, a line each.

use crate::{PAGE, PRIVATE, READ_WRITE, end, execute, leave, make_process, map, wait_for};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};

const HUGE: usize = 2 << 20;
/// The largest number of the two calls' options, in a register's upper half.
const HIGH: u64 = 1 << 32;

fn prctl(option: i32, rest: [u64; 4]) -> i64 {
    let [second, third, fourth, fifth] = rest;
    // SAFETY: a setting of this process; all arguments are numbers.
    let result = unsafe { libc::syscall(libc::SYS_prctl, option, second, third, fourth, fifth) };
    if result == -1 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { result }
}

fn get() -> i64 {
    prctl(libc::PR_GET_THP_DISABLE, [0; 4])
}

fn set(value: u64, flags: u64) -> i64 {
    prctl(libc::PR_SET_THP_DISABLE, [value, flags, 0, 0])
}

/// Sets it in a way and says what came of it.
fn try_to_set(rest: [u64; 4]) {
    let result = prctl(libc::PR_SET_THP_DISABLE, rest);
    println!("set {rest:x?}: {result}, then {}", get());
}

/// Executes another of the programs here.
fn become_program(name: &str) {
    let own = std::env::current_exe().unwrap();
    execute(&[&CString::new(own.as_os_str().as_bytes()).unwrap(), &CString::new(name).unwrap()]);
}

/// What a child finds, and its child, and the program that it becomes; and what it leaves to its maker.
fn in_children(value: u64, flags: u64) {
    set(value, flags);
    let child = make_process(|| {
        println!("child of {value} {flags}: {}", get());
        set(u64::from(value == 0), 0);
        wait_for(make_process(|| println!("its child: {}", get())));
        become_program("says_its_setting");
    });
    wait_for(child);
    println!("maker: {}", get());
    wait_for(make_process(|| become_program("says_its_setting")));
}

static FOUND: AtomicUsize = AtomicUsize::new(0);

extern "C" fn sets_for_its_maker(_: *mut libc::c_void) -> i32 {
    FOUND.store(get() as usize, Ordering::Relaxed);
    set(1, 0);
    0
}

/// A child that uses its maker's memory sets what the maker finds.
fn in_a_child_that_shares() {
    set(1, 2);
    let stack = map(64 * PAGE, READ_WRITE, PRIVATE);
    // SAFETY: the child runs on a stack of its own while its maker waits (CLONE_VFORK), and ends there.
    let child = unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(sets_for_its_maker, stack.wrapping_add(64 * PAGE).cast(), flags, std::ptr::null_mut())
    };
    wait_for(child);
    println!("shared: the child found {}, its maker {}", FOUND.load(Ordering::Relaxed), get());
}

pub(crate) fn disables_huge_pages() {
    println!("at first: {}", get());
    for rest in [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 2, 0, 0],
        [2, 0, 0, 0],
        [0, 2, 0, 0],
        [0, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 3, 0, 0],
        [1, 4, 0, 0],
        [u64::MAX, 2, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [HIGH, 0, 0, 0],
        [1, 2 | HIGH, 0, 0],
        [1, 0, 0, HIGH],
        [1, 2, 1, 0],
        [0, 0, 0, 0],
    ] {
        try_to_set(rest);
    }
    for place in 0..4 {
        let mut rest = [0; 4];
        rest[place] = 1;
        println!("get {rest:x?}: {}", prctl(libc::PR_GET_THP_DISABLE, rest));
    }
    for (value, flags) in [(0, 0), (1, 0), (1, 2)] {
        in_children(value, flags);
    }
    in_a_child_that_shares();
    std::thread::spawn(|| set(0, 0)).join().unwrap();
    println!("after another thread: {}", get());
    leave(0);
}

pub(crate) fn says_its_setting() {
    println!("{}", get());
    end(0);
}

/// Touches each page of 8 MiB that ask for huge pages, and asks for one in memory that does not.
pub(crate) fn touches_huge_memory() {
    let advised = map(5 * HUGE, READ_WRITE, PRIVATE);
    let advised = advised.wrapping_add(advised.align_offset(HUGE));
    let plain = map(2 * HUGE, READ_WRITE, PRIVATE);
    let plain = plain.wrapping_add(plain.align_offset(HUGE));
    // SAFETY: the ranges and pages lie in the two mappings.
    unsafe {
        assert_eq!(libc::madvise(advised.cast(), 4 * HUGE, libc::MADV_HUGEPAGE), 0);
        for page in 0..4 * HUGE / PAGE {
            advised.add(page * PAGE).write_volatile(1);
        }
        plain.write_volatile(1);
        libc::madvise(plain.cast(), HUGE, libc::MADV_COLLAPSE);
    }
    // Refused, whatever was set: it is not aligned.
    // SAFETY: the address lies in the mapping.
    unsafe { libc::madvise(plain.wrapping_add(1).cast(), PAGE, libc::MADV_COLLAPSE) };
    leave(0);
}
