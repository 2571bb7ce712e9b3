//! Threads that find no memory beside threads that are at work with pages of the device.

use crate::common::*;
use quire_frame::FrameFlags;
use quire_host::swap::HostRam;
use std::sync::{OnceLock, mpsc};
use std::thread;

/// What a test does before the device carries a request out.
type Before = Box<dyn Fn(PageIo) + Send + Sync>;

/// A device that stops where a test says.
struct Stopping {
    pages: HostRam,
    before: &'static OnceLock<Before>,
}

impl SwapDevice<HostPlatform> for Stopping {
    fn kind(&self) -> &'static str {
        "stopping"
    }

    fn slots(&self) -> u64 {
        SwapDevice::<HostPlatform>::slots(&self.pages)
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, HostPlatform>, io: PageIo) -> Submitted {
        if let Some(before) = self.before.get() {
            before(io);
        }
        // SAFETY: the caller's promise.
        unsafe { self.pages.submit(memory, io) }
    }

    fn freed(&self, memory: DeviceMemory<'_, HostPlatform>, slot: u64, count: u64) {
        self.pages.freed(memory, slot, count);
    }
}

/// A machine that kills programs, with such a device, and a memcg.
fn machine() -> (&'static Machine, MemcgId, &'static OnceLock<Before>) {
    let setup = Setup::mib(64).cpus(2).overcommit().with(|memory| memory.oom = OomAction::Kill);
    let machine: &'static Machine = Box::leak(Box::new(setup.build()));
    let before: &'static OnceLock<Before> = Box::leak(Box::default());
    let device = Stopping { pages: HostRam::new(1024).unwrap(), before };
    machine.memory().swapon(device, SwapOnOptions::default()).unwrap();
    let memcg = machine.memory().create_memcg(MemcgId::ROOT, "g").unwrap();
    (machine, memcg, before)
}

fn limit(machine: &Machine, memcg: MemcgId, name: &str, pages: u64) {
    machine.memory().write_memcg_file(memcg, name, &(pages * PAGE).to_string()).unwrap();
}

fn space_in(machine: &'static Machine, memcg: MemcgId, adjustment: i16) -> HostSpace<'static> {
    let space = create_space(machine);
    space.set_memcg(memcg).unwrap();
    space.oom().set_score_adj(adjustment);
    space
}

fn events(machine: &Machine, memcg: MemcgId, event: MemcgEvent) -> u64 {
    machine.memory().memcgs().counters().events(memcg, event)
}

/// Hazard: a thread holds the lock of a folio that it has swapped in while it calls the OOM killer. The
/// program that is chosen waits for that lock, with its mmap lock held, so that nothing of it can be freed,
/// and another one is killed beside it.
#[test]
fn a_program_that_is_killed_waits_for_no_page_of_the_thread_that_kills_it() {
    const PAGES: u64 = 64;
    let (machine, memcg, before) = machine();
    let memory = machine.memory();
    let cpu = machine.vcpu(0).unwrap();
    let first = space_in(machine, memcg, -1000);
    let shared = map_at(&first, GIB, PAGE, RW);
    fill(&cpu, &first, shared, 0..1, 7);
    first.madvise(shared, PAGE, Advice::PageOut).unwrap();
    let chosen = first.fork().unwrap();
    chosen.oom().set_score_adj(1000);
    let other = space_in(machine, memcg, 0);
    for space in [&chosen, &other] {
        let area = map_at(space, 2 * GIB, PAGES * PAGE, RW);
        fill(&cpu, space, area, 0..PAGES, 1);
    }
    memory.memcgs().charges().drain_stocks(&memory.platform().pin());
    // There is a frame for the page, but none for its copy.
    let usage = memory.memcgs().charges().usage(memcg);
    limit(machine, memcg, "memory.swap.max", memory.memcgs().charges().swap_usage(memcg));
    limit(machine, memcg, "memory.max", usage + 1);
    let (is_read, read) = mpsc::channel();
    let joined = move |io: PageIo| {
        if io.direction == Direction::Read {
            is_read.send(()).unwrap();
            let frame = machine.memory().frames().known(io.pfn);
            assert!(within_reason(|| frame.word().flags().contains(FrameFlags::WAITERS)));
        }
    };
    assert!(before.set(Box::new(joined)).is_ok());
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
    let (machine, memcg, before) = machine();
    let cpu = machine.vcpu(0).unwrap();
    let spaces = [0, 1].map(|_| space_in(machine, memcg, 0));
    let [area, page] = [0, 1].map(|nth: usize| map_at(&spaces[nth], GIB, PAGES * PAGE, RW));
    fill(&cpu, &spaces[0], area, 0..PAGES, 1);
    machine.memory().memcgs().charges().drain_stocks(&machine.memory().platform().pin());
    limit(machine, memcg, "memory.max", machine.memory().memcgs().charges().usage(memcg));
    let looks = move || events(machine, memcg, MemcgEvent::Max);
    let (has_begun, begun) = mpsc::sync_channel(1);
    let is_over: &'static OnceLock<()> = Box::leak(Box::default());
    let wait = move |io: PageIo| {
        if io.direction == Direction::Write && has_begun.try_send(()).is_ok() {
            // Until the other one has looked again, or given up.
            while looks() < 2 && is_over.get().is_none() {
                thread::yield_now();
            }
        }
    };
    assert!(before.set(Box::new(wait)).is_ok());
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
    let memcg = machine.memory().create_memcg(MemcgId::ROOT, "g").unwrap();
    limit(machine, memcg, "memory.max", 64);
    on_cpus(machine, THREADS, |_, cpu| {
        let space = space_in(machine, memcg, 0);
        let area = map_at(&space, GIB, PAGES * PAGE, RW);
        for turn in 0..3000 {
            (0..PAGES).for_each(|at| write(cpu, &space, page(area, at), turn + at));
        }
    });
    assert_eq!(events(machine, memcg, MemcgEvent::OomKill), 0);
    assert_audit(machine);
}
