//! The lines of the files with results.

use super::line::{LINE_START, Line, LineError};
use super::request::{Number, Request};
use crate::identity::{Identity, open_regular};
use quire_trace::format::TraceHeader;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Of a file so many lines are told that are no results, and then how many more.
const MOST_TOLD: usize = 10;
/// No line is longer, in bytes.
const LONGEST: u64 = 256 << 20;

/// Where a line is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct At {
    file: PathBuf,
    line: u64,
    offset: u64,
    len: usize,
}

impl At {
    pub(super) fn told(&self) -> String {
        format!("{}:{}", self.file.display(), self.line)
    }

    /// The line again: what replays found is kept for one program at a time.
    pub(super) fn read(&self) -> Result<Line, String> {
        let mut bytes = vec![0; self.len];
        let file = open_regular(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        file.read_exact_at(&mut bytes, self.offset).map_err(|error| format!("{}: {error}", self.told()))?;
        let text =
            std::str::from_utf8(&bytes).map_err(|_| format!("{}: {}", self.told(), LineError::Foreign))?;
        Line::read(text).map_err(|error| format!("{}: {error}", self.told()))
    }
}

/// A line that was read, without what replays found.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: At,
    pub(super) quire: String,
    pub(super) number: Option<Number>,
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) header: TraceHeader,
    pub(super) request: Request,
    pub(super) digest: String,
    pub(super) is_misfit: bool,
}

/// The lines that were read.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) entries: Vec<Entry>,
    /// What is wrong with them, each in one line.
    pub(super) remarks: Vec<String>,
    /// Something is missing or damaged.
    pub(super) is_lacking: bool,
}

impl Lines {
    /// Reads the lines of a file. One that cannot be read is told and passed over.
    pub(super) fn read(&mut self, path: &Path) {
        if let Err(error) = self.read_lines(path) {
            self.remark(true, format!("{}: {error}; passed over", path.display()));
        }
    }

    pub(super) fn remark(&mut self, lacking: bool, line: String) {
        self.is_lacking |= lacking;
        self.remarks.push(line);
    }

    fn read_lines(&mut self, path: &Path) -> io::Result<()> {
        let mut file = BufReader::new(open_regular(path)?);
        let (mut line, mut start, mut wrong) = (0, 0, 0);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let count = io::Read::take(&mut file, LONGEST).read_until(b'\n', &mut bytes)?;
            if count == 0 {
                break;
            }
            line += 1;
            let mut offset = start;
            start += count as u64;
            for text in results(&bytes) {
                let at = At { file: path.to_path_buf(), line, offset, len: text.len() };
                offset += text.len() as u64;
                if !text.is_empty() {
                    self.add(at, text, &mut wrong);
                }
            }
        }
        if start == 0 {
            self.remark(true, format!("{}: empty: no result", path.display()));
        }
        if wrong > MOST_TOLD {
            let more = wrong - MOST_TOLD;
            self.remarks.push(format!("{}: {more} more that are no results; passed over", path.display()));
        }
        Ok(())
    }

    /// Adds a line. Those that are no results are counted.
    fn add(&mut self, at: At, bytes: &[u8], wrong: &mut usize) {
        let read = std::str::from_utf8(bytes).map_err(|_| LineError::Foreign).and_then(Line::read);
        match read {
            Ok(line) => {
                let is_misfit = line.is_misfit();
                let Line { number, quire, path, identity, header, request, digest, .. } = line;
                let entry = Entry { at, quire, number, path, identity, header, request, digest, is_misfit };
                self.entries.push(entry);
            }
            Err(error) => {
                self.is_lacking |= error != LineError::Foreign;
                *wrong += 1;
                if *wrong <= MOST_TOLD {
                    self.remarks.push(format!("{}: {error}; passed over", at.told()));
                }
            }
        }
    }
}

/// The results on a line, with its end or without: one, or several that were joined without line ends. One
/// that was torn ends where the next begins.
fn results(line: &[u8]) -> Vec<&[u8]> {
    let mut rest = line.strip_suffix(b"\n").unwrap_or(line);
    rest = rest.strip_suffix(b"\r").unwrap_or(rest);
    let mut results = Vec::new();
    // In a string there is a backslash before each quotation mark.
    let next = |rest: &[u8]| {
        rest.windows(LINE_START.len()).skip(1).position(|window| window == LINE_START.as_bytes())
    };
    while let Some(place) = next(rest) {
        let (result, others) = rest.split_at(place + 1);
        results.push(result);
        rest = others;
    }
    results.push(rest);
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_may_be_joined_or_have_other_line_ends() {
        let one: &[u8] = b"{\"sweep\":2,\"file\":\"\\\"}{\\\"sweep\\\":\",\"sum\":\"0\"}";
        for end in [&b""[..], b"\n", b"\r\n"] {
            assert_eq!(results(&[one, end].concat()), [one], "{end:?}");
            assert_eq!(results(&[one, one, one, end].concat()), [one; 3], "{end:?}");
        }
        assert_eq!(results(&[&one[..20], one].concat()), [&one[..20], one], "one is torn");
        assert_eq!(results(b"\r\n"), [b""]);
        assert_eq!(results(b"{}{}"), [b"{}{}"]);
    }
}
