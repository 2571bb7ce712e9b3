//! `quire man` and `quire completions`: files that a package installs with the program.

use crate::args::Arguments;
use crate::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use quire_output::{Kind, Meanwhile, WholeFile};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// A page as clap_mangen writes it.
const PAGE: Kind = Kind {
    name: "manual page",
    is_one: |start| start.starts_with(b".ie \\n(.g .ds Aq"),
    hint: "remove it first, or name another folder",
};

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
    // Elsewhere first: here only manual pages are replaced.
    let pages = tempfile::tempdir().map_err(Failure::input)?;
    clap_mangen::generate_to(Arguments::command(), pages.path()).map_err(Failure::work)?;
    for page in std::fs::read_dir(pages.path()).map_err(Failure::work)? {
        let page = page.map_err(Failure::work)?;
        let target = WholeFile::open(&folder.join(page.file_name()), &PAGE, false, Meanwhile::Unnamed)?;
        target.write(&std::fs::read(page.path()).map_err(Failure::work)?)?;
    }
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
