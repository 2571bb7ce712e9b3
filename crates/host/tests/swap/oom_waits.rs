//! Threads that find no memory beside threads that are at work with pages of the device.

use crate::common::*;
use crate::watched::{Stopping, Watched};
use quire_frame::FrameFlags;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

/// A machine that kills programs, with a device that stops where a test says, and a memcg.
fn stopping_machine() -> (&'static Machine, MemcgId, Arc<Stopping>) {
    let setup = Setup::mib(64).cpus(2).overcommit().with(|memory| memory.oom = OomAction::Kill);
    let machine: &'static Machine = Box::leak(Box::new(setup.build()));
    let (device, stopping) = Watched::new(1024, DeviceFlags::SYNCHRONOUS);
    swap_on(machine, device);
    (machine, memcg(machine, "g", &[]), stopping)
}

fn adjusted(machine: &'static Machine, memcg: MemcgId, adjustment: i16) -> HostSpace<'static> {
    // Not audited: others may run when it exits.
    let space = create_space(machine);
    space.set_memcg(memcg).unwrap();
    space.oom().set_score_adj(adjustment);
    space
}

/// Hazard: a thread holds the lock of a folio that it has swapped in while it calls the OOM killer. The
/// program that is chosen waits for that lock, with its mmap lock held, so that nothing of it can be freed,
/// and another one is killed beside it.
#[test]
fn a_program_that_is_killed_waits_for_no_page_of_the_thread_that_kills_it() {
    const PAGES: u64 = 64;
    let (machine, memcg, device) = stopping_machine();
    let cpu = machine.vcpu(0).unwrap();
    let first = adjusted(machine, memcg, -1000);
    let shared = map_filled(&cpu, &first, GIB, 1, 7);
    first.madvise(shared, PAGE, Advice::PageOut).unwrap();
    let chosen = first.fork().unwrap();
    chosen.oom().set_score_adj(1000);
    let other = adjusted(machine, memcg, 0);
    for space in [&chosen, &other] {
        map_filled(&cpu, space, 2 * GIB, PAGES, 1);
    }
    // There is a frame for the page, but none for its copy.
    let usage = usage(machine, memcg);
    set_limit(machine, memcg, Limit::SwapMax, swap_usage(machine, memcg));
    set_limit(machine, memcg, Limit::Max, usage + 1);
    let (is_read, read) = mpsc::channel();
    device.before_each(move |io| {
        if io.direction == Direction::Read {
            is_read.send(()).unwrap();
            let frame = machine.memory().frames().known(io.pfn);
            assert!(within_reason(|| frame.word().flags().contains(FrameFlags::WAITERS)));
        }
    });
    thread::scope(|scope| {
        let chosen = &chosen;
        scope.spawn(move || {
            let cpu = machine.vcpu(1).unwrap();
            read.recv().unwrap();
            // Its mmap lock is held meanwhile.
            if let Err(error) = cpu.run(|| chosen.pin_page(shared, Access::Read).map(drop)) {
                assert_eq!(error, FaultError::Killed);
            }
        });
        write(&cpu, &first, shared, 8);
    });
    assert_eq!((chosen.oom().is_killed(), other.oom().is_killed()), (true, false));
    assert_eq!(events(machine, memcg, MemcgEvent::OomKill), 1);
    assert_filled(&cpu, &first, shared, 0..1, 8);
    assert_audit(machine);
}

/// Hazard: a thread has all pages of a memcg off their lists and is just paging them out. Another one finds
/// nothing there, and a program is killed, or the fault fails, though memory comes at once.
#[test]
fn a_program_is_not_killed_while_another_thread_pages_out_for_it() {
    const PAGES: u64 = 32;
    let (machine, memcg, device) = stopping_machine();
    let cpu = machine.vcpu(0).unwrap();
    let spaces = [0, 1].map(|_| adjusted(machine, memcg, 0));
    let [area, page] = [0, 1].map(|nth: usize| map_at(&spaces[nth], GIB, PAGES * PAGE, RW));
    fill(&cpu, &spaces[0], area, 0..PAGES, 1);
    set_limit(machine, memcg, Limit::Max, usage(machine, memcg));
    let looks = move || events(machine, memcg, MemcgEvent::Max);
    let (has_begun, begun) = mpsc::sync_channel(1);
    let is_over: &'static OnceLock<()> = Box::leak(Box::default());
    device.before_each(move |io| {
        if io.direction == Direction::Write && has_begun.try_send(()).is_ok() {
            // Until the other one has looked again, or given up.
            while looks() < 2 && is_over.get().is_none() {
                thread::yield_now();
            }
        }
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            cpu.run(|| machine.memory().reclaim(memcg, PAGES));
        });
        begun.recv().unwrap();
        let written = cpu.program(&spaces[1]).write_u64(page, 2);
        is_over.set(()).unwrap();
        assert_eq!(written, Ok(()));
    });
    assert_eq!(events(machine, memcg, MemcgEvent::OomKill), 0);
    assert_filled(&cpu, &spaces[1], page, 0..1, 2);
    assert_filled(&cpu, &spaces[0], area, 0..PAGES, 1);
    assert_audit(machine);
}

/// The same of many threads, each of which finds now and then that the others have all pages, and that what
/// they free is taken before it comes to look.
#[test]
fn threads_that_page_out_for_one_another_are_not_killed() {
    const THREADS: usize = 8;
    const PAGES: u64 = 16;
    let setup = Setup::mib(64).cpus(THREADS).overcommit().with(|memory| memory.oom = OomAction::Kill);
    let machine: &'static Machine = Box::leak(Box::new(setup.build()));
    swap_on_ram(machine, 4096);
    let memcg = memcg(machine, "g", &[(Limit::Max, 64)]);
    on_cpus(machine, THREADS, |_, cpu| {
        let space = adjusted(machine, memcg, 0);
        let area = map_at(&space, GIB, PAGES * PAGE, RW);
        for turn in 0..3000 {
            fill(cpu, &space, area, 0..PAGES, turn);
        }
    });
    assert_eq!(events(machine, memcg, MemcgEvent::OomKill), 0);
    assert_audit(machine);
}
