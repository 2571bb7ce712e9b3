//! Blocks that are only allocated and freed: pairs, bulk, shuffled and remote frees, of orders 0, 3 and 9.

use super::Scale;
use super::comparison::{Comparison, Round, Workload};
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::harness::{Case, Load, round};
use crate::machine::{Machine, MachineSpec};
use crate::quire::{PinEach, PinHeld};
use quire_arch::{Order, PAGE_SIZE};
use quire_frame::PcpTechnique;

/// Single pages, the largest order of the posted lists, and huge pages.
const ORDERS: [Order; 3] = [Order::ALL[0], Order::ALL[3], Order::ALL[9]];
const THREADS: [usize; 2] = [1, 2];

/// The parts of a case together.
const WHOLE: &str = "get and put";

/// Rounds of pairs are short: so many make one of the others, or a busy moment would spoil a whole case.
const SHORT: usize = 5;

/// A round of the harness.
struct Blocks {
    case: Case,
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

impl Variant {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::PinEach => ", a pin each",
            Self::PastBudget => ", past the budget",
        }
    }
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

/// Everything that is run: the case with its variant, the order and the threads.
fn all() -> impl Iterator<Item = (Case, Variant, Order, usize)> {
    let others = [
        (Case::Pairs, Variant::PinEach),
        (Case::Bulk, Variant::PastBudget),
        (Case::Shuffled, Variant::PastBudget),
    ];
    let kinds = Case::ALL.into_iter().map(|case| (case, Variant::Plain)).chain(others);
    kinds
        .flat_map(|(case, variant)| ORDERS.into_iter().map(move |order| (case, variant, order)))
        .flat_map(|(case, variant, order)| {
            THREADS.into_iter().map(move |threads| (case, variant, order, threads))
        })
        .filter(|&(case, _, _, threads)| case.runs_with(threads))
        // The bound on the number of blocks keeps small ones inside the budget.
        .filter(|&(_, variant, order, _)| variant != Variant::PastBudget || order == Order::PMD)
}

pub(super) fn part(scale: &Scale) -> Part<'_, PcpTechnique> {
    Part::new(
        "Blocks: ns for each operation; lock takes for 1000 allocations",
        all(),
        |&(case, variant, order, threads)| {
            let plural = if threads == 1 { "" } else { "s" };
            format!("{} order {order}, {threads} thread{plural}{}", case.name(), variant.name())
        },
        |name, (case, variant, order, threads)| {
            let frames = scale.block_ram / PAGE_SIZE;
            let load = match variant {
                Variant::PastBudget => Load::exceeding(frames, order, threads, scale.seed),
                Variant::Plain | Variant::PinEach => Load::fitting(frames, order, threads, scale.seed),
            };
            let pin_each = variant == Variant::PinEach;
            let rounds = if case == Case::Pairs { scale.block_rounds * SHORT } else { scale.block_rounds };
            let comparison = Comparison::run(MachineSpec::new(scale.block_ram, threads), rounds, |_| {
                Ok(Blocks { case, load, pin_each })
            })?;
            let whole = (case.parts().len() > 1).then_some(&WHOLE);
            let mut figures = Vec::new();
            for (part, what) in case.parts().iter().chain(whole).enumerate() {
                figures.extend(comparison.times(&format!("{name}: {what}"), part));
            }
            figures.extend(comparison.costs(name));
            Ok(Measured::new(figures, comparison.outcome.findings))
        },
    )
}
