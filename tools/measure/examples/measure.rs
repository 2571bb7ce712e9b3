//! Measures a program under settings that hold as long as it runs, or the costs of this host, and prints all
//! that is known.
//!
//!     cargo run --release -p quire-measure --example measure -- [--thp-off] [--folios] [--set FILE=WORD] CMD...
//!     cargo run --release -p quire-measure --example measure -- --pairs N CMD...
//!     cargo run --release -p quire-measure --example measure -- --calibrate
//!
//! With --pairs it runs the program so often without measuring and with, in turns, and prints what measuring
//! changes of its times. FILE is one below /sys/kernel/mm/transparent_hugepage, as in `--set
//! hugepages-64kB/enabled=always`.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use quire_measure::{HostSettings, HugeSettings, Options, calibrate, measure};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    let mut settings = HugeSettings::new();
    let mut pairs = 0;
    let mut words = std::env::args().skip(1);
    let program = loop {
        match words.next().ok_or("which program?")?.as_str() {
            "--calibrate" => {
                println!("{}", serde_json::to_string_pretty(&calibrate()?)?);
                return Ok(());
            }
            "--pairs" => pairs = words.next().ok_or("how many?")?.parse()?,
            "--thp-off" => options.thp_disabled = true,
            "--folios" => options.folios = true,
            "--set" => {
                let setting = words.next().unwrap_or_default();
                let (file, word) = setting.split_once('=').ok_or("--set FILE=WORD")?;
                settings = settings.with(file, word);
            }
            program => break program.to_owned(),
        }
    };
    let guard = HostSettings::default().apply(&settings)?;
    let words: Vec<String> = words.collect();
    let command = || {
        let mut command = Command::new(&program);
        command.args(&words);
        command
    };
    if pairs > 0 {
        return compare(pairs, command, &options);
    }
    let truth = measure(command(), &options);
    guard.restore()?;
    println!("{:#?}", truth?);
    Ok(())
}

/// Medians of the ratios of neighbours: processor time, and time from start to end.
fn compare(pairs: usize, command: impl Fn() -> Command, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..pairs {
        let (before, started) = (children()?, Instant::now());
        command().stdout(Stdio::null()).status()?;
        let (wall, used) = (started.elapsed(), children()? - before);
        let mut command = command();
        command.stdout(Stdio::null());
        let truth = measure(command, options)?;
        ratios[0].push((truth.user + truth.system).as_secs_f64() / used.as_secs_f64());
        ratios[1].push(truth.wall.as_secs_f64() / wall.as_secs_f64());
    }
    for (name, ratios) in ["processor time", "wall time"].iter().zip(&mut ratios) {
        ratios.sort_unstable_by(f64::total_cmp);
        let (low, high) = (ratios[pairs / 4], ratios[pairs - 1 - pairs / 4]);
        println!(
            "{name}, with measuring to without: {:.3} (quarters {low:.3} to {high:.3})",
            ratios[pairs / 2]
        );
    }
    Ok(())
}

/// Processor time of the children that this process waited for.
fn children() -> Result<Duration, Box<dyn Error>> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs());
    Ok(time(usage.user_time()) + time(usage.system_time()))
}
