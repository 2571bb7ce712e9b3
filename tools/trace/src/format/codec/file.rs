//! What happens to a mapped file.

use crate::event::{FileChange, FileEvent, IndexRun, SizeCause};
use crate::format::Version;
use crate::format::varint::{Cursor, Malformed, put_u64};
use crate::format::wire::{Wire, get_list, put_list, wire};

wire!(FileEvent { device, inode, change });

const SIZE_BY_CALL: u8 = 0;
const SIZE_SEEN: u8 = 1;
const PUNCHED: u8 = 2;
const CACHED: u8 = 3;
const EVICTED: u8 = 4;
const GONE: u8 = 5;

impl Wire for FileChange {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Size { bytes, cause } => {
                out.push(match cause {
                    SizeCause::Call => SIZE_BY_CALL,
                    SizeCause::Seen => SIZE_SEEN,
                });
                bytes.put(out);
            }
            Self::Punched(bytes) => {
                out.push(PUNCHED);
                bytes.start.put(out);
                put_u64(out, bytes.end.saturating_sub(bytes.start));
            }
            Self::Cached(runs) => {
                out.push(CACHED);
                put_runs(out, runs);
            }
            Self::Evicted(runs) => {
                out.push(EVICTED);
                put_runs(out, runs);
            }
            Self::Gone => out.push(GONE),
        }
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let change = match cursor.u8()? {
            SIZE_BY_CALL => Self::Size { bytes: cursor.u64()?, cause: SizeCause::Call },
            SIZE_SEEN => Self::Size { bytes: cursor.u64()?, cause: SizeCause::Seen },
            PUNCHED => {
                let start = cursor.u64()?;
                Self::Punched(start..start.saturating_add(cursor.u64()?))
            }
            CACHED => Self::Cached(get_runs(cursor)?),
            EVICTED => Self::Evicted(get_runs(cursor)?),
            GONE if cursor.version() >= Version::THIRTEEN => Self::Gone,
            _ => return Err(Malformed("unknown change of a file")),
        };
        change.check().map_err(|wrong| Malformed(wrong.reason()))?;
        Ok(change)
    }
}

/// Each run as the pages between it and the one before, and its own.
fn put_runs(out: &mut Vec<u8>, runs: &[IndexRun]) {
    let mut end = 0;
    put_list(out, runs, |run, out| {
        put_u64(out, run.first.wrapping_sub(end));
        run.pages.put(out);
        end = run.end();
    });
}

fn get_runs(cursor: &mut Cursor<'_>) -> Result<Vec<IndexRun>, Malformed> {
    let mut end: u64 = 0;
    get_list(cursor, 2, |cursor| {
        // What wraps around is not in order, which is checked afterwards.
        let run = IndexRun { first: end.wrapping_add(cursor.u64()?), pages: cursor.u64()? };
        end = run.end();
        Ok(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::FileChangeError;

    fn read(bytes: &[u8]) -> Result<FileChange, &'static str> {
        read_as(13, bytes)
    }

    fn read_as(version: u16, bytes: &[u8]) -> Result<FileChange, &'static str> {
        let version = Version::new(version).expect("a version that is known");
        FileChange::get(&mut Cursor::new(bytes, 0, version)).map_err(|Malformed(reason)| reason)
    }

    fn written(change: &FileChange) -> Vec<u8> {
        let mut bytes = Vec::new();
        change.put(&mut bytes);
        bytes
    }

    fn runs(runs: &[(u64, u64)]) -> Vec<IndexRun> {
        runs.iter().map(|&(first, pages)| IndexRun { first, pages }).collect()
    }

    #[test]
    fn runs_take_few_bytes() {
        let change = FileChange::Cached(runs(&[(0, 3), (5, 1), (130, 100)]));
        assert_eq!(written(&change), [CACHED, 3, 0, 3, 2, 1, 124, 100]);
        assert_eq!(read(&written(&change)), Ok(change));
        let none = FileChange::Evicted(Vec::new());
        assert_eq!(read(&written(&none)), Ok(none));
        assert_eq!((written(&FileChange::Gone), read(&[GONE])), (vec![GONE], Ok(FileChange::Gone)));
        assert_eq!(read_as(12, &[GONE]), Err("unknown change of a file"), "it is of a later version");
    }

    #[test]
    fn what_makes_no_sense_is_refused_for_what_it_is() {
        let most = FileChange::MOST_BYTES;
        let last = most >> 12;
        let size = |bytes| FileChange::Size { bytes, cause: SizeCause::Seen };
        for right in
            [size(0), size(most), FileChange::Punched(0..most), FileChange::Cached(runs(&[(0, last)]))]
        {
            assert_eq!(read(&written(&right)), Ok(right));
        }
        let many = (0..=FileChange::MOST_RUNS as u64).map(|number| (number * 2, 1)).collect::<Vec<_>>();
        for (wrong, error) in [
            (size(most + 1), FileChangeError::TooLong),
            (FileChange::Punched(5..most + 1), FileChangeError::TooLong),
            (FileChange::Punched(u64::MAX..u64::MAX), FileChangeError::TooLong),
            (FileChange::Punched(5..5), FileChangeError::Empty),
            (FileChange::Cached(runs(&[(5, 0)])), FileChangeError::Empty),
            (FileChange::Cached(runs(&[(5, 2), (7, 1)])), FileChangeError::Unordered),
            (FileChange::Evicted(runs(&[(5, 2), (1, 1)])), FileChangeError::Unordered),
            (FileChange::Evicted(runs(&[(1, last)])), FileChangeError::PastEnd),
            (FileChange::Cached(runs(&[(0, 1), (u64::MAX, 1)])), FileChangeError::PastEnd),
            (FileChange::Cached(runs(&[(u64::MAX, u64::MAX)])), FileChangeError::PastEnd),
            (FileChange::Cached(runs(&many)), FileChangeError::TooManyRuns),
        ] {
            assert_eq!(wrong.check(), Err(error));
            assert_eq!(read(&written(&wrong)), Err(error.reason()));
        }
        assert_eq!(read(&[GONE + 1]), Err("unknown change of a file"));
        assert_eq!(read(&[CACHED, 100, 0]), Err("a count is larger than its block"));
    }
}
