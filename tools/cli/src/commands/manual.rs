//! `quire man` and `quire completions`: files that a package installs with the program.

use crate::args::Arguments;
use crate::exit::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "quire", &mut script);
    print(&script)
}

/// Prints the manual page of `quire`, or writes one page a command into `folder`.
pub(crate) fn pages(folder: Option<&Path>) -> Result<ExitCode, Failure> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command()).render(&mut page).map_err(Failure::work)?;
        return print(&page);
    };
    let failed = |error| Failure::input(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &[u8]) -> Result<ExitCode, Failure> {
    match io::stdout().lock().write_all(text) {
        // The reader has what it wants.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::work(format!("standard output: {error}"))),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}
