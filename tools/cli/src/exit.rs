//! Exit codes: 0 success, 1 the work found a failure, 2 wrong usage or input.

use crate::args::Arguments;
use crate::output::warn;
use clap::CommandFactory;
use quire_advise::AdviseError;
use quire_output::FileError;
use std::fmt;
use std::iter;
use std::process::ExitCode;

/// The work was done and found something wrong.
pub(crate) const FOUND_FAILURE: u8 = 1;
/// Wrong usage or input.
const WRONG_INPUT: u8 = 2;

/// Why a command could not do its work: one line of text.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    code: u8,
}

impl Failure {
    /// The input or the usage is wrong.
    pub(crate) fn input(error: impl fmt::Display) -> Self {
        Self { line: error.to_string(), code: WRONG_INPUT }
    }

    /// The work itself failed.
    pub(crate) fn work(error: impl fmt::Display) -> Self {
        Self { line: error.to_string(), code: FOUND_FAILURE }
    }

    /// What happened.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Says it on stderr and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        warn(self.line());
        ExitCode::from(self.code)
    }
}

/// A wrong place is wrong usage; a full disk is not.
impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Write { .. } | FileError::Name { .. } => Self::work(error),
            _ => Self::input(error),
        }
    }
}

impl From<AdviseError> for Failure {
    fn from(error: AdviseError) -> Self {
        match error {
            AdviseError::DoesNotFit(..) | AdviseError::HostIsShort(_) => Self::work(error),
            _ => Self::input(error),
        }
    }
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
