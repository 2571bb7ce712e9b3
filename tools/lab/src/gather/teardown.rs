//! Populated memory that is unmapped: by one `munmap`, in pieces, with a child that maps it too, and by an
//! exit; and `fork` with such memory, with the exit of the child that touched nothing.

use super::{BYTES, PIECE};
use crate::prelude::*;
use crate::process::{Cost, cost_of};

/// Bytes of populated memory that one `munmap` removes.
const MUNMAP_BYTES: [u64; 3] = [GIB, 128 * MIB, 8 * MIB];
/// Rounds of each case.
const ROUNDS: [usize; 3] = [11, 5, 1];

/// The folios of the cases that are not done with every kind.
const SOME: [Folios; 4] = [Folios::PAGES, Folios::of(Order::ALL[3]), Folios::of(Order::ALL[4]), Folios::PMD];
const FEW: [Folios; 3] = [Folios::PAGES, Folios::of(Order::ALL[4]), Folios::PMD];

const ROWS: [Row; 4] = [
    Row::times("ns/page", 0),
    Row::own("shootdowns", "per call", 2, Series::mean),
    Row::own("interrupts", "per call", 3, Series::mean),
    Row::own("memory_still_waiting", "KiB", 4, Series::median),
];

/// What becomes of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    /// It is unmapped at once.
    Munmap,
    /// Every second piece of it is unmapped, in calls of [`PIECE`] bytes.
    Pieces,
    /// It is unmapped while a child maps it too.
    Shared,
    /// Its process exits.
    Exit,
    /// It is written to again, so that each fork finds it as the first did.
    Fork,
}

/// An operation on `bytes` of memory in `folios`: the times for each page, flushes for each call, and pages
/// that wait.
fn teardown(operation: Operation, bytes: u64, folios: Folios) -> impl Job + Clone {
    let mut populated = false;
    move |process: &mut dyn Process| {
        let available = process.available();
        if operation != Operation::Exit && !populated {
            process.populate(0, bytes, 1, folios)?;
        }
        let (mut second, mut calls) = (0, 1);
        let cost = match operation {
            Operation::Munmap => cost_of(process, available, &mut |process| process.unmap(0, bytes))?,
            Operation::Pieces => {
                let pieces = bytes / PIECE;
                calls = pieces / 2;
                // Half of it stays until then.
                let left = available.saturating_sub(pages(bytes) / 2);
                let cost = cost_of(process, left, &mut |process| {
                    (0..pieces).step_by(2).try_for_each(|nth| process.unmap(nth * PIECE, PIECE))
                })?;
                process.unmap(0, bytes)?;
                Cost { time: 2 * cost.time, ..cost }
            }
            Operation::Shared => {
                let mut cost = Cost::default();
                process.beside_child(&mut |process| {
                    // All of it stays.
                    let left = process.available();
                    cost = cost_of(process, left, &mut |process| process.unmap(0, bytes))?;
                    Ok(())
                })?;
                cost
            }
            Operation::Exit => process.exit(bytes, folios)?,
            Operation::Fork => {
                populated = true;
                process.touch(0, bytes, 1, Access::Write)?;
                let cost;
                (cost, second) = process.fork()?;
                cost
            }
        };
        let a_page = |time: u64| time as f64 / pages(bytes) as f64;
        let a_call = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / calls as f64;
        let Cost { time, flushes, waiting } = cost;
        let [shootdowns, interrupts] = [a_call(&flushes.shootdowns), a_call(&flushes.interrupts)];
        Ok(round_figures(&[a_page(time), a_page(second), shootdowns, interrupts, waiting as f64 * 4.0]))
    }
}

/// Each operation with its name, the title of its cases, and the folios that it is done with.
fn operations() -> [(Operation, &'static str, &'static str, Vec<Folios>); 5] {
    [
        (Operation::Munmap, "munmap", "munmap of populated memory", Folios::all().collect()),
        (Operation::Exit, "exit", "exit of a process with populated memory", SOME.to_vec()),
        (Operation::Pieces, "munmap in pieces", "munmap of every second 64 KiB", SOME.to_vec()),
        (Operation::Shared, "munmap beside a child", "munmap of what a child maps too", SOME.to_vec()),
        (Operation::Fork, "fork", "fork with written memory", FEW.to_vec()),
    ]
}

pub(super) fn parts(lab: &mut Lab<'_>) -> Done {
    for (operation, name, title, kinds) in operations() {
        let bytes = lab.scale.of(if operation == Operation::Munmap { MUNMAP_BYTES } else { BYTES });
        lab.part(format!("{title}, {} MiB: ns for each page", bytes / MIB));
        for folios in kinds {
            let terms = Terms { folios, ..Terms::warm(bytes, bytes, lab.scale.of(ROUNDS)) };
            let name = format!("{name}, {folios}");
            lab.case(&name, |lab| {
                let outcome = lab.on_both(terms, teardown(operation, bytes, folios))?;
                lab.rows(&name, &outcome, &ROWS);
                if operation == Operation::Fork {
                    let child = format!("exit of the child, {folios}");
                    lab.rows(&child, &outcome, &[Row::times("ns/page", 1)]);
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::{Linux, rounds_on_host};

    #[test]
    fn linux_does_every_operation_with_pages_round_after_round() {
        for (operation, name, ..) in operations() {
            let job = teardown(operation, 8 * MIB, Folios::PAGES);
            let rounds = rounds_on_host(job, 8 * MIB);
            let mut linux = Linux::start(32 * MIB, rounds).expect("8 MiB are free");
            for round in 0..3 {
                let figures = linux.round().expect("pages need no control");
                assert!(figures[0] > 0.0, "{name}, round {round}: {figures:?}");
            }
        }
    }
}
