//! Which calls, flags, places and results have occurred together, and which never did.

use crate::observation::{LARGE, Observation, Pages, Region};
use crate::program::{Argument, Call, Outcome, Trait, errno_name, names};
use crate::standing::{self, Standing};
use quire_mm::space::VmFlags;
use std::collections::BTreeMap;
use std::fmt;

/// A call with a property of its arguments and its result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Combination {
    /// The call.
    pub call: Call,
    /// A flag, a value or the kind of place. Empty: any.
    pub what: &'static str,
    /// `ok`, an errno or a signal.
    pub result: &'static str,
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.what.is_empty() { "" } else { ", " };
        write!(f, "{}{between}{}: {}", self.call.name(), self.what, self.result)
    }
}

/// How often combinations occurred.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    counts: BTreeMap<Combination, u64>,
}

const OK: &str = "ok";
const UNALIGNED: &str = "unaligned address";
const UNALIGNED_LENGTH: &str = "unaligned length";
const NO_LENGTH: &str = "length 0";
const WRAPS: &str = "end past all addresses";
const HINT: &str = "hint";
const MIDDLE: &str = "middle of a mapping";
const SEVERAL: &str = "several mappings";
const HOLE: &str = "a hole";
const VECTOR_BEYOND: &str = "vector past all addresses";
const VECTOR_HOLE: &str = "vector with a hole";
const VECTOR_READ_ONLY: &str = "read-only vector";
const VECTOR_WRITABLE: &str = "writable vector";
const VECTOR_PAGES: &str = "vector in two pages";
const LARGE_PART: &str = "part of a large folio";
const LARGE_WHOLE: &str = "a whole large folio";
/// At least one page that was paged out.
const SWAPPED: &str = "pages in swap";
/// Advice about such pages.
const SWAPPED_ADVICE: [(u64, &str); 7] = [
    (3, "MADV_WILLNEED, pages in swap"),
    (4, "MADV_DONTNEED, pages in swap"),
    (8, "MADV_FREE, pages in swap"),
    (20, "MADV_COLD, pages in swap"),
    (21, "MADV_PAGEOUT, pages in swap"),
    (22, "MADV_POPULATE_READ, pages in swap"),
    (23, "MADV_POPULATE_WRITE, pages in swap"),
];
/// Borders of what a page table covers.
const BORDERS: [(u32, &str); 3] =
    [(21, "across a 2 MiB border"), (30, "across a 1 GiB border"), (39, "across a 512 GiB border")];

/// What can occur beside flags and values that succeed: lines of the form `call, what: result, result`.
const EXPECTED: &str = include_str!("expected.txt");

/// The lines of [`EXPECTED`], one result each.
fn listed() -> impl Iterator<Item = Combination> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).flat_map(|(left, results)| {
        let (name, what) = left.split_once(", ").unwrap_or((left, ""));
        let call = Call::from_name(name);
        let results = results.split(", ");
        results.filter_map(move |result| Some(Combination { call: call?, what, result }))
    })
}

/// Flags and values that never succeed, or only where this machine has something that is not compared.
const NEVER_OK: &[&str] = &["PROT_GROWSUP", "MAP_SYNC", "FALLOC_FL_UNSHARE_RANGE", "SHM_HUGETLB"];

fn result(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Value(value @ -4095..0) => errno_name(-value as i32).unwrap_or("an error without name"),
        Outcome::Value(_) => OK,
        Outcome::Signal { signal: 11, code: 1, .. } => "SIGSEGV MAPERR",
        Outcome::Signal { signal: 11, code: 2, .. } => "SIGSEGV ACCERR",
        Outcome::Signal { signal: 7, .. } => "SIGBUS",
        Outcome::Signal { .. } => "another signal",
        Outcome::NotMade | Outcome::Unsupported => "not made",
    }
}

