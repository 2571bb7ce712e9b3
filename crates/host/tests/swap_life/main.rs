//! No page is ever lost: random programs larger than memory, each of whose pages is known.
//!
//! `QUIRE_SWAP_OPS` makes the runs longer, `QUIRE_SEED` starts elsewhere. What happened is printed:
//! operations, faults, pages out and in.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/disk.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod disk;

mod devices;
mod life;
mod model;
mod shared;

use common::{PAGE, RW, Random, assert_audit, in_use, map_at, setting};
use devices::{Choice, Devices, Kind};
use life::{Habits, Life};
use model::{ARENA, BASE};
use quire_frame::FaultPlan;
use quire_host::Machine;
use quire_mm::{
    InUse,
    frame::VmEvent,
    memcg::{Limit, MemcgId},
};
use shared::Sharer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Operations between two audits.
const STEP: u64 = 1000;

/// A machine, its devices, and how programs behave on it.
struct Run {
    name: &'static str,
    mib: u64,
    devices: &'static [Choice],
    habits: Habits,
    threads: usize,
}

const fn choice(kind: Kind, slots: u64, priority: Option<i16>) -> Choice {
    Choice { kind, slots, priority }
}

const PLAIN: Habits = Habits { errors: 0, large: false, memcgs: false, swapoff: true, alone: true };

fn machine(run: &Run) -> Machine {
    common::Setup::mib(run.mib).cpus(run.threads).reserve().overcommit().build()
}

/// Allocates the frames that memcgs keep for the next of them, so that nothing seems lost in the end.
fn make_memcgs(machine: &Machine, count: u64) {
    let memcgs = machine.memory().memcgs();
    let all: Vec<MemcgId> = (0..count)
        .map(|at| memcgs.create(MemcgId::ROOT, &format!("first{at}")).expect("there is memory"))
        .collect();
    for memcg in all {
        memcgs.remove(memcg).expect("no space is in it");
    }
}

fn go(run: &Run, seed: u64) {
    let ops = setting("QUIRE_SWAP_OPS", 6000);
    let machine = machine(run);
    make_memcgs(&machine, 60);
    let before = in_use(&machine);
    let started = Instant::now();
    println!("{} with seed {seed}, {ops} operations", run.name);
    let mut devices = Some(Devices::new(&machine, run.devices));
    let mut lives: Vec<Life<'_>> = (0..run.threads)
        .map(|number| {
            let random = Random(seed << 8 | number as u64);
            let devices = devices.take().unwrap_or_default();
            Life::new(&machine, run.habits, devices, random, (seed << 4 | number as u64) << 40)
        })
        .collect();
    let mut left = ops;
    while left > 0 {
        let step = left.min(setting("QUIRE_SWAP_AUDIT", STEP));
        left -= step;
        each(&machine, &mut lives, |life, cpu| life.live(cpu, step));
        assert_audit(&machine);
    }
    lives.iter_mut().for_each(Life::end_failures);
    each(&machine, &mut lives, Life::check_all);
    assert_audit(&machine);
    let remains = lives.into_iter().map(Life::die).collect();
    assert_nothing_is_left(run, &machine, remains, before, started);
    let pages_in = machine.memory().frames().events().sum(VmEvent::Pswpin);
    assert!(pages_in > ops / 10 || run.threads > 1, "hardly anything was paged out");
}

/// Two memcgs, either of which takes a quarter of what the threads of a program have.
fn quarters(machine: &Machine) -> Vec<MemcgId> {
    let memcgs = machine.memory().memcgs();
    let quarter = |name| {
        let memcg = memcgs.create(MemcgId::ROOT, name).expect("there is memory");
        let _ = memcgs.set(memcg, Limit::Max, Some(ARENA / 4 * PAGE)).expect("the memcg is there");
        memcg
    };
    ["one", "other"].map(quarter).to_vec()
}

