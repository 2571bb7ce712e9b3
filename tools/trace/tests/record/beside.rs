//! Processes beside others that keep the recorder busy, and beside others that are killed.

use crate::recording::Recording;
use crate::shared::OLD_CALLS;
use quire_trace::event::{EventKind, ExitStatus, TaskId};
use quire_trace::record::{CallChoice, RecordOptions};

/// Processes that call all the time do not keep the recorder from one that is older than they are.
#[test]
fn an_old_process_is_heard_of_beside_young_ones() {
    let stops = |options: &mut RecordOptions| options.calls = CallChoice::Stops;
    let Some(recorded) = Recording::with("is_busy_beside_older_ones", stops) else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(5));
    let advices = |task: fn(TaskId) -> bool| {
        let of_task = recorded.events.iter().filter(|event| task(event.task));
        of_task
            .filter(|event| match &event.kind {
                EventKind::Call(call) => i64::from(call.number) == libc::SYS_madvise && call.args[1] == 0,
                _ => false,
            })
            .count()
    };
    let (young, all) = (advices(|task| task.0 > 0), advices(|_| true));
    assert_eq!(all - young, OLD_CALLS);
    // Each of the four makes about as many as the old one.
    assert!(young < 12 * OLD_CALLS, "{young} calls beside {OLD_CALLS}");
}

/// A process is killed when its call has done its work and it has not been seen to come out of it.
#[test]
fn the_last_call_of_what_is_killed_is_recorded() {
    for recorded in Recording::in_both_ways("kills_what_shares_its_memory") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(6));
        let killed = recorded.count(|kind| matches!(kind, EventKind::Exit(ExitStatus::Signal(9))));
        assert_eq!(killed, 200);
        recorded.file.assert_replays();
    }
}
