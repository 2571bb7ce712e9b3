//! The contents of a plan.

use core::fmt;
use core::panic::Location;

/// A kind of operation that can be made to fail. All kinds use the same plan and share one count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FailClass {
    /// Allocating a block of frames.
    Frames,
    /// Allocating an object of a slab cache.
    Object,
    /// Reading from a device.
    DeviceRead,
    /// Writing to a device.
    DeviceWrite,
}

/// A name for what an operation is for, so that a plan can aim at it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailSite {
    name: &'static str,
    id: u64,
}

impl FailSite {
    /// Page tables.
    pub const TABLE: Self = Self::new("table");
    /// Anonymous memory of programs.
    pub const ANONYMOUS: Self = Self::new("anonymous");
    /// Frames for slab caches; their objects have the cache's name as their site.
    pub const SLAB: Self = Self::new("slab");

    /// The site `name`. Equal names are one site. Meant for constants: it hashes the name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, id: hash(name) }
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for FailSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The number alone is not readable.
        f.debug_tuple("FailSite").field(&self.name).finish()
    }
}

/// Which operations a plan is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailAim {
    /// All.
    #[default]
    Everything,
    /// Those of one kind.
    Class(FailClass),
    /// Those with one name.
    Site(FailSite),
    /// Those that one line of the program asks for, as [`FailPoints::callers`](super::FailPoints::callers)
    /// names it. Release builds do not record lines, so there it matches nothing.
    Line {
        /// The path, as passed to the compiler.
        file: &'static str,
        /// The line, from 1.
        line: u32,
    },
}

/// When an operation that the plan is about fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    Off,
    Count,
    Nth(u64),
    Every(u64),
    Seeded { seed: u64, per_mille: u32 },
}

/// Which operations fail, and when. Turns are counted from 1, from the moment the plan is set, among the
/// operations that the plan is aimed at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailPlan {
    pub(super) rule: Rule,
    pub(super) aim: FailAim,
}

impl FailPlan {
    /// None fails, none is counted.
    pub const OFF: Self = Self::of(Rule::Off);
    /// None fails; they are counted.
    pub const COUNT: Self = Self::of(Rule::Count);

    const fn of(rule: Rule) -> Self {
        Self { rule, aim: FailAim::Everything }
    }

    /// The `nth` fails, and no other.
    pub const fn nth(nth: u64) -> Self {
        Self::of(Rule::Nth(nth))
    }

    /// Each `period`th fails: 1 fails all, 0 none.
    pub const fn every(period: u64) -> Self {
        Self::of(Rule::Every(period))
    }

    /// Each fails with a probability of `per_mille` in a thousand. The seed and the turn decide, so the same
    /// seed fails the same turns again.
    pub const fn seeded(seed: u64, per_mille: u32) -> Self {
        Self::of(Rule::Seeded { seed, per_mille })
    }

    /// The same for the operations at `aim` only; all others neither fail nor count.
    pub const fn at(self, aim: FailAim) -> Self {
        Self { aim, ..self }
    }
}

/// An operation that asks the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) class: FailClass,
    pub(super) site: FailSite,
    /// Known in debug builds.
    pub(super) caller: Option<&'static Location<'static>>,
}

impl FailAim {
    /// One word for the aim: 0 for everything.
    pub(super) const fn id(self) -> u64 {
        match self {
            Self::Everything => 0,
            Self::Class(class) => class_id(class),
            Self::Site(site) => site.id,
            Self::Line { file, line } => line_id(file, line),
        }
    }
}

impl Operation {
    /// Whether the aim with this number covers the operation.
    pub(super) fn is_meant_by(&self, aim: u64) -> bool {
        aim == 0
            || aim == class_id(self.class)
            || aim == self.site.id
            || self.caller.is_some_and(|caller| aim == line_id(caller.file(), caller.line()))
    }

    /// One word for the caller and what it wanted.
    pub(super) fn key(&self, caller: &Location<'_>) -> u64 {
        mix(line_id(caller.file(), caller.line()) ^ u64::from(caller.column()) ^ self.site.id.rotate_left(32))
            | 1
    }
}

/// Whether the operation at `turn` fails under `seed`.
pub(super) const fn seed_strikes(seed: u64, turn: u64, per_mille: u64) -> bool {
    // The high half of the product spreads the 64 bits evenly over a thousand.
    let thousandth = (mix(seed ^ mix(turn)) as u128 * 1000) >> 64;
    (thousandth as u64) < per_mille
}

/// This bit distinguishes hashes from class numbers.
const HASHED: u64 = 1 << 63;

const fn class_id(class: FailClass) -> u64 {
    1 + class as u64
}

const fn line_id(file: &str, line: u32) -> u64 {
    mix(hash(file) ^ line as u64) | HASHED
}

/// FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo), 64 bits: comparing names is comparing one word.
const fn hash(text: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash | HASHED
}

/// SplitMix64 (G. Steele, D. Lea, C. Flood): every bit of the result depends on every bit of `word`.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
