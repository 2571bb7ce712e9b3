//! Which recording results are of: a digest of its contents, whatever it is called.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The SHA-256 of a file's contents, in hexadecimal digits: what `sha256sum` prints.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Identity(String);

/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// Bytes in hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // To a String nothing fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// What [`hexadecimal`] wrote; none if it is something else.
pub(crate) fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8)).collect()
}

/// The SHA-256 of `bytes`, in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Opens a file to read it. What is none, such as a pipe or a device, has no end that one can wait for: it is
/// refused.
///
/// # Errors
///
/// It cannot be opened, or is no file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // To open a pipe would wait for one that writes.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no regular file"));
    }
    Ok(file)
}

impl Identity {
    /// Of what is in this file.
    pub(crate) fn of_file(path: &Path) -> io::Result<Self> {
        let mut file = open_regular(path)?;
        let (mut sum, mut bytes) = (Sha256::new(), vec![0; READ]);
        loop {
            match file.read(&mut bytes) {
                Ok(0) => return Ok(Self(hexadecimal(&sum.finalize()))),
                Ok(count) => sum.update(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Of these digits; none if they are no digest.
    pub(crate) fn of_digits(digits: &str) -> Option<Self> {
        let is_one = digits.len() == 64 && from_hexadecimal(digits).is_some();
        is_one.then(|| Self(digits.to_owned()))
    }

    /// The digits.
    pub(crate) fn digits(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_what_sha256sum_prints() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        let identity = Identity::of_file(file.path()).unwrap();
        assert_eq!(identity.digits(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Identity::of_digits(identity.digits()), Some(identity));
        for wrong in ["", "abc", &"g".repeat(64), &"A".repeat(64), &"a".repeat(63)] {
            assert_eq!(Identity::of_digits(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for path in ["/dev/zero", "/dev/null", "/"] {
            let error = Identity::of_file(Path::new(path)).unwrap_err();
            assert_eq!(error.to_string(), "no regular file", "{path}");
        }
    }

    #[test]
    fn digits_are_bytes_again() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hexadecimal(&hexadecimal(&all)), Some(all));
        assert_eq!((from_hexadecimal("a"), from_hexadecimal("0x")), (None, None));
    }
}
