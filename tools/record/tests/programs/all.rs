//! Programs that the tests record. Usage: `quire-record-programs NAME`.

#![allow(clippy::unwrap_used, reason = "a step that fails is a program that fails, which the test sees")]

mod beside;
mod calls;
mod compat;
mod confined;
mod cpus;
mod ends;
mod figures;
mod files;
mod fuse;
mod hidden;
mod hostile;
mod huge;
mod maps;
mod memory;
mod policy;
mod sampled;
mod shared;
mod stay;

use quire_record::{RecordError, RecordOptions, record};
use shared::PAGE;
use std::ffi::CStr;
use std::path::PathBuf;

/// The names of programs, each a function of the same name.
macro_rules! programs {
    ($($module:ident: $($name:ident)+;)+) => {
        const PROGRAMS: &[(&str, fn())] = &[$($((stringify!($name), $module::$name)),+),+];
    };
}

programs! {
    beside: is_busy_beside_older_ones kills_what_shares_its_memory;
    calls: asks_into_bad_vectors attaches collapses divides_special_mappings fails installs_guards maps_below_2g
        maps_descriptors maps_huge_pages maps_zeros;
    confined: asks_a_tracer_in_32_bit_mode asks_a_tracer_that_is_not_there asks_for_strict_mode
        makes_untraced_children_with_arguments_elsewhere restricts_itself traces_what_it_executes
        uses_the_arguments_of_untraced_children_again;
    cpus: looks_at_its_cpus;
    ends: ends_only_when_killed executes_what_is_not_executable exits_while_it_forks kills_what_executes
        is_stopped_by_the_terminal leaves_its_group makes_untraced_children makes_untraced_children_in_32_bit
        mends_what_was_refused traces;
    figures: has_memory_that_calls_bring_in has_memory_that_the_kernel_brings_in
        has_threads_and_starts_a_program lets_files_in_memory_go locks_a_file_in_memory_that_grew reads_files_in_memory;
    files: allocates_while_descriptors_change changes_a_mapped_file cuts_a_mapped_file empties_a_mapped_file
        executes_a_fifo reads_a_file reads_many_files;
    fuse: maps_a_file_that_it_serves;
    hidden: executes_what_is_hidden executes_what_is_hidden_under_a_filter fails_to_execute_in_between
        leaves_its_recorder_no_descriptors touches touches_and_fails_to_execute touches_in_threads
        touches_in_threads_under_a_filter touches_under_a_filter touches_with_others;
    hostile: makes_hostile_calls;
    huge: disables_huge_pages says_its_setting touches_huge_memory;
    maps: maps_files_again_and_again forks_while_a_thread_maps hands_memory_from_thread_to_thread kills_what_maps makes_calls_that_are_not_read
        maps_alone;
    memory: asks_by_x32 details executes_from_thread executes_what_used_pages_again foreign forks guard killed
        leaves_threads nothing spawns threads uses_again holds_pages_that_compress_differently uses_a_part_of_its_memory uses_pages_that_compress_badly
        uses_what_came_in_without_a_fault uses_what_short_threads_filled uses_what_was_paged_out;
    policy: executes_in_every_way locks locks_in_every_way maps_low mdwe shares_memory threads_differ;
    sampled: keeps_pages_that_it_shares;
    stay: asks_a_tracer_for_ever leaves_a_daemon makes_calls_for_ever;
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match &words[1..] {
        [word, program, output] if word == "record" => record_program(&words[0], program, output),
        [name] => {
            let (_, program) =
                PROGRAMS.iter().find(|(known, _)| known == name).expect("the name of a program");
            program();
        }
        _ => panic!("usage: {} NAME, or {0} record NAME OUTPUT", words[0]),
    }
}

/// A recorder that tests send signals to.
fn record_program(own: &str, program: &str, output: &str) {
    match record(&RecordOptions::new(vec![own.into(), program.into()], PathBuf::from(output))) {
        Err(error @ RecordError::Ptrace { .. }) => {
            eprintln!("skipped: {error}");
            leave(shared::NOT_PERMITTED);
        }
        result => leave(i32::from(result.unwrap().exit_code())),
    }
}

fn leave(code: i32) -> ! {
    std::process::exit(code)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn map(len: usize, prot: i32, flags: i32) -> *mut u8 {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    addr.cast()
}

/// Makes a process that runs `body` and ends, with code 0 if `body` does not end it. Returns its id.
fn make_process(body: impl FnOnce()) -> i32 {
    // SAFETY: the bodies make system calls and use memory of their own; none waits for another thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        end(0);
    }
    child
}

/// Ends this process at once.
fn end(code: i32) -> ! {
    // SAFETY: it has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Waits for a process that was made here; returns how it ended.
fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Ends a process that was made here.
fn kill(child: i32) {
    // SAFETY: signals a child that was not waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait_for(child);
}

/// Sets what a signal does; returns what it did.
fn handle(signal: i32, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the handlers make one system call or change an atomic number.
    unsafe { libc::signal(signal, handler) }
}

fn ignore_ends() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, libc::SIG_IGN);
    }
}

/// Sleeps without anything that the standard library does beside it.
fn nap(nanoseconds: i64) -> bool {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::nanosleep(&raw const nap, std::ptr::null_mut()) == 0 }
}

/// Becomes another program, unless that fails.
fn execute(words: &[&CStr]) {
    let pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: strings that end with zeros, in a list that does.
    unsafe { libc::execv(pointers[0], pointers.as_ptr()) };
}
