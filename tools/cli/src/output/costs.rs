//! What `quire calibrate` prints.

use super::columns::{aligned, headed};
use super::{say, say_json};
use crate::failure::Failure;
use quire_measure::{Cost, Costs};

pub(crate) fn print(costs: &Costs) {
    say(format_args!("{}, Linux {}; nanoseconds, the middle of several rounds\n", costs.cpu, costs.kernel));
    let mut table = headed(["what", "time", "least", "most", "of it zeroing"]);
    let mut row = |what: String, cost: Cost, zeroing: String| {
        let of = |value: f64| format!("{value:.0}");
        table.add_row([what, of(cost.median), of(cost.min), of(cost.max), zeroing]);
    };
    for (size, cost) in &costs.faults {
        row(format!("page fault, {} KiB", size >> 10), cost.total, format!("{:.0}", cost.zeroing));
    }
    row("page fault on a page that is in memory".to_owned(), costs.map_present, String::new());
    row("zeroing 4 KiB".to_owned(), costs.zero_small, String::new());
    row("zeroing 2 MiB".to_owned(), costs.zero_huge, String::new());
    if let Some(collapse) = costs.collapse {
        row("collapse of 2 MiB".to_owned(), collapse, String::new());
    }
    if let Some(fork) = costs.fork {
        row("fork of a small process".to_owned(), fork.base, String::new());
        row("fork, for each page".to_owned(), fork.page, String::new());
        if let Some(huge) = fork.huge {
            row("fork, for each 2 MiB mapped by one entry".to_owned(), huge, String::new());
        }
        row("write that copies a shared page".to_owned(), fork.copy, String::new());
        if let Some(split) = fork.split {
            row("the same, where it splits an entry for 2 MiB: more".to_owned(), split, String::new());
        }
    }
    say(aligned(table, 1..));
    match costs.kernel_memory {
        Some(kept) => say(format_args!(
            "The kernel keeps {} bytes for a thread, {} for a process, {} for a mapping, and page tables.",
            kept.thread, kept.process, kept.mapping
        )),
        None => say("What the kernel keeps for threads and processes was not measured: that needs root."),
    }
}

pub(crate) fn print_json(costs: &Costs) -> Result<(), Failure> {
    say_json(serde_json::to_string(costs).map_err(Failure::work)?);
    Ok(())
}
