//! Threads that read, write and drop zeros.

use super::{BASE, machine_of_format};
use crate::common::*;
use std::sync::{Arc, Barrier};
use std::thread;

const CPUS: usize = 3;
/// Pages of two blocks.
const PAGES: u64 = 2 * MIB2 / PAGE;

/// One thread reads where others write: no write is lost, and no zeros are read after it.
#[test]
fn read_and_write_faults_race() {
    let machine: Machine = machine_of_format(64, CPUS, Order::PMD);
    let before = in_use(&machine);
    for round in 0..setting("QUIRE_ROUNDS", 40) {
        let space = Arc::new(create_space(&machine));
        map_at(&space, BASE, PAGES * PAGE, RW);
        let start = Barrier::new(CPUS);
        thread::scope(|scope| {
            for number in 0..CPUS {
                // Each thread has pages of its own in both blocks.
                let own = (number as u64..PAGES).step_by(CPUS);
                let mut process = Process::new(Arc::clone(&space), VirtAddr(BASE), own);
                let (machine, start) = (&machine, &start);
                scope.spawn(move || {
                    let cpu = machine.vcpu(number).unwrap();
                    let mut random = Random(round << 8 | number as u64);
                    start.wait();
                    for step in 0..60 {
                        let at = random.below(PAGES / CPUS as u64) * CPUS as u64 + number as u64;
                        if number > 0 && random.chance(20) {
                            process.write(&cpu, at, step + 1).unwrap();
                        } else {
                            process.check(&cpu, at).unwrap();
                        }
                    }
                    process.check_all(&cpu);
                });
            }
        });
        assert_audit(&machine);
    }
    assert_eq!(in_use(&machine), before);
}

/// Threads read, write, drop and fork while the machine frees the huge zero page whenever it may.
#[test]
fn zeros_come_and_go_under_threads() {
    let machine: Machine = machine_of_format(64, CPUS, Order::PMD);
    let mut processes =
        [(); CPUS].map(|()| Process::with_pages(create_space(&machine), VirtAddr(BASE), PAGES));
    thread::scope(|scope| {
        for (number, process) in processes.iter_mut().enumerate() {
            let machine = &machine;
            scope.spawn(move || {
                let cpu = machine.vcpu(number).unwrap();
                let mut random = Random(number as u64);
                for _ in 0..setting("QUIRE_ROUNDS", 300) {
                    let at = random.below(PAGES);
                    let dropped = Call::Advise(Advice::DontNeed);
                    match random.below(10) {
                        0..4 => process.check(&cpu, at).unwrap(),
                        4 => process.write(&cpu, at, 1).unwrap(),
                        5..7 => process.call(dropped, 0..PAGES).unwrap(),
                        7 => process.call(dropped, at..at + 1).unwrap(),
                        8 => drop(process.fork().unwrap()),
                        _ => {
                            machine.memory().spaces().thp().shrink_huge_zero();
                        }
                    }
                }
            });
        }
    });
    assert_audit(&machine);
}
