//! Quire's frame allocator and its peers under one harness: `quire_lab::harness`.
//!
//! README.md says how to run it and how to add a peer.

mod peers;
mod race;
mod show;

use clap::Parser;
use peers::{Buddy, LockedBuddy};
use quire_arch::{Order, PAGE_SIZE};
use quire_frame::{FrameConfig, PcpTechnique};
use quire_lab::harness::{BlockCase, Load};
use quire_lab::machine::{Machine, MachineSpec};
use quire_lab::{LabError, PinEach, PinHeld};
use race::Contender;
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Compares allocators of page frames: nanoseconds for each operation, by order, threads and case.
#[derive(Debug, Parser)]
#[command(name = "quire-bench", version)]
struct Arguments {
    /// Most threads; each case is run with one thread, and with this many
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Orders of the blocks
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,3,9", value_parser = order)]
    orders: Vec<Order>,
    /// Rounds of each case
    #[arg(long, value_name = "N", default_value_t = 40)]
    rounds: usize,
    /// RAM of each machine in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    memory: u64,
    /// Print one JSON object a figure
    #[arg(long)]
    json: bool,
}

fn order(text: &str) -> Result<Order, String> {
    let number = text.parse().ok().and_then(Order::new);
    number.ok_or_else(|| format!("expected orders from 0 to {}", Order::MAX.get()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut threads = vec![1, arguments.threads.max(1)];
    threads.dedup();
    for case in BlockCase::ALL {
        for &order in &arguments.orders {
            for &threads in threads.iter().filter(|&&threads| case.runs_with(threads)) {
                match run(&arguments, case, order, threads) {
                    // The other end of the pipe was closed.
                    Ok(text) if writeln!(stdout(), "{text}").is_err() => return ExitCode::SUCCESS,
                    Ok(_) => (),
                    Err(error) => {
                        eprintln!("quire-bench: {} order {order}, {threads} threads: {error}", case.name());
                        return ExitCode::FAILURE;
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}

/// One case, as text: every contender on memory of its own, round by round in turn.
fn run(arguments: &Arguments, case: BlockCase, order: Order, threads: usize) -> Result<String, LabError> {
    let ram = arguments.memory << 20;
    let frames = ram / PAGE_SIZE;
    let load = Load::of_part(Load::FITTING, frames, order, threads, 9);
    let machines = PcpTechnique::COMPARED
        .into_iter()
        .map(|pcp| {
            let frames = FrameConfig { pcp, ..FrameConfig::default() };
            Ok((pcp, Machine::new(MachineSpec { ram, cpus: threads, backed: false, frames })?))
        })
        .collect::<Result<Vec<_>, LabError>>()?;
    let mut contenders: Vec<Contender<'_>> = machines
        .iter()
        .map(|(pcp, machine)| Contender::new(format!("quire, {}", pcp.name()), PinHeld(machine)))
        .collect();
    for (pcp, machine) in machines.iter().filter(|(pcp, _)| *pcp == PcpTechnique::All) {
        contenders.push(Contender::new(format!("quire, {}, a pin each", pcp.name()), PinEach(machine)));
    }
    contenders.push(Contender::new(LockedBuddy::NAME.to_owned(), LockedBuddy::new(frames)));
    if threads == 1 {
        contenders.push(Contender::new(Buddy::NAME.to_owned(), Buddy::new(frames)));
    }
    race::run(&mut contenders, case, load, arguments.rounds)?;
    Ok(show::text(&contenders, case, load, arguments.json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_runs_every_case() {
        let arguments = Arguments::parse_from(["quire-bench", "--rounds", "1", "--memory", "64", "--json"]);
        for case in BlockCase::ALL {
            for &order in &arguments.orders {
                for threads in (1..=2).filter(|&threads| case.runs_with(threads)) {
                    let text = run(&arguments, case, order, threads).expect("there is room");
                    let lines = text.lines().count();
                    // Five of Quire, and its peer with a lock and, for one thread, without.
                    let contenders = if threads == 1 { 7 } else { 6 };
                    assert_eq!(lines, contenders * case.parts().len(), "{case:?} {order} {threads}: {text}");
                }
            }
        }
    }

    #[test]
    fn orders_have_a_limit() {
        assert_eq!(order("3"), Ok(Order::ALL[3]));
        assert!(order("11").is_err() && order("x").is_err());
    }
}
