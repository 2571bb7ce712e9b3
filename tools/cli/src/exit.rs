//! How the program ends that could not do its work: a line on stderr, and an exit code.

use crate::args::Arguments;
use crate::failure::{Failure, WRONG_INPUT};
use crate::output::warn;
use clap::CommandFactory;
use std::iter;
use std::process::ExitCode;

/// Says on stderr why a command could not do its work.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    warn(failure.line());
    ExitCode::from(failure.code())
}

/// Returns what the argument parser stopped at: help and version are no failures.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // The reader that closed the pipe does not want the rest.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    // What is wrong comes before the first empty line; it may take several.
    let words: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let line = words.join(" ");
    let line = line.trim_start_matches("error: ");
    let similar = text.lines().find_map(|line| line.trim().strip_prefix("tip: a similar "));
    let similar = similar.map(|tip| format!(" (a similar {tip})")).unwrap_or_default();
    let named = std::env::args().nth(1).filter(|word| Arguments::command().find_subcommand(word).is_some());
    let command = command(&text, named.as_deref());
    warn(format_args!("{line}{similar}; `{command} --help` tells what there is"));
    ExitCode::from(WRONG_INPUT)
}

/// The command that was used, as the line of its usage in `text` begins: the words before its arguments. The
/// first is what the binary is called, whatever that is. Some errors have no line of the usage: then it is
/// the command that was `named`, if one was.
fn command(text: &str, named: Option<&str>) -> String {
    let Some(usage) = text.lines().find_map(|line| line.strip_prefix("Usage: ")) else {
        return iter::once("quire").chain(named).collect::<Vec<_>>().join(" ");
    };
    let mut words = usage.split_whitespace();
    let binary = words.next().unwrap_or("quire");
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
    iter::once(binary).chain(words.take_while(is_name)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_names_the_command_whatever_the_binary_is_called() {
        for (usage, name) in [
            ("error: what\n\nUsage: quire replay [OPTIONS] <FILE>\n", "quire replay"),
            ("Usage: quire-0.1 replay <FILE>", "quire-0.1 replay"),
            ("Usage: Quire.rel <COMMAND>", "Quire.rel"),
            ("error: what", "quire replay"),
        ] {
            assert_eq!(command(usage, Some("replay").filter(|_| !usage.contains("Usage"))), name);
        }
        assert_eq!(command("error: what", None), "quire");
    }
}