impl Coverage {
    /// Counts an operation with its resolved arguments, what Linux returned, and what the process looked like
    /// and was allowed to do before it.
    pub(crate) fn note(
        &mut self,
        call: Call,
        args: [u64; 6],
        outcome: Outcome,
        before: &Observation,
        standing: Option<Standing>,
    ) {
        let result = result(outcome);
        let mut count = |what| *self.counts.entry(Combination { call, what, result }).or_default() += 1;
        count("");
        for (kind, value) in call.arguments().iter().zip(args) {
            match kind {
                Argument::Bits(names) => {
                    names.iter().filter(|(bit, _)| value & bit != 0).for_each(|(_, name)| count(name));
                }
                Argument::Value(names) => {
                    names.iter().filter(|(named, _)| *named == value).for_each(|(_, name)| count(name));
                }
                Argument::Number | Argument::Signed => {}
            }
        }
        if let Some(standing) = standing {
            standing.note(call, args, &mut count);
        }
        if call.has(Trait::Range) {
            places(call, args, &before.regions, &mut count);
            large_places(args, before, &mut count);
        }
        if call == Call::MincoreInto {
            vector(args, &before.regions, &mut count);
        }
        if call.has(Trait::Swapped) {
            swapped_places(call, args, before, &mut count);
        }
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Self) {
        for (combination, count) in &other.counts {
            *self.counts.entry(*combination).or_default() += count;
        }
    }

    /// All combinations that occurred, with how often.
    pub fn counts(&self) -> impl Iterator<Item = (Combination, u64)> + '_ {
        self.counts.iter().map(|(combination, count)| (*combination, *count))
    }

    /// Combinations that can occur and did not.
    pub fn holes(&self) -> Vec<Combination> {
        self.all().into_iter().filter(|combination| !self.counts.contains_key(combination)).collect()
    }

    /// Number of combinations that can occur.
    pub fn expected(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> Vec<Combination> {
        let swaps = self.counts.keys().any(|combination| combination.what == SWAPPED);
        let privileges = self.counts.keys().any(|combination| standing::needs_privileges(combination.what));
        let mut all = expected(swaps, privileges);
        // A host may allow too many mappings for a program to have them all.
        if !self.counts.keys().any(|combination| combination.call == Call::Crowd) {
            all.retain(|combination| combination.call != Call::Crowd && combination.what != standing::FULL);
        }
        // A name space of segments takes a privilege.
        if !self.counts.keys().any(|combination| combination.call.has(Trait::Ipc)) {
            all.retain(|combination| !combination.call.has(Trait::Ipc));
        }
        all
    }
}

