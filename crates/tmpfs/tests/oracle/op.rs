//! Random calls.

use crate::common::{PAGE, Random};

/// A call. Slots are open files.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Mkdir(String),
    Mknod(String),
    Symlink { target: String, path: String },
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename { old: String, new: String, flags: u32 },
    Stat { path: String, follow: bool },
    Chmod(String, u16),
    ReadLink(String),
    SetXattr { path: String, name: String, bytes: usize, flags: u32 },
    GetXattr(String, String),
    RemoveXattr(String, String),
    ListXattr(String),
    Open { slot: usize, path: String, create: bool, exclusive: bool },
    Unnamed(usize),
    LinkSlot(usize, String),
    Close(usize),
    Write { slot: usize, at: u64, bytes: usize, byte: u8 },
    Read { slot: usize, at: u64, bytes: usize },
    Truncate(usize, u64),
    Allocate { slot: usize, mode: u32, at: u64, bytes: u64 },
    Seek { slot: usize, at: u64, hole: bool },
    StatSlot(usize),
    StatFs,
}

pub(crate) const SLOTS: usize = 4;
/// A file of at most so many pages.
const LARGEST: u64 = 24 * PAGE;

/// Some names, so that most paths lead to something; one that is too long.
fn name(random: &mut Random) -> String {
    match random.below(60) {
        0 => "n".repeat(255),
        1 => "n".repeat(256),
        2..=4 => ".".into(),
        5..=8 => "..".into(),
        _ => (*random.pick(&["a", "b", "c", "d", "e", "f"])).into(),
    }
}

pub(crate) fn path(random: &mut Random) -> String {
    let mut path = String::new();
    if random.below(12) == 0 {
        path.push('/');
    }
    let depth = [1, 1, 1, 2, 2, 2, 3, 4][random.below(8) as usize];
    for part in 0..depth {
        if part > 0 {
            path.push('/');
        }
        path += &name(random);
    }
    path += match random.below(20) {
        0 => "/",
        1 => "//",
        2 if path.len() < 3 => return String::new(),
        _ => "",
    };
    path
}

fn place(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(LARGEST / PAGE) * PAGE,
        1 => (random.below(LARGEST / PAGE) * PAGE + PAGE).saturating_sub(random.below(3)),
        _ => random.below(LARGEST),
    }
}

pub(crate) fn op(random: &mut Random) -> Op {
    let slot = random.below(SLOTS as u64) as usize;
    let attribute = |random: &mut Random| {
        let names = ["user.a", "user.b", "user.", "user", "system.x", "other.x"];
        match random.below(40) {
            0 => format!("user.{}", "x".repeat(251)),
            1 => format!("user.{}", "x".repeat(250)),
            2..=4 => names[random.below(6) as usize].into(),
            _ => names[random.below(2) as usize].into(),
        }
    };
    match random.below(64) {
        0..=5 => Op::Mkdir(path(random)),
        6 | 7 => Op::Mknod(path(random)),
        8..=10 => {
            let target = match random.below(10) {
                0 => "/".into(),
                1 => "t".repeat(random.below(5000) as usize),
                _ => path(random),
            };
            Op::Symlink { target, path: path(random) }
        }
        11..=13 => Op::Link(path(random), path(random)),
        14..=17 => Op::Unlink(path(random)),
        18 | 19 => Op::Rmdir(path(random)),
        20..=29 => {
            let flags = match random.below(12) {
                0 | 1 => 1,
                2..=4 => 2,
                5 => 4,
                6 => random.below(16) as u32,
                _ => 0,
            };
            Op::Rename { old: path(random), new: path(random), flags }
        }
        30..=32 => Op::Stat { path: path(random), follow: random.below(2) == 0 },
        33 => Op::Chmod(path(random), random.below(0o10000) as u16),
        34 => Op::ReadLink(path(random)),
        35 | 36 => Op::SetXattr {
            path: path(random),
            name: attribute(random),
            bytes: [0, 1, 10, 500, 3000, 65536, 65537][random.below(7) as usize],
            flags: [0, 0, 0, 1, 2][random.below(5) as usize],
        },
        37 => Op::GetXattr(path(random), attribute(random)),
        38 => Op::RemoveXattr(path(random), attribute(random)),
        39 => Op::ListXattr(path(random)),
        40..=44 => Op::Open {
            slot,
            path: path(random),
            create: random.below(4) > 0,
            exclusive: random.below(5) == 0,
        },
        45 => Op::Unnamed(slot),
        46 => Op::LinkSlot(slot, path(random)),
        47 => Op::Close(slot),
        48..=51 => Op::Write {
            slot,
            at: place(random),
            bytes: random.below(3 * PAGE) as usize,
            byte: random.below(255) as u8 + 1,
        },
        52..=54 => Op::Read { slot, at: place(random), bytes: random.below(5 * PAGE) as usize },
        55 | 56 => Op::Truncate(slot, place(random)),
        57..=59 => Op::Allocate {
            slot,
            mode: [0, 1, 3, 3, 2, 16][random.below(6) as usize],
            at: place(random),
            bytes: if random.below(10) == 0 { random.below(80) * PAGE } else { random.below(6 * PAGE) },
        },
        60 | 61 => Op::Seek { slot, at: place(random), hole: random.below(2) == 0 },
        62 => Op::StatSlot(slot),
        _ => Op::StatFs,
    }
}
