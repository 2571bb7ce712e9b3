//! What other threads do just where the memory manager calls a device.

use crate::common::*;
use crate::watched::{Calls, DeviceOf, Report, Watched, key_of};
use quire_host::swap::HostRam;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread;

const SLOTS: u64 = 512;

/// A space with one page, which is on the device only.
fn page_out(machine: &Machine) -> (HostSpace<'_>, VirtAddr) {
    let cpu = machine.vcpu(0).unwrap();
    let space = create_space(machine);
    let area = map_filled(&cpu, &space, GIB, 1, 7);
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!((space.figures().swapped, anonymous_frames(machine)), (PAGE, 0));
    (space, area)
}

/// Reads the page on CPU `cpu`, and notes that it was read.
fn look(machine: &Machine, cpu: usize, (space, area): (&HostSpace<'_>, VirtAddr), is_read: &AtomicBool) {
    assert_eq!(read(&machine.vcpu(cpu).unwrap(), space, area), 7);
    is_read.store(true, SeqCst);
}

/// Fails if the page is not read. A thread that was not woken is woken now, so that the test comes to an end.
#[track_caller]
fn assert_read(machine: &Machine, key: usize, is_read: &AtomicBool) {
    let woken = within_reason(|| is_read.load(SeqCst));
    while !is_read.load(SeqCst) {
        machine.memory().platform().unpark(key);
        thread::yield_now();
    }
    assert!(woken, "a thread sleeps for ever");
}

/// Its reads end at once, but not before another thread waits for them.
#[derive(Default)]
struct EndsAtOnce {
    under_way: AtomicBool,
    waits: AtomicBool,
}

impl Calls for EndsAtOnce {
    fn after(&self, io: PageIo, result: Submitted) -> Submitted {
        if io.direction == Direction::Write {
            return result;
        }
        self.under_way.store(true, SeqCst);
        within_reason(|| self.waits.load(SeqCst));
        result
    }

    fn before_sleep(&self) {
        self.waits.store(true, SeqCst);
    }
}

/// Hazard: a device that is not synchronous has completed a read when it returns. No reap tells the thread
/// that found the page while it was being read.
#[test]
fn a_thread_that_waits_for_a_read_that_ends_at_once_is_woken() {
    let machine: Machine = Setup::mib(16).cpus(2).build();
    let (device, calls) = Watched::<EndsAtOnce>::new(SLOTS, DeviceFlags::empty());
    swap_on(&machine, device);
    let (space, area) = page_out(&machine);
    let [first, second] = [(); 2].map(|()| AtomicBool::default());
    thread::scope(|scope| {
        scope.spawn(|| look(&machine, 0, (&space, area), &first));
        scope.spawn(|| {
            within_reason(|| calls.under_way.load(SeqCst));
            look(&machine, 1, (&space, area), &second);
        });
        assert_read(&machine, key_of(&calls), &first);
        assert!(calls.waits.load(SeqCst), "the second thread was too late");
        assert_read(&machine, key_of(&calls), &second);
    });
    assert_audit(&machine);
}

/// A device that makes room in another way just before a thread sleeps, and has done a read at the next look.
#[derive(Default)]
struct MakesRoom {
    io: Mutex<Option<PageIo>>,
    progress: AtomicU32,
}

impl Calls for MakesRoom {
    fn after(&self, io: PageIo, result: Submitted) -> Submitted {
        if io.direction == Direction::Write {
            return result;
        }
        *self.io.lock().unwrap() = Some(io);
        Submitted::Begun
    }

    fn reap(&self, _: &HostRam, memory: DeviceOf<'_>, key: usize, done: Report<'_>) {
        let Some(io) = self.io.lock().unwrap().take() else { return };
        if self.progress.fetch_add(1, SeqCst) == 0 {
            *self.io.lock().unwrap() = Some(io);
            memory.platform().unpark(key);
            return;
        }
        done(io, Ok(()));
    }

    fn progress(&self) -> u32 {
        self.progress.load(SeqCst)
    }
}

/// Hazard: room is made, and those that wait for it are woken, between the look of a thread at what is done
/// and its sleep. A part of its read, which a cache in front could not ask for, is not asked for by anything
/// else.
#[test]
fn a_thread_that_waits_for_a_read_sees_the_progress_of_its_device() {
    let machine: Machine = Setup::mib(16).cpus(2).build();
    let (device, calls) = Watched::<MakesRoom>::new(SLOTS, DeviceFlags::empty());
    swap_on(&machine, device);
    let (space, area) = page_out(&machine);
    let is_read = AtomicBool::default();
    thread::scope(|scope| {
        scope.spawn(|| look(&machine, 0, (&space, area), &is_read));
        assert_read(&machine, key_of(&calls), &is_read);
    });
    assert_eq!(calls.progress(), 2);
    assert_audit(&machine);
}

/// So often at most it says that it has freed a frame, which it has not.
const BOASTS: u64 = 100;

#[derive(Default)]
struct Boasts(AtomicU64);

impl Calls for Boasts {
    fn compact(&self) -> u64 {
        u64::from(self.0.fetch_add(1, SeqCst) < BOASTS)
    }
}

/// Hazard: no program is killed as long as a device says that it has freed a frame.
#[test]
fn a_device_that_boasts_of_frames_keeps_no_program_from_its_end() {
    let kill = |memory: &mut MemoryConfig| memory.oom = OomAction::Kill;
    let machine: Machine = Setup::mib(16).reserve().overcommit().with(kill).build();
    let (device, boasts) = Watched::<Boasts>::new(16, DeviceFlags::SYNCHRONOUS);
    swap_on(&machine, device);
    let cpu = machine.vcpu(0).unwrap();
    let space = create_space(&machine);
    let area = map_at(&space, GIB, 16 * MIB2, RW);
    let refused = (0..8192).find_map(|at| cpu.program(&space).write_u64(page(area, at), at + 1).err());
    assert_eq!(refused, Some(AccessError::Fault(FaultError::Killed)));
    let asked = boasts.0.load(SeqCst);
    assert!((1..BOASTS).contains(&asked), "{asked} compactions");
}

/// A device that holds up the first thread that frees a slot.
#[derive(Default)]
struct HoldsUp {
    holds: AtomicBool,
    goes_on: AtomicBool,
}

impl Calls for HoldsUp {
    fn freed(&self) {
        if !self.holds.swap(true, SeqCst) {
            within_reason(|| self.goes_on.load(SeqCst));
        }
    }
}

/// Hazard: a parent and a child that joined its anon_vma exit. The parent leaves first, and its pages are in
/// the tables when the child, the last one in the anon_vma, has gone.
#[test]
fn an_anon_vma_stays_until_the_pages_of_all_spaces_in_it_are_unmapped() {
    let machine: Machine = Setup::mib(16).cpus(2).build();
    let (device, calls) = Watched::<HoldsUp>::new(SLOTS, DeviceFlags::SYNCHRONOUS);
    swap_on(&machine, device);
    let cpu = machine.vcpu(0).unwrap();
    let mut parent = create_space(&machine);
    let area = map_filled(&cpu, &parent, GIB, 2, 1);
    // What is at stake is an anon_vma below the root.
    let elder = parent.fork().unwrap();
    // Three anon_vmas have no VMAs, and two have one: the next child makes none.
    for _ in 0..3 {
        let child = parent.fork().unwrap();
        parent = child;
    }
    let child = parent.fork().unwrap();
    fill(&cpu, &parent, area, 0..2, 100);
    parent.madvise(area, PAGE, Advice::PageOut).unwrap();
    let pfn = parent.pin_page_fast(page(area, 1), Access::Read).unwrap().pfn();
    thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            cpu.run(|| drop(parent));
        });
        let is_held = within_reason(|| calls.holds.load(SeqCst));
        cpu.run(|| drop(child));
        let mut places = Vec::new();
        cpu.run(|| machine.memory().spaces().rmap().for_each_map(pfn, |_, addr| places.push(addr)));
        calls.goes_on.store(true, SeqCst);
        assert!(is_held, "the parent frees no slot");
        assert_eq!(places, [], "the parent's mapping has left");
    });
    cpu.run(|| drop(elder));
    assert_audit(&machine);
}
