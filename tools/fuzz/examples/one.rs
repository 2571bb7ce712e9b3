//! Runs inputs of a target without the fuzzer and prints every step:
//! `cargo run -p quire-fuzz --example one -- memory_calls FILE...`

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some((_, run)) = quire_fuzz::TARGETS.iter().find(|target| target.0 == name) else {
        let names: Vec<_> = quire_fuzz::TARGETS.iter().map(|target| target.0).collect();
        eprintln!("usage: one TARGET FILE..., where TARGET is one of: {}", names.join(", "));
        return ExitCode::from(2);
    };
    for path in arguments {
        match std::fs::read(&path) {
            Ok(bytes) => run(&bytes, true),
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}
