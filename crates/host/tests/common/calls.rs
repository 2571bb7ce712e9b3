//! Random memory calls.

use crate::common::{MIB2, PAGE, Random};
use crate::linux::{READ, WRITE};
use std::fmt;

/// Where the calls play: around the border of everything that a page table can cover.
pub(crate) const WINDOW: u64 = (1 << 39) - 2 * MIB2;
pub(crate) const WINDOW_END: u64 = WINDOW + 4 * MIB2;

/// An address in a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// As it is.
    Exact(u64),
    /// In the area that Linux chose a place for in the call with this number, so many bytes from its start.
    Area(usize, u64),
}

/// One call, with the places that are not known yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    /// Its number in the whole list, which it keeps when others are left out.
    pub(crate) id: usize,
    pub(crate) number: u32,
    pub(crate) addr: Place,
    pub(crate) args: [u64; 4],
}

impl Op {
    const fn new(number: u32, addr: Place, args: [u64; 4]) -> Self {
        Self { id: 0, number, addr, args }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.number {
            READ => "read",
            WRITE => "write",
            number => quire_mm::abi::CallNumber::from_raw(number).name().unwrap_or("?"),
        };
        match self.addr {
            Place::Exact(addr) if (WINDOW..WINDOW_END).contains(&addr) => {
                write!(f, "#{} {name}(WINDOW+{:#x}", self.id, addr - WINDOW)?;
            }
            Place::Exact(addr) => write!(f, "#{} {name}({addr:#x}", self.id)?,
            Place::Area(of, offset) => write!(f, "#{} {name}(area of {of}+{offset:#x}", self.id)?,
        }
        for arg in self.args {
            if (WINDOW..WINDOW_END).contains(&arg) {
                write!(f, ", WINDOW+{:#x}", arg - WINDOW)?;
            } else {
                write!(f, ", {arg:#x}")?;
            }
        }
        f.write_str(")")
    }
}

const MAP_SHARED: u64 = 1;
const MAP_PRIVATE: u64 = 2;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_POPULATE: u64 = 0x8000;
const MAP_NOREPLACE: u64 = 0x10_0000;

/// Advice that both sides know; those that change nothing to be seen but flags are rarer.
const ADVICE: &[u64] =
    &[4, 4, 4, 4, 24, 22, 22, 23, 23, 8, 0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 5, 77];

/// A page of the window, most often near one of its borders of 2 MiB, so that calls meet.
fn window_page(random: &mut Random) -> u64 {
    let border = random.below(4) * (MIB2 / PAGE);
    let near = random.below(20);
    if random.chance(60) { border + near } else { (border + MIB2 / PAGE - 1 - near).min(2047) }
}

fn address(random: &mut Random, areas: &[usize]) -> Place {
    if !areas.is_empty() && random.chance(30) {
        // Mostly one of the last: the older ones are gone.
        let recent = &areas[areas.len().saturating_sub(8)..];
        let area = if random.chance(80) { random.pick(recent) } else { random.pick(areas) };
        return Place::Area(area, random.below(12) * PAGE);
    }
    let mut addr = WINDOW + window_page(random) * PAGE;
    if random.chance(2) {
        addr += random.below(PAGE);
    }
    Place::Exact(addr)
}

fn length(random: &mut Random) -> u64 {
    match random.below(100) {
        0..70 => (1 + random.below(8)) * PAGE,
        70..80 => (9 + random.below(40)) * PAGE,
        80..88 => MIB2 * (1 + random.below(2)),
        88..94 => (1 + random.below(8)) * PAGE - random.below(PAGE),
        94..96 => 0,
        96 => u64::MAX - random.below(3 * PAGE),
        97 => u64::MAX - WINDOW - random.below(2 * PAGE),
        98 => (1 << 47) - random.below(3) * PAGE,
        _ => random.next() | 1 << 63,
    }
}

fn protection(random: &mut Random) -> u64 {
    match random.below(10) {
        0..6 => 3,
        6 | 7 => 1,
        _ => random.below(8),
    }
}