/// The threads of one program, each with so many operations.
fn go_together(run: &Run, seed: u64) {
    let ops = setting("QUIRE_SWAP_OPS", 6000);
    let machine = machine(run);
    make_memcgs(&machine, 2);
    let before = in_use(&machine);
    let started = Instant::now();
    println!("{} with seed {seed}, {ops} operations", run.name);
    let mut devices = Some(Devices::new(&machine, run.devices));
    let space = Arc::new(machine.memory().create_space().expect("there is memory"));
    map_at(&space, BASE, ARENA * PAGE, RW);
    let memcgs = if run.habits.memcgs { quarters(&machine) } else { Vec::new() };
    if let Some(&memcg) = memcgs.first() {
        space.set_memcg(memcg).expect("the memcg is there");
    }
    let mut sharers: Vec<Sharer<'_>> = (0..run.threads)
        .map(|number| {
            let random = Random(seed << 8 | number as u64);
            let devices = (devices.take().unwrap_or_default(), memcgs.clone());
            let first_value = (seed << 4 | number as u64) << 40;
            let place = (number, run.threads);
            Sharer::new(&machine, Arc::clone(&space), run.habits, devices, place, (random, first_value))
        })
        .collect();
    let mut left = ops;
    while left > 0 {
        let step = left.min(setting("QUIRE_SWAP_AUDIT", STEP));
        left -= step;
        each(&machine, &mut sharers, |sharer, cpu| sharer.live(cpu, step));
        assert_audit(&machine);
    }
    machine.memory().frames().faults().set(FaultPlan::OFF);
    each(&machine, &mut sharers, Sharer::check_all);
    assert_audit(&machine);
    let remains = sharers.into_iter().map(Sharer::die).collect();
    drop(space);
    memcgs.into_iter().for_each(|memcg| machine.memory().memcgs().remove(memcg).expect("no space is in it"));
    assert_nothing_is_left(run, &machine, remains, before, started);
}

