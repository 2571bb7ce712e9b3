//! The file that a recording is written to.

use super::MAGIC;
use quire_output::{FileError, Kind, Meanwhile, WholeFile};
use std::path::Path;

const RECORDING: Kind =
    Kind { name: "recording", is_one: |start| start.starts_with(&MAGIC), hint: "--force replaces it" };

/// A file for a recording, which is there when it is complete. What is at `path` is not changed yet; if it is
/// no recording, it is replaced only with `force`.
///
/// # Errors
///
/// As [`WholeFile::open`].
pub fn recording_file(path: &Path, force: bool, meanwhile: Meanwhile) -> Result<WholeFile, FileError> {
    WholeFile::open(path, &RECORDING, force, meanwhile)
}
