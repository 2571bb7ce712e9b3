//! `quire sweep`.

use super::{at_once, grid};
use crate::args::{SweepArguments, line_words};
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{progress::Bar, say_bytes, say_json, warn};
use quire_advise::{
    Grid, LINE_START, Number, Owner, PlannedLine, Request, check_request, open_regular, plan, run_line,
};
use quire_measure::Costs;
use quire_output::{Kind, Meanwhile, WholeFile};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A file with the result of a line.
const RESULT: Kind = Kind {
    name: "result of `quire sweep`",
    is_one: |start| start.starts_with(LINE_START.as_bytes()),
    hint: "remove it first, or name another file",
};

/// No result is longer, in bytes.
const LONGEST: u64 = 256 << 20;

pub(crate) fn run(arguments: &SweepArguments) -> Result<ExitCode, Failure> {
    if arguments.one { one(arguments) } else { lines(arguments) }
}

/// Makes the replay of one line, and writes its result.
fn one(arguments: &SweepArguments) -> Result<ExitCode, Failure> {
    let [file] = &arguments.files[..] else {
        return Err(Failure::input("--one takes one recording; `quire sweep --help` tells what there is"));
    };
    let request = arguments.line.request().ok_or_else(|| Failure::input("--one takes a --setting"))?;
    check_request(&request)?;
    let number = arguments.line.number();
    // The place is looked at before the replay. What comes there from now on stays.
    let output = arguments.output.as_deref();
    let place = output.map(place).transpose()?;
    output.map_or(Ok(()), |path| is_own(path, number.as_ref(), file, &request))?;
    let line = run_line(file, &request, number, arguments.line.contents())?;
    match place {
        // Another job may have had the same line.
        Some(place) => place.write_or_same(format!("{line}\n").as_bytes())?,
        None => say_json(line),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether what is at the place of a result is none, or that of the same line: no other one is replaced.
fn is_own(path: &Path, number: Option<&Number>, file: &Path, request: &Request) -> Result<(), Failure> {
    let Ok(mut found) = open_regular(path) else { return Ok(()) };
    let mut start = [0; LINE_START.len()];
    if found.read_exact(&mut start).is_err() || start != *LINE_START.as_bytes() {
        // It is empty.
        return Ok(());
    }
    let mut text = LINE_START.to_owned();
    let read = found.take(LONGEST).read_to_string(&mut text);
    let whose = match read.ok().and_then(|_| Owner::of(&text)) {
        Some(owner) if owner.is(number, file, request) => return Ok(()),
        Some(owner) => owner.to_string(),
        None => "no single result that can be read".to_owned(),
    };
    let path = path.display();
    Err(Failure::input(format!("{path}: {whose}, is there and stays; remove it, or name another place")))
}

/// A file for a result. Its folder is made if it is missing: on another machine it may be.
fn place(path: &Path) -> Result<WholeFile, Failure> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let failed = |error| Failure::input(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    Ok(WholeFile::open(path, &RESULT, false, Meanwhile::Unnamed)?)
}

/// Prints the command lines.
fn lines(arguments: &SweepArguments) -> Result<ExitCode, Failure> {
    let grid = arguments.grid.as_deref().map(grid::read).transpose()?.unwrap_or_else(Grid::default);
    let (files, odd): (Vec<PathBuf>, Vec<PathBuf>) =
        arguments.files.iter().cloned().partition(|file| is_plain(file.as_os_str()));
    if let Some(output) = arguments.output.as_deref().filter(|output| !is_plain(output.as_os_str())) {
        return Err(Failure::input(format!("{}: {ODD}", output.display())));
    }
    if let Some(output) = arguments.output.as_deref().filter(|output| output.exists() && !output.is_dir()) {
        return Err(Failure::input(format!("{}: no folder; name one for the results", output.display())));
    }
    let bar = Bar::new("sweep", "replays");
    let costs = Costs::kept();
    let plan = plan(&files, &grid, at_once(arguments.jobs), costs.as_ref(), &|done, total| {
        bar.set(done as u64, total as u64);
    });
    bar.finish();
    let plan = plan?;
    let digits = plan.lines.len().to_string().len();
    for line in &plan.lines {
        say_bytes(&command_line(line, arguments.output.as_deref(), digits));
    }
    odd.iter().for_each(|file| warn(format_args!("{}: {ODD}; left out", file.display())));
    plan.left_out.iter().for_each(|why| warn(format_args!("{why}; left out")));
    if plan.lines.is_empty() {
        return Err(Failure::input("no recording can be swept"));
    }
    let is_whole = odd.is_empty() && plan.left_out.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

const ODD: &str =
    "a name with a line end or another control character, which no line of a shell can have; rename it";

/// Whether a name can stand on a line of a shell.
fn is_plain(name: &OsStr) -> bool {
    !name.as_bytes().iter().any(u8::is_ascii_control)
}

/// A line for a shell, without its end.
fn command_line(line: &PlannedLine, output: Option<&Path>, digits: usize) -> Vec<u8> {
    let mut words = ["quire", "sweep", "--one"].map(OsString::from).to_vec();
    words.extend(line_words(line));
    if let Some(folder) = output {
        let name = format!("{:0digits$}.json", line.number.line);
        let is_option = folder.as_os_str().as_bytes().starts_with(b"-");
        let folder = if is_option { Path::new(".").join(folder) } else { folder.to_path_buf() };
        words.extend(["-o".into(), folder.join(name).into()]);
    }
    // An option is what begins with a dash.
    words.extend(["--".into(), line.file.clone().into()]);
    let words: Vec<Vec<u8>> = words.into_iter().map(|word| quoted(word.into_vec())).collect();
    words.join(&b' ')
}

/// A word as a shell takes it for itself.
fn quoted(word: Vec<u8>) -> Vec<u8> {
    let is_safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./=:,%+@".contains(byte);
    if !word.is_empty() && word.iter().all(is_safe) {
        return word;
    }
    let mut text = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            byte => text.push(byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_takes_each_name_as_it_is() {
        let names: [&[u8]; 9] =
            [b"", b"a b", b"it's", b"$(x)`y`", b"\"\\", b"-n", b"a&b;c|d>e", b"~*?[x]#", b"\xff\xfe"];
        let words: Vec<Vec<u8>> = names.iter().map(|name| quoted(name.to_vec())).collect();
        let script = [b"printf '%s\\0' ".to_vec(), words.join(&b' ')].concat();
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().expect("sh");
        let printed: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
        assert_eq!(printed[..names.len()], names);
    }
}
