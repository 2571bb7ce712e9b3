//! Other names for those in a recording.

use crate::event::C_LIBRARIES;
use std::collections::HashMap;

/// What a kept part of a path is.
const PATH: &[u8] = b"-_.+@%~:,#";

/// What a recording has in place of a command that was stripped.
const STRIPPED: &[u8] = b"stripped";

/// Whether this command of a recording was stripped.
#[must_use]
pub fn is_stripped(command: &[Box<[u8]>]) -> bool {
    matches!(command, [word] if **word == *STRIPPED)
}

/// Names that stand for others: the same for the same one.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The last parts of paths are kept, and other names as they are.
    keep: bool,
    numbers: HashMap<(&'static str, Box<[u8]>), usize>,
    counts: HashMap<&'static str, usize>,
}

impl Names {
    pub(super) fn new(keep: bool) -> Self {
        Self { keep, ..Self::default() }
    }

    /// How many were replaced or cut.
    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// `KIND-N`, where N is the same for what a replay takes for the same name.
    fn numbered(&mut self, kind: &'static str, name: &[u8]) -> Box<[u8]> {
        let count = self.counts.entry(kind).or_default();
        let number = *self.numbers.entry((kind, name.into())).or_insert_with(|| {
            *count += 1;
            *count
        });
        if self.keep { name.into() } else { format!("{kind}-{number}").into_bytes().into() }
    }

    /// Of a mapped file. The kernel's own names, in brackets, stay: a replay looks at them. A replay names
    /// places by the last part of a path, and looks through calls of a C library.
    pub(super) fn file(&mut self, name: &[u8]) -> Box<[u8]> {
        if let Some(given) = name.strip_prefix(b"[anon:").and_then(|rest| rest.strip_suffix(b"]")) {
            return [b"[anon:", &*self.given(given), b"]"].concat().into();
        }
        if let Some(given) = name.strip_prefix(b"[anon_shmem:").and_then(|rest| rest.strip_suffix(b"]")) {
            return [b"[anon_shmem:", &*self.given(given), b"]"].concat().into();
        }
        if name.is_empty() || name.starts_with(b"[") || name.starts_with(b"anon_inode:") {
            return name.into();
        }
        let last = last_part(name);
        let library = C_LIBRARIES.iter().find(|start| last.starts_with(start.as_bytes()));
        self.numbered(library.copied().unwrap_or("file"), last)
    }

    /// Of a program.
    pub(super) fn program(&mut self, name: &[u8]) -> Box<[u8]> {
        self.numbered("program", last_part(name))
    }

    /// Of a mapping, given by the program.
    pub(super) fn given(&mut self, name: &[u8]) -> Box<[u8]> {
        self.numbered("name", name)
    }

    /// The command: without folders, or without anything.
    pub(super) fn command(&self, words: &[Box<[u8]>]) -> Vec<Box<[u8]>> {
        if self.keep {
            words.iter().map(|word| without_folders(word)).collect()
        } else {
            vec![STRIPPED.into()]
        }
    }
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// A word, or a script, whose paths have their last parts only.
fn without_folders(word: &[u8]) -> Box<[u8]> {
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || !byte.is_ascii() || PATH.contains(&byte);
    let mut out: Vec<u8> = Vec::new();
    let mut part = 0;
    for &byte in word {
        if byte == b'/' {
            // What was before it is a folder.
            out.truncate(part);
            continue;
        }
        out.push(byte);
        if !is_path(byte) {
            part = out.len();
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_a_command_are_left_out() {
        for (word, left) in [
            ("plain", "plain"),
            ("/usr/bin/gcc", "gcc"),
            ("--file=/home/me/x.c", "--file=x.c"),
            ("exec sqlite3 :memory: <'/home/me/q.sql'", "exec sqlite3 :memory: <'q.sql'"),
            ("cat /a/b /c/d/ e", "cat b  e"),
            ("-I/home/me/include", "include"),
            ("größe/名前", "名前"),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_folders(word.as_bytes())), left);
        }
    }

    #[test]
    fn the_same_name_has_the_same_number() {
        let mut names = Names::default();
        let mut told = |name: &str| String::from_utf8_lossy(&names.file(name.as_bytes())).into_owned();
        assert_eq!(told("/home/me/secret.so"), "file-1");
        assert_eq!(told("/home/me/other.so"), "file-2");
        assert_eq!(told("/srv/secret.so"), "file-1", "a replay sees the last part only");
        assert_eq!(told("/lib/libc.so.6"), "libc.so-1");
        assert_eq!(told("[anon:mine]"), "[anon:name-1]");
        for kernels in ["", "[heap]", "[vdso]", "anon_inode:[perf_event]"] {
            assert_eq!(told(kernels), kernels);
        }
        let mut names = Names::new(true);
        assert_eq!(&*names.file(b"/home/me/x.so"), b"x.so");
    }
}
