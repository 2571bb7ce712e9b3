//! Processes beside others that keep the recorder busy, and beside others that are killed.

use crate::children::{PAGE, leave, map};
use crate::{assert_replays, count, is_permitted, output};
use quire_trace::event::{Event, EventKind, ExitStatus, TaskId};
use quire_trace::format::TraceReader;
use quire_trace::record::{RecordOptions, record};
use std::ffi::{OsString, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Records a child of this file that ends with this code; the recording is left behind.
fn record_child(child: &str, code: u8) -> Option<(Vec<Event>, PathBuf)> {
    let program = std::env::current_exe().unwrap().into_os_string();
    let name = format!("beside::{child}");
    let words = [&name, "--exact", "--ignored", "--nocapture", "--quiet", "--test-threads=1"];
    let command = std::iter::once(program).chain(words.map(OsString::from)).collect();
    let path = output(child);
    let result = record(&RecordOptions::new(command, path.clone()));
    if !is_permitted(&result) {
        return None;
    }
    assert_eq!(result.unwrap_or_else(|error| panic!("{error}")).status, ExitStatus::Code(code));
    Some((TraceReader::open(&path).unwrap().map(Result::unwrap).collect(), path))
}

/// Memory that all processes share.
fn shared() -> &'static AtomicU32 {
    let addr = map(PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a page of zeros that stays mapped.
    unsafe { &*addr.cast::<AtomicU32>() }
}

fn advise() {
    // SAFETY: advice about nothing changes nothing.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
}

/// How many calls the old process makes, and how many each of the young ones at most.
const OLD_CALLS: usize = 1000;
const YOUNG_CALLS: usize = 50_000;

#[test]
#[ignore = "a program that tests record"]
fn child_is_busy_beside_older_ones() {
    let ended = shared();
    for _ in 0..4 {
        // SAFETY: the children make system calls only and end.
        unsafe {
            if libc::fork() == 0 {
                let mut calls = 0;
                while calls < YOUNG_CALLS && ended.load(Ordering::Relaxed) == 0 {
                    advise();
                    calls += 1;
                }
                libc::_exit(0);
            }
        }
    }
    for _ in 0..OLD_CALLS {
        advise();
    }
    ended.store(1, Ordering::Relaxed);
    // SAFETY: waits for the children.
    while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
    leave(5);
}

/// Processes that call all the time do not keep the recorder from one that is older than they are.
#[test]
fn an_old_process_is_heard_of_beside_young_ones() {
    let Some((events, path)) = record_child("child_is_busy_beside_older_ones", 5) else { return };
    let advices = |task: fn(TaskId) -> bool| {
        let of_task = events.iter().filter(|event| task(event.task));
        of_task
            .filter(|event| match &event.kind {
                EventKind::Call(call) => i64::from(call.number) == libc::SYS_madvise && call.args[1] == 0,
                _ => false,
            })
            .count()
    };
    // The test program's own threads call the rest.
    let (young, all) = (advices(|task| task.0 > 1), advices(|_| true));
    assert_eq!(all - young, OLD_CALLS);
    // Each of the four makes about as many as the old one.
    assert!(young < 12 * OLD_CALLS, "{young} calls beside {OLD_CALLS}");
    std::fs::remove_file(path).unwrap();
}

/// Maps and unmaps until it is killed.
extern "C" fn maps_and_unmaps(seed: *mut c_void) -> c_int {
    let mut pages = seed.addr() % 7;
    loop {
        pages = (pages + 3) % 7;
        // SAFETY: new memory, which is taken away again.
        unsafe {
            let len = (pages + 1) * PAGE;
            let addr = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            libc::munmap(addr, len);
        }
    }
}

#[test]
#[ignore = "a program that tests record"]
fn child_kills_what_shares_its_memory() {
    const STACK: usize = 16 * PAGE;
    let stack = map(STACK, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    for round in 0..200_usize {
        // SAFETY: the process has a stack of its own, makes system calls only, and is gone when the next one
        // begins.
        unsafe {
            let top = stack.add(STACK).cast();
            let flags = libc::CLONE_VM | libc::SIGCHLD;
            let child = libc::clone(maps_and_unmaps, top, flags, std::ptr::without_provenance_mut(round));
            assert!(child > 0);
            for _ in 0..round % 5 {
                libc::sched_yield();
            }
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        // Where this is placed tells which of the other's calls were made.
        map(PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    }
    leave(6);
}

/// A process is killed when its call has done its work and it has not been seen to come out of it.
#[test]
fn the_last_call_of_what_is_killed_is_recorded() {
    let Some((events, path)) = record_child("child_kills_what_shares_its_memory", 6) else { return };
    let killed = count(&events, |kind| matches!(kind, EventKind::Exit(ExitStatus::Signal(9))));
    assert_eq!(killed, 200);
    assert_replays(&path);
}
