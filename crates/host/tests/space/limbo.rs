//! What waits for the readers of page tables and VMAs does not pile up.

use crate::common::*;
use quire_slab::cache_reports;
use std::sync::mpsc;
use std::thread;

const BASE: VirtAddr = VirtAddr(1 << 39);
/// PTE tables of a GiB with a page in each, and the two tables above them.
const TABLES: u64 = 514;

/// Writes to one page in each 2 MiB of a GiB.
fn touch_sparsely(cpu: &Vcpu, space: &HostSpace<'_>) {
    map_at(space, BASE.0, GIB, RW);
    (0..512).for_each(|block| write(cpu, space, VirtAddr(BASE.0 + block * MIB2), 1));
}

fn waiting(machine: &Machine) -> u64 {
    machine.memory().totals().limbo_blocks
}

/// VMAs, tree nodes and anon_vmas that wait.
fn retired_objects(machine: &Machine) -> u64 {
    cache_reports(machine.memory().frames()).map(|cache| cache.retired).sum()
}

/// Runs `action` while CPU 1 stays in a section of the epoch.
fn beside_a_reader(machine: &Machine, action: impl FnOnce()) {
    let (entered, inside) = mpsc::channel();
    let (stay, leave) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            machine.vcpu(1).unwrap().run(|| {
                let frames = machine.memory().frames();
                let pin = frames.platform().pin();
                let _section = frames.epoch().enter(&pin);
                entered.send(()).unwrap();
                // Until the other end is dropped.
                _ = leave.recv();
            });
        });
        inside.recv().unwrap();
        action();
        drop(stay);
    });
}

/// A call frees as many tables as it retires, however many that are.
#[test]
fn unmapping_sparse_memory_does_not_fill_the_limbo() {
    let machine = Setup::mib(64).cpus(1).overcommit().build();
    let (cpu, space) = cpu_and_space(&machine);
    for round in 0..20 {
        touch_sparsely(&cpu, &space);
        cpu.run(|| space.munmap(BASE, GIB).unwrap());
        assert!(waiting(&machine) <= 64, "{} tables in the limbo after round {round}", waiting(&machine));
    }
}

/// A CPU is in a section of the epoch for long, so nothing that the other one retires can be freed. Then
/// kswapd frees that before it takes a program's pages.
#[test]
fn kswapd_reaps_before_it_pages_out() {
    let machine = Setup::mib(64).cpus(2).overcommit().reserve().swap(16384).build();
    let (cpu, space) = cpu_and_space(&machine);
    let frames = machine.memory().frames();
    let program = VirtAddr(BASE.0 + 16 * GIB);
    map_at(&space, program.0, 8 << 20, RW);
    fill(&cpu, &space, program, 0..2048, 1);

    beside_a_reader(&machine, || {
        // Until kswapd is due, and no further: a fault would reclaim by itself.
        while frames.watermarks().background_target() == 0 {
            map_at(&space, BASE.0, GIB, RW);
            let due = |block| {
                write(&cpu, &space, VirtAddr(BASE.0 + block * MIB2), 1);
                frames.watermarks().background_target() > 0
            };
            _ = (0..512).any(due);
            cpu.run(|| space.munmap(BASE, GIB).unwrap());
        }
    });
    let waited = waiting(&machine);
    assert!(waited > 10 * TABLES, "{waited} tables in the limbo");

    let step = machine.memory().kswapd_step();
    assert!(step.freed > 0 && step.missing == 0, "{step:?}");
    assert!(waiting(&machine) < waited);
    assert_eq!(space.figures().swapped, 0, "a page was taken beside {waited} frames in the limbo");
    assert_filled(&cpu, &space, program, 0..2048, 1);
}

/// A CPU that retires nothing any more leaves nothing behind: neither tables nor VMAs, nor their trees'
/// nodes.
#[test]
fn a_tick_reaps_what_idle_cpus_retired() {
    let machine = Setup::mib(64).cpus(2).overcommit().build();
    let (cpu, space) = cpu_and_space(&machine);
    beside_a_reader(&machine, || {
        touch_sparsely(&cpu, &space);
        cpu.run(|| {
            for page in (0..1024).step_by(2) {
                space.mprotect(VirtAddr(BASE.0 + page * PAGE), PAGE, READ, false).unwrap();
            }
            space.munmap(BASE, GIB).unwrap();
        });
    });
    assert!(waiting(&machine) >= TABLES && retired_objects(&machine) > 512);
    (0..4).for_each(|_| _ = machine.tick(&cpu));
    assert_eq!((waiting(&machine), retired_objects(&machine)), (0, 0));
}

/// A tick moves a bounded part of what idle CPUs hold. kswapd, which is not pinned, moves the rest.
#[test]
fn kswapd_moves_what_a_tick_leaves_on_the_lists_of_cpus() {
    let machine: Machine = Setup::mib(1024).cpus(2).build();
    let (cpu, space, _) = mapped(&machine, BASE.0, 64 * MIB2);
    (0..64 * MIB2 / PAGE).for_each(|page| write(&cpu, &space, VirtAddr(BASE.0 + page * PAGE), 1));
    cpu.run(|| space.munmap(BASE, 64 * MIB2).unwrap());
    let frames = machine.memory().frames();
    let held = || frames.reports().zone_reports().map(|zone| zone.pcp).sum::<u64>();
    machine.tick(&cpu);
    let before = held();
    assert!(before > 16_000, "{before}");
    let given_back = machine.tick(&cpu);
    assert!((4000..5000).contains(&given_back), "{given_back}");
    cpu.run(|| machine.memory().kswapd_step());
    assert!(held() <= before / 2 + 64, "{before}, then {}", held());
}
