//! A slow device: a thread of its own does its work, and waiters sleep until then. Meanwhile the page is
//! unmapped, wanted by others, or its device is removed.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Such a device, which is the machine's and the model's. The work is done when its thread comes to it, and
/// not begun before.
#[derive(Clone)]
pub(crate) struct Late(Arc<Inner>);

struct Inner {
    disk: RamDisk<HostPlatform>,
    kind: Behaviour,
    queue: Mutex<Queue>,
    /// Threads that run beside the device's. Without any it does its work at once, and completes later.
    beside: AtomicUsize,
}

/// How it behaves.
#[derive(Clone, Copy, Default)]
pub(crate) struct Behaviour {
    /// Requests that it takes at a time; any number if zero.
    pub(crate) most: usize,
    /// The first read fails.
    pub(crate) fails: bool,
    pub(crate) seeks: bool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<PageIo>,
    done: VecDeque<(PageIo, Result<(), DeviceError>)>,
    reads: u64,
}

impl Late {
    /// Such a device, for the model to add.
    pub(crate) fn new(machine: &Machine, slots: u64, kind: Behaviour) -> Self {
        let disk = RamDisk::new(machine.memory().frames(), slots).expect("there is memory enough");
        Self(Arc::new(Inner { disk, kind, queue: Mutex::default(), beside: AtomicUsize::new(0) }))
    }

    /// Adds such a device.
    fn on(machine: &Machine, slots: u64, kind: Behaviour) -> Self {
        as_one_step(|| {
            let late = Self::new(machine, slots, kind);
            machine.memory().swapon(late.clone(), SwapOnOptions::default()).expect("there is memory enough");
            late
        })
    }

    /// Runs `all` side by side with a thread that does the device's work.
    pub(crate) fn run(&self, machine: &Machine, all: Vec<Box<dyn FnOnce() + Send + '_>>) {
        let beside = &self.0.beside;
        beside.store(all.len(), Ordering::SeqCst);
        thread::scope(|scope| {
            for one in all {
                scope.spawn(|| {
                    one();
                    beside.fetch_sub(1, Ordering::SeqCst);
                });
            }
            scope.spawn(|| {
                while beside.load(Ordering::SeqCst) > 0 {
                    if !self.work(DeviceMemory::new(machine.memory().frames())) {
                        thread::yield_now();
                    }
                }
                // Requests without a waiter.
                while self.work(DeviceMemory::new(machine.memory().frames())) {}
            });
        });
    }

    /// Does one request, and wakes its waiters. Returns false if there is none.
    fn work(&self, memory: DeviceMemory<'_, HostPlatform>) -> bool {
        let Some(io) = self.queue().waiting.pop_front() else { return false };
        let result = if self.fails(io) {
            Err(DeviceError::Io)
        } else {
            // SAFETY: the request was submitted, and is reported below.
            match unsafe { self.0.disk.submit(memory, io) } {
                Submitted::Done(result) => result,
                Submitted::Begun | Submitted::QueueFull => Err(DeviceError::Io),
            }
        };
        self.queue().done.push_back((io, result));
        memory.platform().unpark(self.wait_key());
        true
    }

    fn fails(&self, io: PageIo) -> bool {
        let mut queue = self.queue();
        queue.reads += u64::from(io.direction == Direction::Read);
        self.0.kind.fails && io.direction == Direction::Read && queue.reads == 1
    }

    /// Not held where another thread may run.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.try_lock().expect("its holders are not interrupted")
    }
}

