//! Real threads: devices that get fast pins of a program's pages while the program writes to them, forks, and
//! its children exit. `QUIRE_PINS` makes the runs longer. Threads yield at random, so that few CPUs
//! interleave them too.

use crate::common::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BASE: u64 = (1 << 39) - 8 * PAGE;
const PAGES: u64 = 16;

/// CPU 0 forks, CPU 1 writes, and on each of the others a device gets pins.
const CPUS: usize = 4;
const DEVICES: u64 = CPUS as u64 - 2;

/// The words that CPU `number` has in each page: one that the program writes and the device reads, and one
/// that the device writes and the program reads.
fn words(number: usize) -> (u64, u64) {
    (16 * number as u64, 16 * number as u64 + 8)
}

fn sometimes_yield(random: &mut Random) {
    if random.chance(1) {
        std::thread::yield_now();
    }
}

fn any_page(random: &mut Random) -> VirtAddr {
    VirtAddr(BASE + random.below(PAGES) * PAGE)
}

/// One fast pin of `addr`, if there is one at this moment: device and program must see what the other writes.
fn use_device(
    machine: &Machine,
    program: &HostProgram<'_, '_>,
    space: &HostSpace<'_>,
    (number, addr): (usize, VirtAddr),
    (access, value): (Access, u64),
) -> bool {
    let Some(pinned) = space.pin_page_fast(addr, access) else { return false };
    let (programs, devices) = words(number);
    let page = machine.memory().platform().direct_map(pinned.pfn());
    program.write_u64(VirtAddr(addr.0 + programs), value).unwrap();
    // SAFETY: the page is pinned, and these are words of this thread only.
    let seen = unsafe { page.byte_add(programs as usize).cast::<u64>().read_volatile() };
    assert_eq!(seen, value, "the device has another page than the program, at {addr:?}");
    if access == Access::Write {
        // SAFETY: the page is pinned, and only this thread writes this word.
        unsafe { page.byte_add(devices as usize).cast::<u64>().write_volatile(value) };
        assert_eq!(program.read_u64(VirtAddr(addr.0 + devices)), Ok(value), "the program lost {addr:?}");
    }
    true
}

/// A child that exits soon: what it reads was written before it was made.
fn fork_once(cpu: &Vcpu, space: &HostSpace<'_>, random: &mut Random) {
    let child = cpu.run(|| space.fork()).unwrap();
    let addr = VirtAddr(any_page(random).0 + words(2).0);
    let program = cpu.program(&child);
    let before = program.read_u64(addr).unwrap();
    sometimes_yield(random);
    if random.chance(30) {
        program.write_u64(any_page(random), 1).unwrap();
    }
    assert_eq!(program.read_u64(addr), Ok(before), "a child sees what its parent or a device writes later");
    cpu.run(|| drop(child));
}

/// Hazard: a device has another page than its program, since a copy took its place, or a child has it.
#[test]
fn devices_and_their_program_agree_beside_forks_and_exits() {
    let pins = setting("QUIRE_PINS", 10_000).div_ceil(2 * DEVICES);
    for (seed, sizes) in [(1, orders(&[])), (2, orders(&[2]))] {
        println!("seed {seed}: {pins} pins for each of {DEVICES} devices");
        let machine: Machine = Setup::mib(16).cpus(CPUS).overcommit().folios(sizes).build();
        let space = create_space(&machine);
        map_at(&space, BASE, PAGES * PAGE, RW);
        let (left, forks, tries) = (AtomicU64::new(DEVICES), AtomicU64::new(0), AtomicU64::new(0));
        let failed = AtomicBool::new(false);
        let goes_on = || left.load(Ordering::SeqCst) > 0 && !failed.load(Ordering::SeqCst);
        on_cpus(&machine, CPUS, |number, cpu| {
            // The others end when one fails.
            struct Failing<'f>(&'f AtomicBool);
            impl Drop for Failing<'_> {
                fn drop(&mut self) {
                    if std::thread::panicking() {
                        self.0.store(true, Ordering::SeqCst);
                    }
                }
            }
            let _failing = Failing(&failed);
            let mut random = Random(seed << 8 | number as u64);
            let program = cpu.program(&space);
            match number {
                0 => {
                    while goes_on() {
                        fork_once(cpu, &space, &mut random);
                        forks.fetch_add(1, Ordering::Relaxed);
                    }
                }
                1 => {
                    while goes_on() {
                        program.write_u64(VirtAddr(any_page(&mut random).0 + words(1).0), 1).unwrap();
                        sometimes_yield(&mut random);
                    }
                }
                _ => {
                    let mut got = 0;
                    while got < pins && goes_on() {
                        let access = if random.chance(70) { Access::Read } else { Access::Write };
                        let place = (number, any_page(&mut random));
                        got += u64::from(
                            cpu.run(|| use_device(&machine, &program, &space, place, (access, got))),
                        );
                        tries.fetch_add(1, Ordering::Relaxed);
                        sometimes_yield(&mut random);
                    }
                    left.fetch_sub(1, Ordering::SeqCst);
                }
            }
        });
        println!("{} pins in {} tries, {} forks", pins * DEVICES, tries.into_inner(), forks.into_inner());
        assert_audit(&machine);
    }
}
