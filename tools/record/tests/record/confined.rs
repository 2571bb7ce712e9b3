//! Programs that filter their calls, confine themselves, or trace others: they work as they do alone, or one
//! message says what does not.

use crate::recording::Recording;
use crate::shared::{HIDDEN_PAGES, NOT_PERMITTED};
use quire_trace::event::ExitStatus;
use std::sync::Mutex;

/// Records a program that ends with this code: the recording, and what was said. `None` where that is not
/// permitted.
fn told(
    program: &str,
    code: u8,
    notices: &'static Mutex<Vec<String>>,
    notify: fn(&str),
) -> Option<(Recording, Vec<String>)> {
    let recorded = Recording::with(program, |options| options.notify = notify)?;
    if recorded.summary.status == ExitStatus::Code(NOT_PERMITTED as u8) {
        eprintln!("skipped: this kernel cannot do it");
        return None;
    }
    assert_eq!(recorded.summary.status, ExitStatus::Code(code));
    recorded.assert_each_thread_ends_once();
    recorded.file.assert_replays();
    let said = std::mem::take(&mut *notices.lock().unwrap());
    Some((recorded, said))
}

/// A recording and its messages.
macro_rules! told {
    ($program:literal, $code:literal) => {{
        static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let notify = |line: &str| NOTICES.lock().unwrap().push(line.to_owned());
        told($program, $code, &NOTICES, notify)
    }};
}

/// The recorder is a tracer, but not the one that the filter means.
#[test]
fn calls_that_a_filter_leaves_to_a_tracer_fail_as_without_one() {
    let Some((recorded, _)) = told!("asks_a_tracer_that_is_not_there", 11) else { return };
    for call in [libc::SYS_madvise, libc::SYS_mlock, libc::SYS_mincore] {
        assert_eq!(recorded.calls(call).filter(|call| call.errno().is_none()).count(), 0);
    }
}

/// The same of a thread in 32-bit mode, and of its calls from 64-bit mode.
#[test]
fn calls_in_32_bit_mode_that_a_filter_leaves_to_a_tracer_fail() {
    drop(told!("asks_a_tracer_in_32_bit_mode", 17));
}

#[test]
fn strict_mode_gets_a_message() {
    let Some((_, said)) = told!("asks_for_strict_mode", 12) else { return };
    let said: Vec<_> = said.iter().filter(|line| line.contains("strict")).collect();
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn programs_that_restrict_themselves_are_recorded_whole() {
    let Some((recorded, _)) = told!("restricts_itself", 13) else { return };
    assert_eq!(recorded.summary.totals.lost_samples, 0);
    assert!(recorded.faults().count() > 3 * HIDDEN_PAGES);
}

#[test]
fn a_child_that_asks_to_be_traced_gets_a_message() {
    let Some((recorded, said)) = told!("traces_what_it_executes", 14) else { return };
    assert_eq!(said.iter().filter(|line| line.contains("ptrace")).count(), 1, "{said:?}");
    assert!(recorded.faults().count() > HIDDEN_PAGES);
}

/// The child is first heard of when its maker has gone on.
#[test]
fn memory_of_a_maker_that_has_gone_on_is_not_written() {
    let Some((recorded, _)) = told!("uses_the_arguments_of_untraced_children_again", 15) else { return };
    assert_eq!(recorded.summary.processes, 401);
}

/// Memory that cannot be written and that others have is left as it is: then the child is not followed.
#[test]
fn untraced_children_that_cannot_be_followed_get_a_message() {
    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let notify = |line: &str| NOTICES.lock().unwrap().push(line.to_owned());
    let program = "makes_untraced_children_with_arguments_elsewhere";
    let Some(recorded) = Recording::with(program, |options| options.notify = notify) else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(16));
    let said = NOTICES.lock().unwrap();
    assert_eq!(said.iter().filter(|line| line.contains("CLONE_UNTRACED")).count(), 1, "{said:?}");
    assert_eq!(recorded.summary.processes, 3);
}