impl SwapDevice<HostPlatform> for Late {
    fn kind(&self) -> &'static str {
        "late"
    }

    fn slots(&self) -> u64 {
        self.0.disk.slots()
    }

    fn flags(&self) -> DeviceFlags {
        let seeks = if self.0.kind.seeks { DeviceFlags::SEEKS } else { DeviceFlags::empty() };
        (self.0.disk.flags() - DeviceFlags::SYNCHRONOUS) | seeks
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, HostPlatform>, io: PageIo) -> Submitted {
        {
            let mut queue = self.queue();
            let most = self.0.kind.most;
            if most > 0 && queue.waiting.len() + queue.done.len() >= most {
                return Submitted::QueueFull;
            }
            if io.direction == Direction::Read {
                let page = memory.platform().direct_map(io.pfn);
                // SAFETY: the caller's promise: the frames of a read are the device's.
                unsafe { page.write_bytes(0xee, PAGE as usize) };
            }
            queue.waiting.push_back(io);
        }
        if self.0.beside.load(Ordering::SeqCst) == 0 {
            self.work(memory);
        }
        Submitted::Begun
    }

    fn reap(&self, _: DeviceMemory<'_, HostPlatform>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        loop {
            let Some((io, result)) = self.queue().done.pop_front() else { return };
            done(io, result);
        }
    }

    fn has_done(&self) -> bool {
        !self.queue().done.is_empty()
    }

    fn wait_key(&self) -> usize {
        // An address would differ in each run.
        8
    }

    fn freed(&self, memory: DeviceMemory<'_, HostPlatform>, slot: u64, count: u64) {
        self.0.disk.freed(memory, slot, count);
    }

    fn discard(&self, memory: DeviceMemory<'_, HostPlatform>, slot: u64, count: u64) {
        self.0.disk.discard(memory, slot, count);
    }

    fn close(&self, memory: DeviceMemory<'_, HostPlatform>) {
        self.0.disk.close(memory);
    }
}

/// Completes what is being written, and frees what can be freed.
fn settle(machine: &Machine) {
    as_one_step(|| {
        for _ in 0..2 {
            machine.memory().swap().io().reap();
            machine.memory().reclaim(MemcgId::ROOT, 1);
        }
        machine.memory().swap().io().reap();
    });
}

/// Writes `value` to a page of its own, which is on the device only.
fn put_out(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, value: u64) {
    let before = as_one_step(|| anonymous_frames(machine));
    swapped(machine, space, addr, PAGE, value);
    settle(machine);
    assert_eq!(as_one_step(|| anonymous_frames(machine)), before, "the cache has the page still");
}

/// The second fault sleeps on the folio that the first one waits for, while the page is unmapped.
#[test]
fn shuttle_a_late_read_against_the_unmapping_of_its_page() {
    for unmaps in [true, false] {
        with_swap(3).slots(0).check(SOME, move |machine, space| {
            let device = Late::on(machine, 8, Behaviour::default());
            put_out(machine, space, ADDR, 1);
            let gone = Fact::default();
            let look = |cpu| {
                let late = gone.is_told();
                let seen = on_cpu(machine, cpu, space, |program| program.read_u64(ADDR));
                let after = if unmaps { Err(NOT_MAPPED) } else { Ok(0) };
                assert!(seen == after || seen == Ok(1) && !late, "{seen:?}");
            };
            device.run(
                machine,
                vec![
                    Box::new(|| look(0)),
                    Box::new(|| look(2)),
                    Box::new(|| {
                        on_cpu(machine, 1, space, |_| match unmaps {
                            true => space.munmap(ADDR, PAGE).expect("a whole mapping"),
                            false => space.madvise(ADDR, PAGE, Advice::DontNeed).expect("mapped"),
                        });
                        gone.tell();
                    }),
                ],
            );
            let swap = machine.memory().swap();
            let slots = as_one_step(|| (swap.devices().free_slots(), swap.devices().total_slots()));
            assert_eq!(slots.0, slots.1, "a slot without an entry is not free");
        });
    }
}

/// The read fails after others have come to wait for it: all get the error, and none sees what was read.
#[test]
fn shuttle_a_late_read_error_is_never_wrong_bytes() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        let device = Late::on(machine, 8, Behaviour { fails: true, ..Behaviour::default() });
        put_out(machine, space, ADDR, 7);
        let child = fork(space);
        let failed = AtomicUsize::new(0);
        let look = |cpu, space| {
            let seen = on_cpu(machine, cpu, space, |program| program.read_u64(ADDR));
            let bus = seen == Err(AccessError::Fault(FaultError::Bus));
            assert!(seen == Ok(7) || bus, "{seen:?}");
            failed.fetch_add(usize::from(bus), Ordering::SeqCst);
        };
        device.run(
            machine,
            vec![Box::new(|| look(0, space)), Box::new(|| look(1, space)), Box::new(|| look(2, &*child))],
        );
        assert!(failed.into_inner() > 0, "no thread got the error");
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (7, 7));
        });
    });
}

