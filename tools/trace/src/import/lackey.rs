//! The output of valgrind's tool lackey: every access of a program.
//!
//! The file is read twice: to find the pages, since a trace begins with the layout, and to write their uses.
//! What comes through a pipe is kept in a temporary file when it is read first.

use super::recent::Recent;
use super::{ImportError, ImportSummary};
use crate::event::{
    Event, EventKind, ExecImage, ExitStatus, Mapping, Privileges, Reuse, ReuseSource, TaskId, ThpMode,
};
use crate::format::{CallSource, FaultSource, TraceHeader, TraceWriter, UseSource, recording_file};
use quire_output::Meanwhile;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const PAGE_SHIFT: u32 = 12;
/// Pages that lie no further apart than this are one mapping: 64 KiB.
const NEAR: u64 = 16;
/// The end of what a program can map.
const USER_END: u64 = (1 << 47) - 4096;
/// The largest access; the largest that a processor makes at once is its whole state, some 11 KiB.
const MOST_BYTES: u64 = 64 << 10;
/// Runs of one event.
const EVENT_RUNS: usize = 4096;

/// One line with an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AccessLine {
    first: u64,
    last: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fetch,
    Load,
    Store,
}

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
enum Line<'l> {
    Access(AccessLine),
    /// Valgrind says which program it runs, under which process id.
    Command(u32, &'l [u8]),
    /// Something else that valgrind says.
    Remark,
}

fn parse(line: &[u8]) -> Result<Line<'_>, &'static str> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") {
        return Ok(remark(line));
    }
    let (kind, rest) = match line {
        [b'I', b' ', b' ', rest @ ..] => (Kind::Fetch, rest),
        [b' ', b'L', b' ', rest @ ..] => (Kind::Load, rest),
        // M: read, then written.
        [b' ', b'S' | b'M', b' ', rest @ ..] => (Kind::Store, rest),
        _ => return Err("expected an access such as ` L 1fff000768,8`"),
    };
    let text = str::from_utf8(rest).map_err(|_| "expected ADDRESS,SIZE")?;
    let (addr, size) = text.split_once(',').ok_or("expected ADDRESS,SIZE")?;
    let addr =
        u64::from_str_radix(addr, 16).map_err(|_| "the address is no hexadecimal number of 64 bits")?;
    let size: u64 = size.parse().map_err(|_| "the size is no number")?;
    if !(1..=MOST_BYTES).contains(&size) {
        return Err("no access has this size");
    }
    let end = addr.checked_add(size).filter(|end| *end <= USER_END);
    let end = end.ok_or("the address is outside of what a program can use")?;
    Ok(Line::Access(AccessLine { first: addr >> PAGE_SHIFT, last: (end - 1) >> PAGE_SHIFT, kind }))
}

/// `==PID== Command: ...`, or anything else.
fn remark(line: &[u8]) -> Line<'_> {
    let found = str::from_utf8(line).ok().and_then(|text| {
        let (pid, text) = text.strip_prefix("==")?.split_once("== ")?;
        Some((pid.parse().ok()?, text.strip_prefix("Command: ")?))
    });
    found.map_or(Line::Remark, |(pid, command)| Line::Command(pid, command.as_bytes()))
}

/// The file, which is read twice.
struct LackeyFile<'p> {
    path: &'p Path,
    file: File,
    /// What was read of a pipe.
    kept: Option<File>,
}

impl<'p> LackeyFile<'p> {
    fn open(path: &'p Path) -> Result<Self, ImportError> {
        let input = |source| ImportError::Input { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(input)?;
        let is_file = file.metadata().map_err(input)?.is_file();
        let kept = if is_file { None } else { Some(quire_output::temporary_file()?) };
        Ok(Self { path, file, kept })
    }

    fn is(&self, other: &Path) -> bool {
        let facts = self.file.metadata().and_then(|own| Ok((own, fs::metadata(other)?)));
        facts.is_ok_and(|(own, other)| (own.dev(), own.ino()) == (other.dev(), other.ino()))
    }

    /// Calls `each` with every line, from the beginning.
    fn first(&self, each: impl FnMut(Line<'_>) -> Result<(), ImportError>) -> Result<(), ImportError> {
        let Some(kept) = &self.kept else { return read(self.path, &self.file, each) };
        let mut copy = BufWriter::with_capacity(1 << 20, kept);
        read(self.path, Copied { file: &self.file, copy: &mut copy }, each)?;
        copy.flush()
            .map_err(|error| ImportError::Input { path: self.path.to_path_buf(), source: not_kept(&error) })
    }

    /// Reads the file, or what was kept of it, from its beginning again.
    fn again(&self, each: impl FnMut(Line<'_>) -> Result<(), ImportError>) -> Result<(), ImportError> {
        let mut file = self.kept.as_ref().unwrap_or(&self.file);
        file.rewind().map_err(|source| ImportError::Input { path: self.path.to_path_buf(), source })?;
        read(self.path, file, each)
    }
}

/// A file whose bytes are written to another one as they are read.
struct Copied<'f, W> {
    file: &'f File,
    copy: W,
}

impl<W: Write> Read for Copied<'_, W> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.copy.write_all(&bytes[..read]).map_err(|error| not_kept(&error))?;
        Ok(read)
    }
}

