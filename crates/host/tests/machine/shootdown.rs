//! Shootdowns against running programs, with 1, 2 and 4 vCPU threads, paranoid mode on; which thread is which
//! CPU; parking.
use crate::toy::{Random, Space, Toy, page_number, window};
use quire_arch::paging::X86_64Level4;
use quire_arch::paging::invented::Invented3;
use quire_arch::{Asid, Execution, PAGE_SIZE, PagingFormat, Platform, TlbFlush, VirtAddr};
use quire_host::{HostConfig, HostPlatform, VcpuError};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const BASE: u64 = 0x4000_0000;

/// Hazard: a frame is freed before the shootdown is acknowledged. Programs read pages, each of which holds
/// its own number, while one or all of them remove pages; freed frames are poisoned at once. No program may
/// ever read anything but the page's number.
fn programs_read_no_freed_frame<F: PagingFormat>(threads: usize, asids: u32) {
    const PAGES: u64 = 96;
    const ROUNDS: usize = 1500;
    let config = HostConfig { asids, ..HostConfig::with_ram(2 << 20).cpus(threads).paranoid() };
    let toy = Toy::<F>::new(&config);
    let space = Space::new(&toy, u32::from(asids > 1), window(BASE, PAGES));
    std::thread::scope(|scope| {
        for number in 0..threads {
            let vcpu = toy.platform.vcpu(number).unwrap();
            let space = &space;
            scope.spawn(move || {
                let program = vcpu.program(space);
                let mut random = Random::new(0x5000 + number as u64);
                for _ in 0..ROUNDS {
                    // Long enough inside that others have to post their requests.
                    program.inside(|guest| {
                        for _ in 0..50 {
                            let addr = VirtAddr(BASE + random.below(PAGES) * PAGE_SIZE);
                            assert_eq!(guest.read_u64(addr), Ok(page_number(addr)));
                            if random.below(64) == 0 {
                                std::thread::yield_now();
                            }
                        }
                    });
                    let addr = VirtAddr(BASE + random.below(PAGES) * PAGE_SIZE);
                    vcpu.run(|| space.unmap(addr));
                }
            });
        }
    });
    let counters = toy.platform.counters();
    assert!(counters.shootdowns > 0);
    assert_eq!(counters.targets_inside == 0 && counters.targets_by_proxy == 0, threads == 1);
    assert_eq!(toy.platform.check_suspects(), []);
    println!("{threads} threads: {:?}", counters.named().collect::<Vec<_>>());
}

#[test]
fn one_vcpu_reads_no_freed_frame() {
    programs_read_no_freed_frame::<X86_64Level4>(1, 8);
}

#[test]
fn two_vcpus_read_no_freed_frame() {
    programs_read_no_freed_frame::<X86_64Level4>(2, 8);
    programs_read_no_freed_frame::<Invented3>(2, 1);
}

#[test]
fn four_vcpus_read_no_freed_frame() {
    programs_read_no_freed_frame::<X86_64Level4>(4, 8);
}

/// A program that stays inside serves an initiator that is no vCPU; one that has ended is flushed for.
#[test]
fn a_program_that_stays_inside_acknowledges() {
    let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(2).paranoid());
    let space = Space::new(&toy, 1, window(BASE, 1));
    let vcpu = toy.platform.vcpu(1).unwrap();
    let addr = VirtAddr(BASE);
    let (inside, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (space, inside, stop) = (&space, &inside, &stop);
        scope.spawn(move || {
            vcpu.program(space).inside(|guest| {
                while !stop.load(Ordering::Relaxed) {
                    guest.read_u64(addr).unwrap();
                    inside.store(true, Ordering::Release);
                    std::thread::yield_now();
                }
            });
        });
        while !inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // Whether a request finds the program inside or in a fault is chance, but one of the two happens in
        // the end.
        while toy.platform.counters().targets_inside == 0 {
            space.unmap(addr);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let before = toy.platform.counters();
    space.flush(addr, 1);
    let after = toy.platform.counters();
    assert_eq!(after.targets_inside, before.targets_inside);
    assert_eq!(after.targets_by_proxy, before.targets_by_proxy + 1);
}

/// More requests than a mailbox holds, each waited for by its own thread, while the target does not poll.
#[test]
fn a_full_mailbox_loses_nothing() {
    const INITIATORS: usize = 12;
    let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(INITIATORS + 1).paranoid());
    let space = Space::new(&toy, 1, window(BASE, 64));
    let target = toy.platform.vcpu(0).unwrap();
    let entered = Barrier::new(INITIATORS + 1);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        target.program(&space).inside(|guest| {
            for page in 0..64 {
                guest.touch(VirtAddr(BASE + page * PAGE_SIZE), quire_arch::Access::Read).unwrap();
            }
            for page in 0..INITIATORS as u64 {
                let (space, entered, done) = (&space, &entered, &done);
                scope.spawn(move || {
                    entered.wait();
                    space.flush(VirtAddr(BASE + page * PAGE_SIZE), 1);
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            entered.wait();
            // All have to wait for this program, which has not polled since.
            while toy.platform.counters().shootdowns < INITIATORS as u64 {
                std::thread::yield_now();
            }
            while toy.platform.counters().mailbox_overflows < (INITIATORS - 8) as u64 {
                std::thread::yield_now();
            }
            assert_eq!(done.load(Ordering::Relaxed), 0);
            while done.load(Ordering::Relaxed) < INITIATORS {
                guest.poll();
                std::thread::yield_now();
            }
        });
    });
    toy.platform.for_each_cached_translation(&mut |translation| panic!("{translation:?} was flushed"));
}

#[test]
fn a_vcpu_has_one_handle() {
    let platform = HostPlatform::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(2)).unwrap();
    let first = platform.vcpu(1).unwrap();
    assert_eq!(platform.vcpu(1).unwrap_err(), VcpuError::Claimed { number: 1 });
    assert_eq!(platform.vcpu(2).unwrap_err(), VcpuError::NoSuchCpu { number: 2, cpus: 2 });
    drop(first);
    platform.vcpu(1).unwrap();
}

