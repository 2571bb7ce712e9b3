//! Recordings without what a replay does not need.
//!
//! Names of files, programs and mappings, the command with its arguments, the time, and the numbers of
//! devices and inodes say whose program it was and where it ran. A replay needs of them only which are the
//! same. All else stays: addresses, sizes, times since the beginning, process ids, and what the host was.

mod names;

use crate::event::{CallDetail, Event, EventKind, FileEvent, FileFacts, Mapping};
use crate::format::{TraceError, TraceHeader, TraceReader, TraceWriter, recording_file};
use names::Names;
pub use names::is_stripped;
use quire_output::{FileError, Meanwhile};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// How a recording is stripped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StripOptions {
    /// Keep the last parts of paths and the names of mappings, the words of the command without folders, and
    /// the time.
    pub keep_names: bool,
    /// Replace a file that is no recording, too.
    pub force: bool,
}

/// Why a recording could not be stripped. Displays as one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StripError {
    /// It could not be read.
    #[error(transparent)]
    Input(TraceError),
    /// The other could not be made.
    #[error(transparent)]
    Output(#[from] FileError),
    /// The other could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: TraceError,
    },
}

/// What was done. Displays as a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StripSummary {
    /// Different names that were replaced, or cut to their last parts.
    pub names: usize,
    /// Events, all of which are kept.
    pub events: u64,
    /// Bytes of the new recording.
    pub bytes: u64,
}

impl fmt::Display for StripSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, events, bytes } = self;
        writeln!(
            f,
            "stripped  {names} names of files, programs and mappings; {events} events in {bytes} bytes"
        )
    }
}

/// Writes the recording at `input` to `output` without what a replay does not need. Both may be the same.
///
/// # Errors
///
/// [`StripError`]: nothing is written, and what was at `output` is still there.
pub fn strip(input: &Path, output: &Path, options: StripOptions) -> Result<StripSummary, StripError> {
    let mut reader = TraceReader::open(input).map_err(StripError::Input)?;
    let whole = recording_file(output, options.force, Meanwhile::Unnamed)?;
    let wrong = |source| StripError::Write { path: output.to_path_buf(), source };
    let mut stripper = Stripper { names: Names::new(options.keep_names), inodes: HashMap::new() };
    let header = stripper.header(reader.header(), options.keep_names);
    let level = TraceWriter::<File>::DEFAULT_LEVEL;
    let mut writer = TraceWriter::new(BufWriter::new(whole.file()), &header, level).map_err(wrong)?;
    for event in &mut reader {
        let mut event = event.map_err(StripError::Input)?;
        stripper.event(&mut event);
        writer.push(&event).map_err(wrong)?;
    }
    let trailer = reader.trailer().copied().unwrap_or_default();
    if trailer.ended_early {
        writer.end_early();
    }
    let (_, totals) = writer.finish(trailer.wall_ns, trailer.stopped_ns).map_err(wrong)?;
    let bytes = whole.file().metadata().map_or(0, |facts| facts.len());
    whole.finish()?;
    Ok(StripSummary { names: stripper.names.count(), events: totals.events, bytes })
}

struct Stripper {
    names: Names,
    /// Numbers of files, by device and inode.
    inodes: HashMap<(u64, u64), u64>,
}

impl Stripper {
    fn header(&self, header: &TraceHeader, keep_names: bool) -> TraceHeader {
        let mut header = header.clone();
        header.command = self.names.command(&header.command);
        // The version of 6.1.0-example, without what a builder added.
        let is_version = |letter: &char| letter.is_ascii_digit() || *letter == '.';
        header.kernel = header.kernel.chars().take_while(is_version).collect();
        if !keep_names {
            header.started = 0;
        }
        header
    }

    fn event(&mut self, event: &mut Event) {
        match &mut event.kind {
            EventKind::Exec(image) => {
                image.program = self.names.program(&image.program);
                image.args = Vec::new();
                image.mappings.iter_mut().for_each(|mapping| self.mapping(mapping));
            }
            EventKind::Call(call) => match &mut call.detail {
                CallDetail::File(file) => self.file(Arc::make_mut(file)),
                CallDetail::Name(Some(name)) => *name = self.names.given(name),
                _ => {}
            },
            EventKind::File(file) => (file.device, file.inode) = self.inode(file.device, file.inode),
            _ => {}
        }
    }

    fn mapping(&mut self, mapping: &mut Mapping) {
        mapping.name = self.names.file(&mapping.name);
        (mapping.device, mapping.inode) = self.inode(mapping.device, mapping.inode);
    }

    fn file(&mut self, file: &mut FileFacts) {
        file.name = self.names.file(&file.name);
        (file.device, file.inode) = self.inode(file.device, file.inode);
    }

    /// Numbers in place of a device and an inode: those of no other file. Memory without an inode has none
    /// afterwards.
    fn inode(&mut self, device: u64, inode: u64) -> (u64, u64) {
        let next = self.inodes.len() as u64 + 1;
        match (device, inode) {
            (FileEvent::SEGMENTS, _) => (device, inode),
            (0, 0) => (0, 0),
            (_, 0) => (*self.inodes.entry((device, 0)).or_insert(next), 0),
            _ => (0, *self.inodes.entry((device, inode)).or_insert(next)),
        }
    }
}