fn not_kept(error: &io::Error) -> io::Error {
    io::Error::other(format!(
        "what came through this pipe cannot be kept in {}: {error}; TMPDIR names another folder",
        tempfile::env::temp_dir().display()
    ))
}

/// Calls `each` with every line of what is in the file at `path`.
fn read(
    path: &Path,
    file: impl Read,
    mut each: impl FnMut(Line<'_>) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let input = |source| ImportError::Input { path: path.to_path_buf(), source };
    let mut file = BufReader::with_capacity(1 << 20, file);
    let (mut number, mut offset) = (0, 0);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        // No line of lackey's is long; valgrind's first ones hold the command.
        let read = (&mut file).take(1 << 20).read_until(b'\n', &mut bytes).map_err(input)?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        match parse(line) {
            Ok(line) => each(line)?,
            Err(reason) => {
                return Err(ImportError::Line { path: path.to_path_buf(), line: number, offset, reason });
            }
        }
        offset += read as u64;
    }
}

/// The result of the first pass.
#[derive(Debug, Default)]
struct Layout {
    /// Pages, and whether instructions were fetched from them.
    pages: BTreeMap<u64, bool>,
    accesses: u64,
    pid: u32,
    command: Vec<u8>,
}

impl Layout {
    fn of(input: &LackeyFile<'_>) -> Result<Self, ImportError> {
        let mut layout = Self::default();
        // Most accesses are to the page of the one before.
        let mut last = None;
        input.first(|line| {
            match line {
                Line::Access(access) => {
                    layout.accesses += 1;
                    if last != Some(access) {
                        for page in access.first..=access.last {
                            *layout.pages.entry(page).or_default() |= access.kind == Kind::Fetch;
                        }
                        last = Some(access);
                    }
                }
                Line::Command(pid, command) if layout.command.is_empty() => {
                    (layout.pid, layout.command) = (pid, command.to_vec());
                }
                Line::Command(..) | Line::Remark => {}
            }
            Ok(())
        })?;
        Ok(layout)
    }

    /// Private mappings for all pages: near ones in one.
    fn mappings(&self) -> Vec<Mapping> {
        let mut mappings: Vec<Mapping> = Vec::new();
        for (page, execute) in &self.pages {
            let (start, end) = (page << PAGE_SHIFT, (page + 1) << PAGE_SHIFT);
            match mappings.last_mut() {
                Some(last) if start - last.end <= NEAR << PAGE_SHIFT => {
                    last.end = end;
                    last.execute |= execute;
                }
                _ => mappings.push(Mapping {
                    start,
                    end,
                    read: true,
                    write: true,
                    execute: *execute,
                    ..Mapping::default()
                }),
            }
        }
        mappings
    }

    fn image(&self) -> ExecImage {
        let program = self.command.split(|byte| *byte == b' ').next().unwrap_or_default();
        ExecImage {
            pid: self.pid,
            program: program.into(),
            mappings: self.mappings(),
            // The accesses succeeded, so their memory was mapped.
            max_map_count: u64::MAX,
            overcommit_memory: 1,
            privileges: Privileges::ALL,
            thp: ThpMode::Never,
            ..ExecImage::default()
        }
    }

