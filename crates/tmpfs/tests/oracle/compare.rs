//! Linux and Quire side by side.

use crate::common::*;
use crate::linux::{self, INODES, Linux, PAGES, runs};
use crate::op::{Op, op};
use crate::quire::{self, Quire};
use quire_tmpfs::{END, FIRST, Kind, Limits, New, Options, RenameOptions};

const SEEDS: u64 = 20;
const CALLS: usize = 2000;

fn first_seed() -> u64 {
    std::env::var("QUIRE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

pub(crate) fn limits() -> Options {
    Options { limits: Limits { pages: Some(PAGES), inodes: Some(INODES) }, ..Options::default() }
}

pub(crate) fn calls_have_linux_s_results() {
    let mut failed = 0;
    for seed in first_seed()..first_seed() + SEEDS {
        with_fs(&limits(), |fs| {
            let (mut linux, mut quire) = (Linux::default(), Quire::new(fs));
            let mut random = Random(seed);
            let mut history = Vec::new();
            for number in 0..CALLS {
                let op = op(&mut random);
                // In Linux a file that is open keeps the directory that it was in, of which the place is
                // still counted then.
                if removes_directory(&op) {
                    linux.slots = Default::default();
                    quire.slots = Default::default();
                }
                let (theirs, ours) = (linux.call(&op), quire.call(&op));
                history.push(format!("{op:?} -> {theirs:?}"));
                assert!(
                    theirs == ours,
                    "seed {seed}, call {number}: {op:?}\nLinux {theirs:?}\nQuire {ours:?}\nbefore it:\n{}",
                    history[history.len().saturating_sub(12)..].join("\n")
                );
                failed += usize::from(theirs.is_err());
                if number % 50 == 0 {
                    compare_trees(&quire, "/", &quire.root, seed);
                }
            }
            compare_trees(&quire, "/", &quire.root, seed);
            assert_eq!(linux.call(&Op::StatFs), quire.call(&Op::StatFs), "seed {seed}");
            linux.slots = Default::default();
            quire.slots = Default::default();
            assert_sound(fs);
        });
        reset_linux();
    }
    let all = CALLS * SEEDS as usize;
    println!("{all} calls have Linux's results; {failed} of them are errors");
    assert!(failed * 10 > all && failed * 10 < all * 9, "the calls are of one kind");
}

fn removes_directory(op: &Op) -> bool {
    let is_directory =
        |path: &str| rustix::fs::lstat(path).is_ok_and(|stat| stat.st_mode & 0o170_000 == 0o040_000);
    match op {
        Op::Rmdir(path) => is_directory(path),
        Op::Rename { new, flags, .. } => *flags & 3 == 0 && is_directory(new),
        _ => false,
    }
}

fn compare_trees(quire: &Quire<'_, '_>, path: &str, directory: &TestNode<'_, '_>, seed: u64) {
    let mut theirs = linux::list(path, 4096);
    let mut ours = names(directory);
    theirs.retain(|name| name != "." && name != "..");
    theirs.sort();
    ours.sort();
    assert_eq!(theirs, ours, "seed {seed}, directory {path}");
    for name in ours {
        let path = format!("{path}{name}");
        let stat = rustix::fs::lstat(path.as_str()).unwrap();
        let node = quire.lookup(&path, false).unwrap();
        let our_stat = node.stat();
        assert_eq!(linux::stat_text(&stat), quire::stat_text(&our_stat), "seed {seed}, {path}");
        match our_stat.kind {
            Kind::Directory => compare_trees(quire, &format!("{path}/"), &node, seed),
            Kind::Regular => {
                let mut bytes = vec![0; our_stat.size as usize];
                node.read(|data| data.read(0, &mut bytes)).unwrap();
                assert_eq!(runs(&std::fs::read(&path).unwrap()), runs(&bytes), "seed {seed}, {path}");
            }
            _ => {}
        }
    }
}

fn empty_linux(path: &str) {
    for name in linux::list(path, 4096) {
        if name == "." || name == ".." {
            continue;
        }
        let path = format!("{path}{name}");
        if rustix::fs::unlink(path.as_str()).is_err() {
            empty_linux(&format!("{path}/"));
            rustix::fs::rmdir(path.as_str()).unwrap();
        }
    }
}

/// Makes the host's file system as it was, its root included.
pub(crate) fn reset_linux() {
    empty_linux("/");
    let mut names = vec![0; 4096];
    let bytes = rustix::fs::listxattr("/", &mut names[..]).unwrap();
    for name in names[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        rustix::fs::removexattr("/", name).unwrap();
    }
    rustix::fs::chmod("/", rustix::fs::Mode::from_raw_mode(0o1777)).unwrap();
}

/// Names come, go and move; what is replaced is left out: there Linux's order is not that of its positions.
pub(crate) fn listings_have_linux_s_order() {
    for seed in first_seed()..first_seed() + SEEDS {
        with_fs(&limits(), |fs| {
            let root = fs.root();
            let mut random = Random(seed);
            let names: Vec<String> = (0..40).map(|number| format!("name-{number}")).collect();
            for _ in 0..300 {
                let (one, other) = (random.pick(&names), random.pick(&names));
                match random.below(4) {
                    0 => {
                        let ours = root.unlink(one.as_bytes());
                        assert_eq!(rustix::fs::unlink(one.as_str()).is_ok(), ours.is_ok());
                    }
                    1 => {
                        let options = RenameOptions { no_replace: true, ..RenameOptions::default() };
                        let ours = root.rename(one.as_bytes(), &root, other.as_bytes(), &options);
                        let flags = rustix::fs::RenameFlags::NOREPLACE;
                        let cwd = rustix::fs::CWD;
                        let theirs = rustix::fs::renameat_with(cwd, one.as_str(), cwd, other.as_str(), flags);
                        assert_eq!(theirs.is_ok(), ours.is_ok());
                    }
                    _ => {
                        let ours = root.create(one.as_bytes(), New::Fifo, &USER);
                        let mode = rustix::fs::Mode::empty();
                        let theirs = rustix::fs::mkfifoat(rustix::fs::CWD, one.as_str(), mode);
                        assert_eq!(theirs.is_ok(), ours.is_ok());
                    }
                }
            }
            let buffer = 24 + random.below(400) as usize;
            let mut ours = Vec::new();
            let mut position = FIRST;
            while position != END {
                let mut room = buffer;
                position = root
                    .list(position, &mut |entry| {
                        let fits = room >= entry.name.len();
                        if fits {
                            room -= entry.name.len();
                            ours.push(String::from_utf8(entry.name.to_vec()).unwrap());
                        }
                        fits
                    })
                    .unwrap();
            }
            assert_eq!(linux::list("/", 64 + buffer), ours, "seed {seed}");
        });
        reset_linux();
    }
}
