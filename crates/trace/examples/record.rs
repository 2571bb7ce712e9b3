//! Records a program: `record OUTPUT [--faults SOURCE] COMMAND ARGS...`.

use quire_trace::record::{FaultChoice, RecordOptions, record};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    let Some(output) = words.next() else {
        eprintln!("usage: record OUTPUT [--faults auto|tracepoint|software|pagemap] COMMAND ARGS...");
        return ExitCode::from(2);
    };
    let mut faults = FaultChoice::Auto;
    if words.next_if(|word| word == "--faults").is_some() {
        let name = words.next().unwrap_or_default();
        match name.to_string_lossy().parse() {
            Ok(choice) => faults = choice,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        }
    }
    let command: Vec<OsString> = words.collect();
    let options = RecordOptions { faults, ..RecordOptions::new(command, output.into()) };
    match record(&options) {
        Ok(summary) => {
            eprint!("{summary}");
            ExitCode::from(summary.exit_code())
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}
