//! Measures a program under settings that hold as long as it runs, or the costs of this host, and prints all that is known.
//!
//!     cargo run --release -p quire-measure --example measure -- [--thp-off] [--folios] [--set FILE=WORD]... CMD...
//!     cargo run --release -p quire-measure --example measure -- --calibrate
//!
//! FILE is one below /sys/kernel/mm/transparent_hugepage, as in `--set hugepages-64kB/enabled=always`.

use std::error::Error;
use std::process::Command;

use quire_measure::{HostSettings, HugeSettings, Options, calibrate, measure};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    let mut settings = HugeSettings::new();
    let mut words = std::env::args().skip(1);
    let program = loop {
        match words.next().ok_or("which program?")?.as_str() {
            "--calibrate" => {
                println!("{}", serde_json::to_string_pretty(&calibrate()?)?);
                return Ok(());
            }
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
    let mut command = Command::new(program);
    command.args(words);
    let truth = measure(command, &options);
    guard.restore()?;
    println!("{:#?}", truth?);
    Ok(())
}
