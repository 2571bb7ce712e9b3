//! Blocks that are only allocated and freed: pairs, bulk, shuffled and remote frees, of orders 0, 3 and 9.

use super::comparison::{TIMES, compare, figures};
use super::{BLOCK_RAM, SEED};
use crate::harness::{BlockCase, Load, round};
use crate::machine::{Machine, MachineSpec};
use crate::prelude::*;
use crate::quire::{PinEach, PinHeld};

/// Rounds of each case.
const ROUNDS: [usize; 3] = [60, 7, 2];
/// Rounds of pairs are short: so many make one of the others, or a busy moment would spoil a whole case.
const SHORT: usize = 5;
/// Single pages, the largest order of the posted lists, and huge pages.
const ORDERS: [Order; 3] = [Order::ALL[0], Order::ALL[3], Order::ALL[9]];
/// The parts of a case together.
const WHOLE: &str = "get and put";

/// Rounds of the harness. Each operation pins by itself, or the pin is held.
fn blocks(machine: &Machine, case: BlockCase, load: Load, pin_each: bool) -> Rounds<'_> {
    Box::new(move |number| {
        let load = Load { seed: load.seed ^ number as u64, ..load };
        let (parts, counts) = machine.counted(|| match pin_each {
            true => round(&PinEach(machine), case, load),
            false => round(&PinHeld(machine), case, load),
        });
        let mut parts = parts?;
        parts.push(parts.iter().sum());
        Ok(figures(&parts, counts, load.blocks(case) as usize))
    })
}

/// Each case with its part of RAM, whether each operation pins, and what these add to its name. The bound on
/// the number of blocks keeps small ones inside the budget of the lists.
const CASES: [(BlockCase, u64, &[Order], bool, &str); 7] = [
    (BlockCase::Pairs, Load::FITTING, &ORDERS, false, ""),
    (BlockCase::Bulk, Load::FITTING, &ORDERS, false, ""),
    (BlockCase::Shuffled, Load::FITTING, &ORDERS, false, ""),
    (BlockCase::Remote, Load::FITTING, &ORDERS, false, ""),
    (BlockCase::Pairs, Load::FITTING, &ORDERS, true, ", a pin each"),
    (BlockCase::Bulk, Load::EXCEEDING, &[ORDERS[2]], false, ", past the budget"),
    (BlockCase::Shuffled, Load::EXCEEDING, &[ORDERS[2]], false, ", past the budget"),
];

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    lab.part("Blocks: ns for each operation; lock takes for 1000 allocations");
    let (ram, rounds) = (lab.scale.of(BLOCK_RAM), lab.scale.of(ROUNDS));
    for (case, part, orders, pin_each, text) in CASES {
        let rounds = if case == BlockCase::Pairs { SHORT * rounds } else { rounds };
        let whole = (case.parts().len() > 1).then_some(&WHOLE);
        let parts = case.parts().iter().chain(whole).zip(&TIMES);
        let parts: Vec<_> = parts.map(|(what, rows)| (format!(": {what}"), &rows[..])).collect();
        for &order in orders {
            for threads in [1, 2].into_iter().filter(|&threads| case.runs_with(threads)) {
                let plural = if threads == 1 { "" } else { "s" };
                let name = format!("{} order {order}, {threads} thread{plural}{text}", case.name());
                let load = Load::of_part(part, ram / PAGE_SIZE, order, threads, SEED);
                let terms = (MachineSpec::new(ram, threads), rounds);
                compare(lab, &name, terms, |machine| Ok(blocks(machine, case, load, pin_each)), &parts)?;
            }
        }
    }
    Ok(())
}
