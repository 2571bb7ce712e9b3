//! One file of the kernel's that gets another value for a while.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::error::MeasureError;

/// One file that gets another value for a while.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    pub(crate) old: String,
    pub(crate) new: String,
}

impl Change {
    pub(crate) fn make(&self) -> Result<(), MeasureError> {
        let refused = |text: String| {
            let choices =
                if text.contains('[') { text.trim().replace(['[', ']'], "") } else { String::new() };
            MeasureError::Refused { file: self.path.clone(), word: self.new.clone(), choices }
        };
        let read = || fs::read_to_string(&self.path).unwrap_or_default();
        match fs::write(&self.path, &self.new) {
            Err(why) if why.kind() == io::ErrorKind::InvalidInput => Err(refused(read())),
            Err(why) => Err(MeasureError::file(&self.path, why)),
            Ok(()) if chosen(&read()) == self.new => Ok(()),
            Ok(()) => Err(refused(read())),
        }
    }

    pub(crate) fn is_undone(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| chosen(&text) == self.old)
    }
}

/// The word in brackets, of a file that lists its values; else the whole text.
pub(crate) fn chosen(text: &str) -> String {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("511\n"), "511");
    }
}