/// Exits all spaces, leaving devices and what was counted.
fn assert_nothing_is_left(
    run: &Run,
    machine: &Machine,
    remains: Vec<(Devices, BTreeMap<&'static str, u64>)>,
    before: InUse,
    started: Instant,
) {
    let mut tally = BTreeMap::new();
    let mut devices = Vec::new();
    for (own, counts) in remains {
        devices.push(own);
        counts.into_iter().for_each(|(what, count)| *tally.entry(what).or_insert(0) += count);
    }
    let event = |event| machine.memory().frames().events().sum(event);
    let swap = machine.memory().swap();
    println!(
        "{}: {} faults, {} of them major, {} pages out, {} in, {:.1} s: {tally:?}",
        run.name,
        event(VmEvent::Pgfault),
        event(VmEvent::Pgmajfault),
        event(VmEvent::Pswpout),
        event(VmEvent::Pswpin),
        started.elapsed().as_secs_f64(),
    );
    // Pages that a device was writing when their last owner exited.
    for _ in 0..8 {
        swap.reap();
        swap.reclaim_unnamed();
    }
    assert_eq!(swap.free_slots(), swap.total_slots(), "slots are in use");
    devices.iter_mut().for_each(|devices| devices.end_all(machine));
    assert_audit(machine);
    let memcgs = machine.memory().memcgs();
    memcgs.drain_stocks(&quire_arch::Platform::pin(machine.memory().platform()));
    for id in (1..64).filter_map(MemcgId::new) {
        assert_eq!((memcgs.usage(id), memcgs.swap_usage(id)), (0, 0), "charges of {id:?}");
    }
    assert_eq!(in_use(machine), before, "frames or objects are lost");
}

/// Each life on a CPU of its own.
fn each<L: Send>(machine: &Machine, lives: &mut [L], act: impl Fn(&mut L, &quire_host::Vcpu) + Sync) {
    if let [life] = lives {
        let cpu = machine.vcpu(0).expect("the CPU is free");
        return cpu.run(|| act(life, &cpu));
    }
    thread::scope(|scope| {
        for (number, life) in lives.iter_mut().enumerate() {
            let act = &act;
            scope.spawn(move || {
                let cpu = machine.vcpu(number).expect("each CPU has one thread");
                cpu.run(|| act(life, &cpu));
            });
        }
    });
}

fn seed() -> u64 {
    setting("QUIRE_SEED", 1)
}

#[test]
fn small_pages_on_a_disk() {
    const DEVICES: &[Choice] = &[choice(Kind::Disk, 12000, None)];
    go(&Run { name: "disk", mib: 10, devices: DEVICES, habits: PLAIN, threads: 1 }, seed());
}

#[test]
fn small_pages_on_a_slow_disk() {
    const DEVICES: &[Choice] = &[choice(Kind::Slow, 12000, None)];
    go(&Run { name: "slow", mib: 10, devices: DEVICES, habits: PLAIN, threads: 1 }, seed() + 1);
}

#[test]
fn small_pages_in_compressed_memory() {
    const DEVICES: &[Choice] = &[choice(Kind::Compressed, 12000, None)];
    let habits = Habits { swapoff: false, ..PLAIN };
    go(&Run { name: "compressed", mib: 12, devices: DEVICES, habits, threads: 1 }, seed() + 2);
}

#[test]
fn pages_on_a_ram_disk() {
    const DEVICES: &[Choice] = &[choice(Kind::RamDisk, 6000, None)];
    go(
        &Run {
            name: "ramdisk",
            mib: 32,
            devices: DEVICES,
            habits: Habits { large: true, ..PLAIN },
            threads: 1,
        },
        seed() + 3,
    );
}

const MIXED: &[Choice] = &[
    choice(Kind::Compressed, 3000, Some(10)),
    choice(Kind::Disk, 2049, Some(5)),
    choice(Kind::Slow, 3001, Some(5)),
    choice(Kind::Disk, 6000, None),
];

#[test]
fn large_folios_on_many_devices() {
    let habits = Habits { large: true, ..PLAIN };
    go(&Run { name: "large", mib: 12, devices: MIXED, habits, threads: 1 }, seed() + 4);
}

#[test]
fn memcgs_on_many_devices() {
    let habits = Habits { memcgs: true, ..PLAIN };
    go(&Run { name: "memcgs", mib: 12, devices: MIXED, habits, threads: 1 }, seed() + 5);
}

#[test]
fn devices_that_fail() {
    let habits = Habits { errors: 100, ..PLAIN };
    go(&Run { name: "errors", mib: 12, devices: MIXED, habits, threads: 1 }, seed() + 6);
}

#[test]
fn everything_at_once() {
    let habits = Habits { errors: 20, large: true, memcgs: true, ..PLAIN };
    go(&Run { name: "everything", mib: 12, devices: MIXED, habits, threads: 1 }, seed() + 7);
}

#[test]
fn two_threads() {
    let habits = Habits { alone: false, ..PLAIN };
    go(&Run { name: "two threads", mib: 20, devices: MIXED, habits, threads: 2 }, seed() + 8);
}

#[test]
fn two_threads_with_everything() {
    let habits = Habits { alone: false, large: true, memcgs: true, ..PLAIN };
    go(&Run { name: "two threads, everything", mib: 20, devices: MIXED, habits, threads: 2 }, seed() + 9);
}

#[test]
fn two_threads_of_one_program() {
    let habits = Habits { alone: false, ..PLAIN };
    go_together(&Run { name: "one program", mib: 7, devices: MIXED, habits, threads: 2 }, seed() + 10);
}

#[test]
fn two_threads_of_one_program_with_large_folios() {
    let habits = Habits { alone: false, large: true, ..PLAIN };
    go_together(
        &Run { name: "one program, large", mib: 10, devices: MIXED, habits, threads: 2 },
        seed() + 11,
    );
}

/// Memory is free; the memcgs are full.
#[test]
fn two_threads_of_one_program_in_memcgs() {
    let habits = Habits { alone: false, memcgs: true, ..PLAIN };
    go_together(
        &Run { name: "one program, memcgs", mib: 20, devices: MIXED, habits, threads: 2 },
        seed() + 13,
    );
}

#[test]
fn two_threads_of_one_program_with_devices_that_fail() {
    const DEVICES: &[Choice] = &[
        choice(Kind::Disk, 6000, None),
        choice(Kind::Slow, 6000, None),
        choice(Kind::Compressed, 500, None),
    ];
    let habits = Habits { alone: false, errors: 50, swapoff: false, ..PLAIN };
    go_together(
        &Run { name: "one program, errors", mib: 6, devices: DEVICES, habits, threads: 2 },
        seed() + 12,
    );
}