/// A page is wanted again, and written to, while it is being written to the device; its slot is the only one,
/// and another page waits for that.
#[test]
fn shuttle_a_late_write_against_the_return_of_its_page() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        let device = Late::on(machine, 1, Behaviour::default());
        written(machine, space, ADDR, PAGE, 1);
        written(machine, space, BEFORE, PAGE, 2);
        device.run(
            machine,
            vec![
                Box::new(|| {
                    on_cpu(machine, 0, space, |program| {
                        for value in 3..5 {
                            program.write_u64(ADDR, value).expect("mapped");
                            assert_eq!(program.read_u64(ADDR), Ok(value), "a lost write");
                        }
                    });
                }),
                Box::new(|| {
                    on_cpu(machine, 1, space, |_| page_out(space, ADDR, PAGE));
                    on_cpu(machine, 1, space, |_| page_out(space, BEFORE, PAGE));
                    assert_eq!(read(machine, 1, space, BEFORE), 2);
                }),
                Box::new(|| reclaim(machine, 2)),
            ],
        );
        settle(machine);
        let seen = as_one_step(|| [ADDR, BEFORE].map(|addr| read(machine, 0, space, addr)));
        assert_eq!(seen, [4, 2]);
        settle(machine);
    });
}

/// The device takes one request at a time: a thread that finds it full sleeps until another's is done, and is
/// woken.
#[test]
fn shuttle_a_full_queue_wakes_every_waiter() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        let device = Late::on(machine, 8, Behaviour { most: 1, ..Behaviour::default() });
        let pages = [(0, ADDR), (1, BEFORE), (2, ELSEWHERE)];
        pages.into_iter().for_each(|(cpu, addr)| put_out(machine, space, addr, 10 + cpu as u64));
        let look = |(cpu, addr)| assert_eq!(read(machine, cpu, space, addr), 10 + cpu as u64);
        device.run(
            machine,
            vec![Box::new(|| look(pages[0])), Box::new(|| look(pages[1])), Box::new(|| look(pages[2]))],
        );
    });
}

/// Pages that are read ahead go into the cache while swapoff walks the slots of their device.
#[test]
fn shuttle_swapoff_against_readahead() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        let device = Late::on(machine, 8, Behaviour { seeks: true, ..Behaviour::default() });
        put_out(machine, space, BEFORE, 2);
        put_out(machine, space, ADDR, 1);
        device.run(
            machine,
            vec![
                Box::new(|| assert_eq!(read(machine, 0, space, ADDR), 1)),
                Box::new(|| {
                    write(machine, 2, space, BEFORE, 3);
                    assert_eq!(read(machine, 2, space, BEFORE), 3);
                }),
                Box::new(|| on_cpu(machine, 1, space, |_| swap_off(machine)).expect("memory holds it")),
            ],
        );
        as_one_step(|| {
            assert_eq!(machine.memory().swap().devices().total_slots(), 0, "the device is there still");
            assert_eq!([ADDR, BEFORE].map(|addr| read(machine, 0, space, addr)), [1, 3]);
        });
        assert!(count(machine, VmEvent::Pswpin) <= 4, "pages were read again and again");
    });
}

/// What was read ahead is unmapped while the device reads it. Its slot is free as soon as the read has
/// completed, without a reclaim.
#[test]
fn shuttle_readahead_against_the_unmapping_of_its_pages() {
    for reclaims in [true, false] {
        with_swap(3).slots(0).check(SOME, move |machine, space| {
            let device = Late::on(machine, 8, Behaviour { seeks: true, ..Behaviour::default() });
            put_out(machine, space, BEFORE, 2);
            put_out(machine, space, ADDR, 1);
            device.run(
                machine,
                vec![
                    Box::new(|| assert_eq!(read(machine, 0, space, ADDR), 1)),
                    Box::new(|| {
                        on_cpu(machine, 1, space, |program| {
                            space.madvise(BEFORE, PAGE, Advice::DontNeed).expect("mapped");
                            assert_eq!(program.read_u64(BEFORE), Ok(0));
                        });
                    }),
                    Box::new(|| {
                        if reclaims {
                            reclaim(machine, 2);
                        }
                    }),
                ],
            );
            if reclaims {
                settle(machine);
            }
            as_one_step(|| {
                let swap = machine.memory().swap();
                swap.io().reap();
                let (used, named) = (
                    swap.devices().total_slots() - swap.devices().free_slots(),
                    space.figures().swapped / PAGE,
                );
                assert!(used == named || reclaims, "{used} slots are in use, {named} are named");
            });
        });
    }
}