#[test]
fn pins_nest_and_follow_the_current_vcpu() {
    let machine = || HostPlatform::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(3)).unwrap();
    let (platform, other) = (machine(), machine());
    let vcpus = [platform.vcpu(0).unwrap(), platform.vcpu(1).unwrap()];
    let foreign = other.vcpu(2).unwrap();
    // No vCPU: the one without a handle is borrowed, and given back.
    for _ in 0..2 {
        let outer = platform.pin();
        let inner = platform.pin();
        assert_eq!((outer.cpu().index(), inner.cpu().index()), (2, 2));
        drop(outer);
        assert_eq!(platform.pin().cpu().index(), 2);
        drop(inner);
    }
    vcpus[0].run(|| {
        assert_eq!(platform.pin().cpu(), vcpus[0].id());
        vcpus[1].run(|| {
            assert_eq!(platform.pin().cpu(), vcpus[1].id());
            vcpus[0].run(|| assert_eq!(platform.pin().cpu(), vcpus[0].id()));
            foreign.run(|| {
                let here = other.pin();
                assert_eq!(here.cpu().index(), 2);
                assert_eq!(platform.pin().cpu(), vcpus[1].id());
            });
        });
        assert_eq!(platform.pin().cpu(), vcpus[0].id());
    });
    // A pin that leaves the call that it was made in keeps the CPU until it is dropped.
    let pin = vcpus[0].run(|| platform.pin());
    assert_eq!(platform.pin().cpu(), vcpus[0].id());
    drop(pin);
    assert_eq!(vcpus[1].run(|| platform.pin().cpu()), vcpus[1].id());
    vcpus[0].run(|| ());
}

#[test]
fn a_vcpu_is_not_switched_in_a_pinned_section() {
    let platform = HostPlatform::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(2)).unwrap();
    let vcpu = platform.vcpu(0).unwrap();
    let pin = platform.pin();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| vcpu.run(|| ())));
    assert!(outcome.is_err());
    drop(pin);
    vcpu.run(|| ());
}

/// More threads than CPUs: each section has its CPU for itself.
#[test]
fn a_pinned_section_has_its_cpu_alone() {
    const CPUS: usize = 2;
    let platform = HostPlatform::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(CPUS)).unwrap();
    let users: [AtomicUsize; CPUS] = std::array::from_fn(|_| AtomicUsize::new(0));
    let section = || {
        let pin = platform.pin();
        let users = &users[pin.cpu().index()];
        assert_eq!(users.fetch_add(1, Ordering::Relaxed), 0);
        platform.flush_local(&pin, TlbFlush::Space { asid: Asid(1) });
        users.fetch_sub(1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..3000).for_each(|_| section()));
        }
        let vcpu = platform.vcpu(0).unwrap();
        scope.spawn(move || (0..3000).for_each(|_| vcpu.run(section)));
    });
    assert_eq!(platform.counters().local_flushes, 12000);
}

/// On one CPU, a thread that sleeps (or waits in `relax`) lends it to the thread that it waits for.
#[test]
fn a_sleeper_lends_its_cpu() {
    let platform = HostPlatform::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20)).unwrap();
    let vcpu = platform.vcpu(0).unwrap();
    let (ready, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let key = &raw const ready as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pin = platform.pin();
            ready.store(true, Ordering::SeqCst);
            drop(pin);
            platform.unpark(key);
            while !seen.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let pin = platform.pin();
            seen.store(false, Ordering::SeqCst);
            drop(pin);
        });
        vcpu.run(|| {
            while !ready.load(Ordering::SeqCst) {
                platform.park(key, &mut || !ready.load(Ordering::SeqCst));
            }
            seen.store(true, Ordering::SeqCst);
            let mut attempt = 0;
            while seen.load(Ordering::SeqCst) {
                HostPlatform::<X86_64Level4>::relax(attempt);
                attempt += 1;
            }
            assert_eq!(platform.pin().cpu(), vcpu.id());
        });
    });
}

/// One thread drives several vCPUs, as a replay does: a shootdown from one reaches the TLBs of the others.
#[test]
fn one_thread_drives_several_vcpus() {
    let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(3).paranoid());
    let space = Space::new(&toy, 1, window(BASE, 16));
    let vcpus: Vec<_> = (0..3).map(|number| toy.platform.vcpu(number).unwrap()).collect();
    let mut random = Random::new(3);
    for _ in 0..2000 {
        let vcpu = &vcpus[random.below(3) as usize];
        let addr = VirtAddr(BASE + random.below(16) * PAGE_SIZE);
        if random.below(4) == 0 {
            vcpu.run(|| space.unmap(addr));
        } else {
            assert_eq!(vcpu.program(&space).read_u64(addr), Ok(page_number(addr)));
        }
        assert_eq!(toy.platform.check_suspects(), []);
    }
    assert!(toy.platform.counters().targets_by_proxy > 0);
}
