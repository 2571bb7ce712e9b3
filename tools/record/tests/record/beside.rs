//! Processes beside others that keep the recorder busy, and beside others that are killed.

use crate::recording::Recording;
use crate::shared::OLD_CALLS;
use quire_record::{CallChoice, RecordOptions};
use quire_trace::event::{EventKind, ExitStatus, TaskId};

/// Processes that call all the time do not keep the recorder from one that is older than they are. They look
/// themselves whether it is left in a stop while they have turns: how many calls each makes depends on which
/// of them Linux gives a CPU.
#[test]
fn an_old_process_is_heard_of_beside_young_ones() {
    let stops = |options: &mut RecordOptions| options.calls = CallChoice::Stops;
    let Some(recorded) = Recording::with("is_busy_beside_older_ones", stops) else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(5), "4: a young one had several turns before it");
    let of_the_old = recorded.events.iter().filter(|event| match &event.kind {
        EventKind::Call(call) => {
            event.task == TaskId(0) && i64::from(call.number) == libc::SYS_madvise && call.args[1] == 0
        }
        _ => false,
    });
    assert_eq!(of_the_old.count(), OLD_CALLS);
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
