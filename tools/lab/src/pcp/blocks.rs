//! Blocks that are only allocated and freed: pairs, bulk, shuffled and remote frees, of orders 0, 3 and 9.

use super::comparison::{Comparison, Round, Workload};
use super::{BLOCK_RAM, SEED};
use crate::error::LabError;
use crate::experiment::Lab;
use crate::harness::{BlockCase, Load, round};
use crate::machine::{Machine, MachineSpec};
use crate::quire::{PinEach, PinHeld};
use quire_arch::{Order, PAGE_SIZE};

/// Rounds of each case.
const ROUNDS: [usize; 3] = [60, 7, 2];
/// Single pages, the largest order of the posted lists, and huge pages.
const ORDERS: [Order; 3] = [Order::ALL[0], Order::ALL[3], Order::ALL[9]];
const THREADS: [usize; 2] = [1, 2];

/// The parts of a case together.
const WHOLE: &str = "get and put";

/// Rounds of pairs are short: so many make one of the others, or a busy moment would spoil a whole case.
const SHORT: usize = 5;

/// A round of the harness.
struct Blocks {
    case: BlockCase,
    load: Load,
    /// Whether each operation pins by itself.
    pin_each: bool,
}

/// The variants of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The pin is held, and there are as many blocks as the lists can hold.
    Plain,
    /// Each operation pins by itself.
    PinEach,
    /// There are more blocks than the lists may hold.
    PastBudget,
}

impl Workload for Blocks {
    fn round(&mut self, machine: &Machine, number: usize) -> Result<Round, LabError> {
        let load = Load { seed: self.load.seed ^ number as u64, ..self.load };
        let (figures, counts) = machine.counted(|| {
            if self.pin_each {
                round(&PinEach(machine), self.case, load)
            } else {
                round(&PinHeld(machine), self.case, load)
            }
        });
        let mut figures = figures?;
        if figures.len() > 1 {
            figures.push(figures.iter().sum());
        }
        Ok(Round { figures, counts, operations: load.blocks(self.case) })
    }
}

/// Each case with its variants, and what these add to its name.
const VARIANTS: [(BlockCase, Variant, &str); 7] = [
    (BlockCase::Pairs, Variant::Plain, ""),
    (BlockCase::Bulk, Variant::Plain, ""),
    (BlockCase::Shuffled, Variant::Plain, ""),
    (BlockCase::Remote, Variant::Plain, ""),
    (BlockCase::Pairs, Variant::PinEach, ", a pin each"),
    (BlockCase::Bulk, Variant::PastBudget, ", past the budget"),
    (BlockCase::Shuffled, Variant::PastBudget, ", past the budget"),
];

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    lab.part("Blocks: ns for each operation; lock takes for 1000 allocations");
    for (kind, variant, text) in VARIANTS {
        // The bound on the number of blocks keeps small ones inside the budget.
        let orders = if variant == Variant::PastBudget { &ORDERS[2..] } else { &ORDERS };
        for &order in orders {
            for threads in THREADS.into_iter().filter(|&threads| kind.runs_with(threads)) {
                let plural = if threads == 1 { "" } else { "s" };
                let name = format!("{} order {order}, {threads} thread{plural}{text}", kind.name());
                blocks(lab, &name, (kind, variant), (order, threads))?;
            }
        }
    }
    Ok(())
}

fn blocks(
    lab: &mut Lab<'_>,
    name: &str,
    (kind, variant): (BlockCase, Variant),
    (order, threads): (Order, usize),
) -> Result<(), LabError> {
    lab.case(name, |case, name| {
        let ram = case.scale.of(BLOCK_RAM);
        let frames = ram / PAGE_SIZE;
        let load = match variant {
            Variant::PastBudget => Load::exceeding(frames, order, threads, SEED),
            Variant::Plain | Variant::PinEach => Load::fitting(frames, order, threads, SEED),
        };
        let pin_each = variant == Variant::PinEach;
        let rounds = case.scale.of(ROUNDS) * if kind == BlockCase::Pairs { SHORT } else { 1 };
        let comparison = Comparison::run(case, MachineSpec::new(ram, threads), rounds, |_| {
            Ok(Blocks { case: kind, load, pin_each })
        })?;
        let whole = (kind.parts().len() > 1).then_some(&WHOLE);
        for (part, what) in kind.parts().iter().chain(whole).enumerate() {
            comparison.add_times(case, &format!("{name}: {what}"), part);
        }
        comparison.add_costs(case, name);
        Ok(())
    })
}