fn mmap(random: &mut Random, areas: &[usize]) -> Op {
    let mut flags = MAP_ANONYMOUS | if random.chance(88) { MAP_PRIVATE } else { MAP_SHARED };
    if random.chance(1) {
        // Any type but MAP_DROPPABLE, which is not built.
        flags = MAP_ANONYMOUS | random.pick(&[0, 3, 4, 7, 9, 15]);
    }
    for (percent, flag) in
        [(8, 0x4000), (6, MAP_GROWSDOWN), (8, 0x2_0000), (3, 0x2000), (2, 0x1_0000), (1, 0x800)]
    {
        flags |= if random.chance(percent) { flag } else { 0 };
    }
    let mut len = length(random);
    if random.chance(12) && len <= 2 * MIB2 {
        flags |= MAP_POPULATE;
    }
    let addr = match random.below(100) {
        0..62 => {
            flags |= MAP_FIXED;
            address(random, areas)
        }
        62..68 => {
            flags |= MAP_NOREPLACE;
            address(random, areas)
        }
        68..90 => {
            if random.chance(5) {
                len = [1 << 30, 1 << 31, 1 << 46, 1 << 47][random.below(4) as usize];
                flags = (flags & !MAP_POPULATE & !0x2000) | 0x4000;
            }
            Place::Exact(0)
        }
        90..98 => address(random, areas),
        _ => Place::Exact(random.pick(&[1, 4095, 4096, 65536, (1 << 47) - 4096, 1 << 47, u64::MAX - 4095])),
    };
    let offset_is_odd = random.chance(1);
    let mut args = [len, protection(random), flags, u64::from(offset_is_odd)];
    args[1] |= if random.chance(2) { 1 << (3 + random.below(20)) } else { 0 };
    Op::new(9, addr, args)
}

fn mremap(random: &mut Random, areas: &[usize]) -> Op {
    let old = if random.chance(3) { 0 } else { length(random) };
    let new = if random.chance(55) { old } else { length(random) };
    let flags = random.pick(&[0, 1, 1, 1, 3, 3, 3, 3, 5, 5, 7, 7, 2, 4, 6, 8, 1 << 32]);
    // Places of areas are not for targets: those would need resolving too, and the window is as good.
    let target = WINDOW + window_page(random) * PAGE;
    let target = if random.chance(3) { target + 1 } else { target };
    let target = if random.chance(2) { u64::MAX - 4095 } else { target };
    Op::new(25, address(random, areas), [old, new, flags, target])
}

/// The random call number `id`. `areas` are the calls for which Linux chose a place so far.
pub(crate) fn random_call(random: &mut Random, id: usize, areas: &[usize]) -> Op {
    Op { id, ..any_call(random, areas) }
}

fn any_call(random: &mut Random, areas: &[usize]) -> Op {
    let addr = address(random, areas);
    let len = length(random);
    match random.below(100) {
        0..20 => mmap(random, areas),
        20..30 => Op::new(11, addr, [len, 0, 0, 0]),
        30..42 => {
            let extra = match random.below(40) {
                0 => 1 << 24,
                1 => 1 << 25,
                2 => 3 << 24,
                3 => 0x10,
                4 => 1 << 30,
                _ => 0,
            };
            Op::new(10, addr, [len, protection(random) | extra, 0, 0])
        }
        42..54 => mremap(random, areas),
        54..66 => Op::new(28, addr, [len, random.pick(ADVICE), 0, 0]),
        66..69 => Op::new(12, Place::Exact(random.below(64) * 1000), [0; 4]),
        69..71 => Op::new(27, addr, [len.min(WINDOW_END), 0, 0, 0]),
        71..73 => Op::new(26, addr, [len, random.below(9), 0, 0]),
        73..75 => Op::new(149, addr, [len, 0, 0, 0]),
        75..77 => Op::new(150, addr, [len, 0, 0, 0]),
        77 => Op::new(325, addr, [len, random.pick(&[0, 1, 1, 2]), 0, 0]),
        // With ONFAULT wherever something is locked: what else the process has is not to be faulted in.
        78 if random.chance(40) => Op::new(151, Place::Exact(random.pick(&[0, 4, 5, 6, 7, 8])), [0; 4]),
        78 => Op::new(152, Place::Exact(0), [0; 4]),
        79..88 => Op::new(READ, inside(addr), [0; 4]),
        _ => Op::new(WRITE, inside(addr), [random.next(), 0, 0, 0]),
    }
}

/// The address made one of a whole word.
fn inside(addr: Place) -> Place {
    match addr {
        Place::Exact(addr) => Place::Exact(addr & !7),
        Place::Area(nth, offset) => Place::Area(nth, offset & !7),
    }
}
