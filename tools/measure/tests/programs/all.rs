//! The programs that the tests measure and kill. The first argument says which.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use quire_measure::{HostSettings, HugeSettings};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["hold", root, lock, ref settings @ ..] => hold(root, lock, settings),
        _ => ExitCode::from(2),
    }
}

/// Puts settings in place, says so, and keeps them until its input ends.
fn hold(root: &str, lock: &str, settings: &[&str]) -> ExitCode {
    let settings: HugeSettings = settings.iter().filter_map(|setting| setting.split_once('=')).collect();
    match HostSettings::at(root, lock).apply(&settings) {
        Ok(_guard) => {
            println!("held");
            let _ = std::io::stdout().flush();
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
