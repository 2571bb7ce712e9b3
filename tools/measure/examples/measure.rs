//! Measures a program, or the costs of this host, and prints all that is known.
//!
//! cargo run --release -p quire-measure --example measure -- [--thp-off] CMD...
//! cargo run --release -p quire-measure --example measure -- --calibrate

use std::error::Error;
use std::process::Command;

use quire_measure::{Options, calibrate, measure};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--calibrate") {
        println!("{}", serde_json::to_string_pretty(&calibrate()?)?);
        return Ok(());
    }
    let thp_disabled = words.first().is_some_and(|word| word == "--thp-off");
    if thp_disabled {
        words.remove(0);
    }
    let program = words.first().ok_or("which program?")?;
    let mut command = Command::new(program);
    command.args(&words[1..]);
    println!("{:#?}", measure(command, &Options { thp_disabled, ..Options::default() })?);
    Ok(())
}
