//! Which times of which inode a call changes, on Linux and on Quire.

use crate::common::*;
use crate::compare::{limits, reset_linux};
use crate::linux::Linux;
use crate::op::Op;
use crate::quire::Quire;
use rustix::time::{ClockId, clock_gettime};

fn mkdir(path: &str) -> Op {
    Op::Mkdir(path.into())
}

fn rename(old: &str, new: &str, flags: u32) -> Op {
    Op::Rename { old: old.into(), new: new.into(), flags }
}

fn open(path: &str) -> Op {
    Op::Open { slot: 0, path: path.into(), create: true, exclusive: false }
}

fn calls() -> Vec<Op> {
    vec![
        mkdir("d"),
        mkdir("e"),
        open("f"),
        Op::Write { slot: 0, at: 0, bytes: 5000, byte: 1 },
        Op::Write { slot: 0, at: 0, bytes: 0, byte: 1 },
        Op::Read { slot: 0, at: 0, bytes: 10 },
        Op::Read { slot: 0, at: 0, bytes: 10 },
        Op::Read { slot: 0, at: 1 << 30, bytes: 10 },
        Op::Write { slot: 0, at: 0, bytes: 1, byte: 2 },
        Op::Read { slot: 0, at: 1 << 30, bytes: 10 },
        Op::Truncate(0, 5000),
        Op::Truncate(0, 100),
        Op::Allocate { slot: 0, mode: 0, at: 0, bytes: 9000 },
        Op::Allocate { slot: 0, mode: 1, at: 0, bytes: 20_000 },
        Op::Allocate { slot: 0, mode: 3, at: 0, bytes: 4096 },
        Op::Seek { slot: 0, at: 0, hole: true },
        Op::Chmod("f".into(), 0o600),
        Op::SetXattr { path: "f".into(), name: "user.a".into(), bytes: 3, flags: 0 },
        Op::GetXattr("f".into(), "user.a".into()),
        Op::RemoveXattr("f".into(), "user.a".into()),
        Op::Link("f".into(), "d/g".into()),
        rename("d/g", "d/h", 0),
        rename("d/h", "e/h", 0),
        rename("d", "e/d", 0),
        rename("e/d", "d", 0),
        rename("f", "d", 2),
        rename("f", "d", 2),
        rename("f", "e/h", 0),
        Op::Unlink("e/h".into()),
        Op::LinkSlot(0, "again".into()),
        Op::Symlink { target: "f".into(), path: "s".into() },
        Op::ReadLink("s".into()),
        Op::ReadLink("s".into()),
        Op::Stat { path: "s".into(), follow: true },
        open("d/w"),
        rename("d/w", "d/x", 4),
        rename("d/x", "d/w", 0),
        Op::Unlink("d/w".into()),
        Op::Rmdir("d".into()),
        Op::Unlink("f".into()),
        Op::StatSlot(0),
        Op::Mknod("p".into()),
        rename("p", "q", 1),
    ]
}

const WATCHED: [&str; 12] = [".", "d", "e", "f", "d/g", "d/h", "e/h", "e/d", "s", "d/w", "d/x", "q"];

/// The times of what is watched, in the order access, modification, change, as ticks of some clock.
fn of_linux(linux: &Linux) -> Vec<Option<[(i64, i64); 3]>> {
    let times = |stat: rustix::fs::Stat| {
        [
            (stat.st_atime, stat.st_atime_nsec),
            (stat.st_mtime, stat.st_mtime_nsec),
            (stat.st_ctime, stat.st_ctime_nsec),
        ]
    };
    let mut all: Vec<_> = WATCHED.iter().map(|path| rustix::fs::lstat(*path).ok().map(times)).collect();
    all.push(linux.slots[0].as_ref().map(|file| times(rustix::fs::fstat(file).unwrap())));
    all
}

fn of_quire(quire: &Quire<'_, '_>) -> Vec<Option<[(i64, i64); 3]>> {
    let times = |node: &TestNode<'_, '_>| {
        let stat = node.stat();
        [stat.accessed, stat.modified, stat.changed].map(|time| (time.seconds, i64::from(time.nanoseconds)))
    };
    let mut all: Vec<_> =
        WATCHED.iter().map(|path| quire.lookup(path, false).ok().as_ref().map(times)).collect();
    all.push(quire.slots[0].as_ref().map(times));
    all
}

/// Which of them changed.
fn changes(before: &[Option<[(i64, i64); 3]>], after: &[Option<[(i64, i64); 3]>]) -> Vec<Option<[bool; 3]>> {
    let pairs = before.iter().zip(after);
    pairs
        .map(|(before, after)| {
            let (before, after) = (before.as_ref()?, after.as_ref()?);
            Some([0, 1, 2].map(|which| before[which] != after[which]))
        })
        .collect()
}

/// Waits until the clock that Linux stamps inodes with has ticked.
fn wait_for_tick() {
    let begin = clock_gettime(ClockId::RealtimeCoarse);
    while clock_gettime(ClockId::RealtimeCoarse) == begin {
        std::thread::yield_now();
    }
}

pub(crate) fn times_change_as_in_linux() {
    with_fs(&limits(), |fs| {
        let (mut linux, mut quire) = (Linux::default(), Quire::new(fs));
        for op in calls() {
            let before = (of_linux(&linux), of_quire(&quire));
            wait_for_tick();
            let (theirs, ours) = (linux.call(&op), quire.call(&op));
            assert_eq!(theirs, ours, "{op:?}");
            let theirs = changes(&before.0, &of_linux(&linux));
            let ours = changes(&before.1, &of_quire(&quire));
            assert_eq!(theirs, ours, "{op:?}: access, modification, change of {WATCHED:?} and the open file");
        }
        quire.slots = Default::default();
        assert_sound(fs);
    });
    reset_linux();
}