    fn header(&self) -> TraceHeader {
        TraceHeader {
            recorder: format!("{} (lackey)", env!("CARGO_PKG_VERSION")),
            kernel: "unknown".to_owned(),
            machine: "x86_64".to_owned(),
            faults: FaultSource::None,
            calls: CallSource::EveryCall,
            uses: UseSource::Exact,
            command: vec![self.command.clone().into()],
            ..TraceHeader::default()
        }
    }
}

/// Writes a trace of the accesses that `input` holds, which `valgrind --tool=lackey --trace-mem=yes` wrote.
///
/// # Errors
///
/// [`ImportError`]. Nothing is written then, and what was at `output` is still there. A file that is no
/// recording is replaced only with `force`.
pub fn lackey(input: &Path, output: &Path, force: bool) -> Result<ImportSummary, ImportError> {
    let input = LackeyFile::open(input)?;
    if input.is(output) {
        return Err(ImportError::Same { path: output.to_path_buf() });
    }
    let whole = recording_file(output, force, Meanwhile::Unnamed)?;
    let layout = Layout::of(&input)?;
    if layout.pages.is_empty() {
        return Err(ImportError::Empty { path: input.path.to_path_buf() });
    }
    let wrong = |source| ImportError::Trace { path: output.to_path_buf(), source };
    let level = TraceWriter::<File>::DEFAULT_LEVEL;
    let mut writer =
        TraceWriter::new(BufWriter::new(whole.file()), &layout.header(), level).map_err(wrong)?;
    let image = layout.image();
    let mappings = image.mappings.len() as u64;
    let event = |time_ns, kind| Event { time_ns, task: TaskId(0), cpu: 0, kind };
    writer.push(&event(0, EventKind::Exec(Box::new(image)))).map_err(wrong)?;

    let mut push = |recent: &mut Recent, time| {
        for reuse in Reuse::split(ReuseSource::Exact, recent.take()) {
            writer.push(&event(time, EventKind::Reuse(reuse))).map_err(wrong)?;
        }
        Ok(())
    };
    let mut recent = Recent::default();
    let mut seen: HashSet<u64> = HashSet::with_capacity(layout.pages.len());
    let mut instructions = 0;
    let mut last = None;
    input.again(|line| {
        let Line::Access(access) = line else { return Ok(()) };
        instructions += u64::from(access.kind == Kind::Fetch);
        if last != Some(access) {
            for page in access.first..=access.last {
                // Memory that is only read would take no frame: a page's first use is a write.
                let write = access.kind == Kind::Store || seen.insert(page);
                recent.add(page, write);
            }
            last = Some(access);
        }
        if recent.len() >= EVENT_RUNS { push(&mut recent, instructions) } else { Ok(()) }
    })?;
    push(&mut recent, instructions)?;
    writer.push(&event(instructions, EventKind::Exit(ExitStatus::Code(0)))).map_err(wrong)?;
    writer.flush().map_err(wrong)?;
    let (_, totals) = writer.finish(instructions, 0).map_err(wrong)?;
    debug_assert_eq!(totals.lost_samples, 0);
    let bytes = whole.file().metadata().map_or(0, |facts| facts.len());
    whole.finish()?;
    Ok(ImportSummary {
        accesses: layout.accesses,
        uses: recent.kept(),
        pages: layout.pages.len() as u64,
        mappings,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(first: u64, last: u64, kind: Kind) -> Result<Line<'static>, &'static str> {
        Ok(Line::Access(AccessLine { first, last, kind }))
    }

    #[test]
    fn lines_are_understood() {
        assert_eq!(parse(b"I  0401ab70,3"), access(0x401a, 0x401a, Kind::Fetch));
        assert_eq!(parse(b" S 1fff000768,8"), access(0x1ff_f000, 0x1ff_f000, Kind::Store));
        assert_eq!(parse(b" L 00001ffc,8\r"), access(1, 2, Kind::Load));
        assert_eq!(parse(b" M 00001ff8,8"), access(1, 1, Kind::Store));
        assert_eq!(parse(b""), Ok(Line::Remark));
        assert_eq!(parse(b"==12== Command: ls -l"), Ok(Line::Command(12, b"ls -l")));
        for wrong in [
            &b"hello"[..],
            b" X 1000,4",
            b" L 1000",
            b" L xyz,4",
            b" L 1000,0",
            b" L 1000,-4",
            b" L 1000,99999999",
            b" L ffffffffffffffff,8",
            b" L 7ffffffff000,1",
            b"L 1000,4",
        ] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