/// Tells where `mincore` is to write.
fn vector(args: [u64; 6], before: &[Region], mut count: impl FnMut(&'static str)) {
    let [_, len, vector, ..] = args;
    let Some(end) = vector.checked_add(len.div_ceil(4096)).filter(|end| *end < 1 << 47) else {
        return count(VECTOR_BEYOND);
    };
    let over = || before.iter().filter(move |region| region.start < end && vector < region.end);
    let mapped: u64 = over().map(|region| region.end.min(end) - region.start.max(vector)).sum();
    if mapped < end - vector {
        count(VECTOR_HOLE);
    } else if over().any(|region| !region.flags.contains(VmFlags::WRITE)) {
        count(VECTOR_READ_ONLY);
    } else {
        count(VECTOR_WRITABLE);
    }
    if vector >> 12 != end.saturating_sub(1) >> 12 {
        count(VECTOR_PAGES);
    }
}

/// Tells in what kinds of places a range lies.
fn places(call: Call, args: [u64; 6], before: &[Region], mut count: impl FnMut(&'static str)) {
    const PAGE: u64 = 4096;
    let [addr, len, _, flags, ..] = args;
    let anywhere = call == Call::Mmap && flags & (names::MAP_FIXED | names::MAP_FIXED_NOREPLACE) == 0;
    let known = [
        (addr % PAGE != 0, UNALIGNED),
        (len % PAGE != 0, UNALIGNED_LENGTH),
        (len == 0, NO_LENGTH),
        (addr.checked_add(len).is_none(), WRAPS),
        (anywhere && addr != 0, HINT),
    ];
    known.iter().filter(|(is, _)| *is).for_each(|(_, what)| count(what));
    let Some(end) = addr.checked_add(len).filter(|end| !anywhere && *end > addr && *end < 1 << 47) else {
        return;
    };
    let mut over = before.iter().filter(|region| region.start < end && addr < region.end);
    let mapped: u64 = over.clone().map(|region| region.end.min(end) - region.start.max(addr)).sum();
    if over.clone().nth(1).is_some() {
        count(SEVERAL);
    } else if over.next().is_some_and(|region| region.start < addr && end < region.end) {
        count(MIDDLE);
    }
    if mapped < end - addr {
        count(HOLE);
    }
    for (shift, what) in BORDERS {
        if addr >> shift != (end - 1) >> shift {
            count(what);
        }
    }
}

/// Tells whether a range begins or ends within what a PMD entry maps, or covers such a piece.
fn large_places(args: [u64; 6], before: &Observation, count: &mut impl FnMut(&'static str)) {
    let [addr, len, ..] = args;
    let end = addr.saturating_add(len);
    let cuts = |at: u64| !at.is_multiple_of(LARGE) && before.maps_large(at);
    if addr < end && (cuts(addr) || cuts(end)) {
        count(LARGE_PART);
    }
    // An address near the end of all has no such block behind it.
    let block_end = |at: u64| at.checked_next_multiple_of(LARGE).and_then(|start| start.checked_add(LARGE));
    let covers = |run: &Pages| {
        run.large && block_end(addr.max(run.start)).is_some_and(|last| last <= end.min(run.end))
    };
    if before.pages.iter().any(covers) {
        count(LARGE_WHOLE);
    }
}

/// Tells whether a call is about pages that were paged out.
fn swapped_places(call: Call, args: [u64; 6], before: &Observation, count: &mut impl FnMut(&'static str)) {
    let [addr, len, advice, ..] = args;
    let (start, end) = match call {
        Call::Fork | Call::Mlockall => (0, u64::MAX),
        Call::Read | Call::Write => (addr, addr.saturating_add(1)),
        _ => (addr, addr.saturating_add(len)),
    };
    if !before.swapped.iter().any(|run| run.0 < end && start < run.1) {
        return;
    }
    count(SWAPPED);
    let about = SWAPPED_ADVICE.iter().filter(|(number, _)| call == Call::Madvise && *number == advice);
    about.for_each(|(_, what)| count(what));
}

/// Everything that can occur, on hosts that swap or not, for users with privileges or without.
fn expected(swaps: bool, privileges: bool) -> Vec<Combination> {
    let mut all: Vec<Combination> =
        listed().filter(|listed| privileges || !standing::needs_privileges(listed.what)).collect();
    let mut add = |call, what, result| all.push(Combination { call, what, result });
    for call in Call::all() {
        for argument in call.arguments() {
            let (Argument::Bits(names) | Argument::Value(names)) = argument else { continue };
            for (_, name) in names.iter().filter(|(_, name)| !NEVER_OK.contains(name)) {
                // The two that only `mprotect` on a stack takes.
                let misplaced = *name == "PROT_GROWSDOWN" && call != Call::Mprotect;
                if !misplaced {
                    add(call, name, OK);
                }
            }
        }
    }
    for call in Call::all().filter(|call| call.has(Trait::Border)) {
        BORDERS.iter().for_each(|(_, border)| add(call, border, OK));
        add(call, LARGE_PART, OK);
        // One operation fills no more than some pages.
        if call != Call::Fill {
            add(call, LARGE_WHOLE, OK);
        }
    }
    if swaps {
        Call::all().filter(|call| call.has(Trait::Swapped)).for_each(|call| add(call, SWAPPED, OK));
        SWAPPED_ADVICE.iter().for_each(|(_, advice)| add(Call::Madvise, advice, OK));
    }
    // Every advice hits a hole.
    for (_, advice) in names::ADVICE {
        add(Call::Madvise, advice, "ENOMEM");
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is misspelt would never occur.
    #[test]
    fn what_is_listed_can_be_counted() {
        const PLACES: &[&str] = &[
            "",
            UNALIGNED,
            UNALIGNED_LENGTH,
            NO_LENGTH,
            WRAPS,
            HINT,
            MIDDLE,
            SEVERAL,
            HOLE,
            VECTOR_BEYOND,
            VECTOR_HOLE,
            VECTOR_READ_ONLY,
            VECTOR_WRITABLE,
            VECTOR_PAGES,
        ];
        for line in EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let name = line.split([',', ':']).next().unwrap_or("");
            assert!(Call::from_name(name).is_some() && line.contains(": "), "{line}");
        }
        for Combination { call, what, result } in listed() {
            let is_argument = call.arguments().iter().any(|argument| match argument {
                Argument::Bits(names) | Argument::Value(names) => names.iter().any(|(_, name)| *name == what),
                Argument::Number | Argument::Signed => false,
            });
            assert!(is_argument || PLACES.contains(&what) || standing::is_counted(what), "{what}");
            let signals = ["SIGSEGV MAPERR", "SIGSEGV ACCERR", "SIGBUS"];
            let is_errno = (1..134).any(|errno| errno_name(errno) == Some(result));
            assert!(result == OK || signals.contains(&result) || is_errno, "{result}");
        }
    }
}
