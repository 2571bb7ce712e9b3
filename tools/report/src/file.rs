//! The files that a page or a trace is written to: completely, or not at all.

use quire_output::{FileError, Kind, Meanwhile, WholeFile};
use std::path::Path;

const HINT: &str = "remove it first, or name another file";
const PAGE: Kind = Kind {
    name: "page",
    is_one: |start| start.to_ascii_lowercase().starts_with(b"<!doctype html"),
    hint: HINT,
};
const TRACE: Kind = Kind {
    name: "trace for Perfetto",
    is_one: |start| start.first() == Some(&crate::perfetto::FIRST_BYTE),
    hint: HINT,
};

/// A file for a page. What is at `path` is not changed yet.
///
/// # Errors
///
/// As [`WholeFile::open`].
pub fn page_file(path: &Path) -> Result<WholeFile, FileError> {
    WholeFile::open(path, &PAGE, false, Meanwhile::Unnamed)
}

/// A file for a trace of Perfetto's. What is at `path` is not changed yet.
///
/// # Errors
///
/// As [`WholeFile::open`].
pub fn trace_file(path: &Path) -> Result<WholeFile, FileError> {
    WholeFile::open(path, &TRACE, false, Meanwhile::Unnamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("page.html");
        for text in ["<!doctype html>1", "<!doctype html>2"] {
            page_file(&path).expect("a place").write(text.as_bytes()).expect("it is written");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), text);
        }
        assert!(matches!(trace_file(&path), Err(FileError::OtherFile { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left over");
    }
}
