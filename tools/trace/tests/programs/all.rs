//! Programs that the tests record. Usage: `quire-trace-programs NAME`.

#![allow(clippy::unwrap_used, reason = "a step that fails is a program that fails, which the test sees")]

mod beside;
mod calls;
mod cpus;
mod ends;
mod figures;
mod hostile;
mod memory;
mod policy;
mod shared;
mod stay;

use quire_trace::record::{RecordError, RecordOptions, record};
use shared::PAGE;
use std::path::PathBuf;

/// The names of programs, each a function of the same name.
macro_rules! programs {
    ($($module:ident: $($name:ident)+;)+) => {
        const PROGRAMS: &[(&str, fn())] = &[$($((stringify!($name), $module::$name)),+),+];
    };
}

programs! {
    beside: is_busy_beside_older_ones kills_what_shares_its_memory;
    calls: asks_into_bad_vectors attaches collapses fails maps_below_2g maps_descriptors maps_huge_pages maps_zeros;
    cpus: looks_at_its_cpus;
    ends: ends_only_when_killed executes_what_is_not_executable exits_while_it_forks kills_what_executes
        mends_what_was_refused traces;
    figures: has_threads_and_starts_a_program;
    hostile: makes_hostile_calls;
    memory: details executes_from_thread foreign forks guard killed leaves_threads nothing spawns threads uses_again;
    policy: executes_in_every_way locks locks_in_every_way maps_low mdwe shares_memory threads_differ;
    stay: makes_calls_for_ever;
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

fn map(len: usize, prot: i32, flags: i32) -> *mut u8 {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    addr.cast()
}
