//! Random moves against a simple model.

use super::{BASE, LEAVE, MOVE, machine_by};
use crate::common::{Call, NOT_MAPPED, PAGE, Process, RW, Random, assert_audit, orders, setting};
use quire_arch::{Order, VirtAddr};
use quire_host::Machine;
use quire_mm::{
    space::{Advice, Protection, RemapTechnique, TablesTechnique},
    thp::OrderSet,
};

/// Random moves against a map from pages to what was written there.
#[test]
fn random_moves_agree_with_a_simple_model() {
    let seed = setting("QUIRE_SEED", 63);
    println!("QUIRE_SEED={seed}");
    for technique in RemapTechnique::ALL {
        for tables in TablesTechnique::ALL {
            for sizes in [OrderSet::EMPTY, orders(&[2, 4, 9])] {
                let machine = machine_by(96, 2, technique, tables, sizes);
                random_moves(seed, &machine, setting("QUIRE_ROUNDS", 250));
            }
        }
    }
}

/// Places and lengths in pages: most at borders, or beside them.
fn somewhere(random: &mut Random, bound: u64) -> u64 {
    let any = random.below(bound);
    match random.below(4) {
        0 => any,
        1 => any & !511,
        2 => any & !255,
        _ => ((any & !511) + random.below(3)).saturating_sub(1),
    }
}

fn random_moves(seed: u64, machine: &Machine, rounds: u64) {
    /// Pages of the test's range: a border of all levels is in its middle.
    const PAGES: u64 = 10 * 512;
    let start = VirtAddr(BASE.0 - PAGES / 2 * PAGE);
    let mut random = Random(seed);
    let mut processes = vec![Process::new(machine.memory().create_space().unwrap(), start, [])];
    let cpus = [0, 1].map(|number| machine.vcpu(number).unwrap());
    for round in 1..=rounds {
        let living = processes.len();
        let nth = random.below(living as u64) as usize;
        let cpu = &cpus[random.below(2) as usize];
        let process = &mut processes[nth];
        let from = somewhere(&mut random, PAGES - 1);
        let len = somewhere(&mut random, (PAGES - from).min(1600)).max(1);
        let range = from..from + len;
        match random.below(12) {
            0..3 => {
                let protection = if random.chance(80) { RW } else { RW | Protection::EXECUTE };
                process.call(Call::Map(protection), range).unwrap();
            }
            3 => cpu.run(|| process.call(Call::Unmap, range)).unwrap(),
            // It fails where a hole is in the range.
            4 => drop(cpu.run(|| process.call(Call::Advise(Advice::DontNeed), range))),
            5 if living < 3 => {
                let child = cpu.run(|| process.fork()).unwrap();
                processes.push(child);
            }
            5 if living > 1 => drop(processes.swap_remove(nth)),
            5..8 => {
                for at in 0..40 {
                    let at = if at == 0 { from } else { from + random.below(len) };
                    let written = process.write(cpu, at, round << 16 | at);
                    assert!(matches!(written, Ok(()) | Err(NOT_MAPPED)), "{written:?}");
                }
            }
            8 => {
                let order = Order::new(random.below(4) as u8).unwrap();
                let _ = process.space.split_folio(process.addr(from), order);
            }
            kind => {
                let to = somewhere(&mut random, PAGES - len);
                let flags = if kind == 9 { LEAVE } else { MOVE };
                let pages = if kind == 10 { len - random.below(len) } else { len };
                if cpu.run(|| process.call(Call::Remap { to, pages, flags }, range)).is_err() {
                    // What a failed call had unmapped or moved by then is not modelled.
                    process.reload(cpu);
                }
            }
        }
        if round % 8 == 0 {
            assert_audit(machine);
        }
        if round % 32 == 0 {
            for process in &processes {
                for at in 0..PAGES {
                    let checked = process.check(&cpus[0], at);
                    assert_eq!(checked, Ok(()), "seed {seed}, round {round}, page {at:#x}");
                }
            }
        }
    }
    assert_audit(machine);
}
