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

use common::*;
use devices::{Choice, Devices, Kind};
use life::{Habits, Life};
use model::{ARENA, BASE};
use quire_frame::FailPlan;
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
    devices: Vec<Choice>,
    habits: Habits,
    threads: usize,
}

impl Run {
    /// One program on one CPU, or two threads where a program is not alone.
    fn new(name: &'static str, mib: u64, devices: &[Choice], habits: Habits) -> Self {
        Self { name, mib, devices: devices.to_vec(), habits, threads: if habits.alone { 1 } else { 2 } }
    }
}

const fn choice(kind: Kind, slots: u64, priority: Option<i16>) -> Choice {
    Choice { kind, slots, priority }
}

const PLAIN: Habits = Habits { errors: 0, large: false, memcgs: false, swapoff: true, alone: true };
const TWO: Habits = Habits { alone: false, ..PLAIN };

fn machine(run: &Run) -> Machine {
    Setup::mib(run.mib).cpus(run.threads).reserve().overcommit().build()
}

/// Allocates the frames that memcgs keep for the next of them, so that nothing seems lost in the end.
fn make_memcgs(machine: &Machine, count: u64) {
    let memcgs = machine.memory().memcgs();
    let all: Vec<MemcgId> = (0..count)
        .map(|at| memcgs.lifecycle().create(MemcgId::ROOT, &format!("first{at}")).expect("there is memory"))
        .collect();
    for memcg in all {
        memcgs.lifecycle().remove(memcg).expect("no space is in it");
    }
}

/// Each run of a seed of its own behind that of the environment.
fn go(run: &Run, nth: u64) {
    let seed = setting("QUIRE_SEED", 1) + nth;
    let ops = setting("QUIRE_SWAP_OPS", 6000);
    let machine = machine(run);
    make_memcgs(&machine, 60);
    let before = in_use(&machine);
    let started = Instant::now();
    println!("{} with seed {seed}, {ops} operations", run.name);
    let mut devices = Some(Devices::new(&machine, &run.devices));
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
        let memcg = memcgs.lifecycle().create(MemcgId::ROOT, name).expect("there is memory");
        let _ = memcgs.files().set(memcg, Limit::Max, Some(ARENA / 4 * PAGE)).expect("the memcg is there");
        memcg
    };
    ["one", "other"].map(quarter).to_vec()
}

/// The threads of one program, each with so many operations.
fn go_together(run: &Run, nth: u64) {
    let seed = setting("QUIRE_SEED", 1) + nth;
    let ops = setting("QUIRE_SWAP_OPS", 6000);
    let machine = machine(run);
    make_memcgs(&machine, 2);
    let before = in_use(&machine);
    let started = Instant::now();
    println!("{} with seed {seed}, {ops} operations", run.name);
    let mut devices = Some(Devices::new(&machine, &run.devices));
    let space = Arc::new(create_space(&machine));
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
    machine.memory().frames().fail_points().set(FailPlan::OFF);
    each(&machine, &mut sharers, Sharer::check_all);
    assert_audit(&machine);
    let remains = sharers.into_iter().map(Sharer::die).collect();
    drop(space);
    memcgs
        .into_iter()
        .for_each(|memcg| machine.memory().memcgs().lifecycle().remove(memcg).expect("no space is in it"));
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
        swap.io().reap();
        swap.reclaim().reclaim_unnamed(&mut |head| {
            machine.memory().spaces().memory().memcgs().splits().left_swap_cache(head);
        });
    }
    assert_eq!(swap.devices().free_slots(), swap.devices().total_slots(), "slots are in use");
    devices.iter_mut().for_each(|devices| devices.end_all(machine));
    assert_audit(machine);
    let memcgs = machine.memory().memcgs();
    memcgs.charges().drain_stocks(&Platform::pin(machine.memory().platform()));
    for id in (1..64).filter_map(MemcgId::new) {
        assert_eq!((memcgs.charges().usage(id), memcgs.charges().swap_usage(id)), (0, 0), "of {id:?}");
    }
    assert_eq!(in_use(machine), before, "frames or objects are lost");
}

/// Each life on a CPU of its own.
fn each<L: Send>(machine: &Machine, lives: &mut [L], act: impl Fn(&mut L, &Vcpu) + Sync) {
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

const MIXED: &[Choice] = &[
    choice(Kind::Compressed, 3000, Some(10)),
    choice(Kind::Disk, 2049, Some(5)),
    choice(Kind::Slow, 3001, Some(5)),
    choice(Kind::Disk, 6000, None),
];

#[test]
fn small_pages_on_a_disk() {
    go(&Run::new("disk", 10, &[choice(Kind::Disk, 12000, None)], PLAIN), 0);
}

#[test]
fn small_pages_on_a_slow_disk() {
    go(&Run::new("slow", 10, &[choice(Kind::Slow, 12000, None)], PLAIN), 1);
}

#[test]
fn small_pages_in_compressed_memory() {
    let habits = Habits { swapoff: false, ..PLAIN };
    go(&Run::new("compressed", 12, &[choice(Kind::Compressed, 12000, None)], habits), 2);
}

#[test]
fn pages_on_a_ram_disk() {
    let habits = Habits { large: true, ..PLAIN };
    go(&Run::new("ramdisk", 32, &[choice(Kind::RamDisk, 6000, None)], habits), 3);
}

#[test]
fn large_folios_on_many_devices() {
    go(&Run::new("large", 12, MIXED, Habits { large: true, ..PLAIN }), 4);
}

#[test]
fn memcgs_on_many_devices() {
    go(&Run::new("memcgs", 12, MIXED, Habits { memcgs: true, ..PLAIN }), 5);
}

#[test]
fn devices_that_fail() {
    go(&Run::new("errors", 12, MIXED, Habits { errors: 100, ..PLAIN }), 6);
}

#[test]
fn everything_at_once() {
    let habits = Habits { errors: 20, large: true, memcgs: true, ..PLAIN };
    go(&Run::new("everything", 12, MIXED, habits), 7);
}

#[test]
fn two_threads() {
    go(&Run::new("two threads", 20, MIXED, TWO), 8);
}

#[test]
fn two_threads_with_everything() {
    go(&Run::new("two threads, everything", 20, MIXED, Habits { large: true, memcgs: true, ..TWO }), 9);
}

#[test]
fn two_threads_of_one_program() {
    go_together(&Run::new("one program", 7, MIXED, TWO), 10);
}

#[test]
fn two_threads_of_one_program_with_large_folios() {
    go_together(&Run::new("one program, large", 10, MIXED, Habits { large: true, ..TWO }), 11);
}

/// Memory is free; the memcgs are full.
#[test]
fn two_threads_of_one_program_in_memcgs() {
    go_together(&Run::new("one program, memcgs", 20, MIXED, Habits { memcgs: true, ..TWO }), 13);
}

#[test]
fn two_threads_of_one_program_with_devices_that_fail() {
    let devices = [(Kind::Disk, 6000), (Kind::Slow, 6000), (Kind::Compressed, 500)];
    let devices = devices.map(|(kind, slots)| choice(kind, slots, None));
    let habits = Habits { errors: 50, swapoff: false, ..TWO };
    go_together(&Run::new("one program, errors", 6, &devices, habits), 12);
}
