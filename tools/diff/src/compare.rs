//! Comparing the observations of both sides.

use crate::known::KnownDifference;
use crate::linux::Start;
use crate::observation::{Detail, Figures, LARGE, Observation, Region, Wanted};
use crate::past::Past;
use crate::program::names::{MEMFDS, MOST_MEMFDS};
use quire_arch::PAGE_SIZE;
use quire_mm::space::{PageState, VmFlags};
use std::fmt::Write as _;

/// Compares everything. Returns what differs in words.
pub(crate) fn compare(
    start: &Start,
    past: &mut Past,
    wanted: Wanted,
    linux: &Observation,
    quire: &Observation,
) -> Result<(), String> {
    same("mappings", &linux.regions, &quire.regions, region_text)?;
    pages(past, linux, quire)?;
    details(start, past, wanted, linux, quire)?;
    if let (Some(linux), Some(quire)) = (linux.figures, quire.figures) {
        figures(linux, quire)?;
        // Linux's figure includes the tables of the oracle itself. Where Linux frees one at once, Quire
        // may keep it.
        if quire.tables > linux.tables {
            return Err(format!("VmPTE: Linux has {} bytes, Quire {}", linux.tables, quire.tables));
        }
    }
    if let Some(figures) = quire.figures {
        tables(wanted, figures.tables, quire)?;
    }
    if !wanted.sums {
        return Ok(());
    }
    sums(linux, quire)?;
    same("segments", &linux.segments, &quire.segments, |segment| format!("{segment:x?}"))?;
    (0..MOST_MEMFDS).try_for_each(|at| memfd(past, at, [linux, quire]))
}

/// What is behind the descriptor of a memfd.
fn memfd(past: &mut Past, at: usize, sides: [&Observation; 2]) -> Result<(), String> {
    let [linux, quire] = match sides.map(|side| &side.memfds[at]) {
        [Some(linux), Some(quire)] => [linux, quire],
        [None, None] => return Ok(()),
        [linux, _] => {
            let side = if linux.is_some() { "Linux" } else { "Quire" };
            return Err(format!("descriptor {} is open only on {side}", MEMFDS as usize + at));
        }
    };
    let name = format!("memfd {}", MEMFDS as usize + at);
    let (there, here) = ((linux.seals, linux.size), (quire.seals, quire.size));
    if there != here {
        return Err(format!("{name}: seals and size are {there:x?} on Linux, {here:x?} on Quire"));
    }
    if past.has_uncertain_holes() {
        if linux != quire {
            past.count(KnownDifference::PageOut);
        }
    } else {
        same(&format!("data of {name}"), &linux.data, &quire.data, |(start, end)| {
            format!("{start:#x}-{end:#x}")
        })?;
        if linux.allocated != quire.allocated {
            return Err(format!(
                "{name} has {} bytes on Linux, {} on Quire",
                linux.allocated, quire.allocated
            ));
        }
    }
    let text = |(offset, sum): &(u64, u64)| format!("page {offset:#x} with sum {sum:#x}");
    same(&name, &both(&linux.sums, &quire.sums), &both(&quire.sums, &linux.sums), text)
}

fn flags_text(flags: VmFlags) -> String {
    let mut text = String::new();
    let _ = quire_mm::proc::vm_flags(flags, &mut text);
    text.trim_start_matches("VmFlags:").trim().to_owned()
}

fn region_text(region: &Region) -> String {
    let mut text = format!("{:#x}-{:#x} {}", region.start, region.end, flags_text(region.flags));
    if region.is_cached() {
        let _ = match (region.file, region.memfd) {
            (true, _) => write!(text, " file+{:#x}", region.offset),
            (false, 0) => write!(text, " shared+{:#x}", region.offset),
            (false, number) => write!(text, " memfd {number}+{:#x}", region.offset),
        };
    }
    text
}

/// Fails with what is only on one side, in one line.
fn same<T: PartialEq>(
    what: &str,
    linux: &[T],
    quire: &[T],
    text: impl Fn(&T) -> String,
) -> Result<(), String> {
    if linux == quire {
        return Ok(());
    }
    let list = |mine: &[T], others: &[T]| -> String {
        let lines: Vec<String> = mine.iter().filter(|one| !others.contains(one)).map(&text).take(8).collect();
        if lines.is_empty() { "nothing more".to_owned() } else { lines.join("; ") }
    };
    Err(format!("{what}: Linux has {}, Quire has {}", list(linux, quire), list(quire, linux)))
}

fn pages(past: &mut Past, linux: &Observation, quire: &Observation) -> Result<(), String> {
    let all = |side: &Observation| side.own_pages().collect::<Vec<_>>();
    same("pages in memory", &all(linux), &all(quire), |run| {
        let large = if run.large { " by PMD entries" } else { "" };
        format!("{:#x}-{:#x} {:?}{large}", run.start, run.end, run.state)
    })?;
    let text = |run: &(u64, u64)| format!("{:#x}-{:#x}", run.0, run.1);
    same("pages of shared memory", &linux.shared_pages(), &quire.shared_pages(), text)?;
    let (there, here) = (linux.file_pages(), quire.file_pages());
    // Other pages than these come when Linux reads ahead, or could not write them.
    if !past.has_uncertain_file() {
        same("pages of the file", &there, &here, text)?;
    }
    same("pages in swap", &linux.swapped, &quire.swapped, text)?;
    if there != here {
        past.count(KnownDifference::FilePages);
    }
    Ok(())
}

/// The flags of the mappings: those of the oracle's own are left out, and what borders on them is cut there.
fn details(
    start: &Start,
    past: &mut Past,
    wanted: Wanted,
    linux: &Observation,
    quire: &Observation,
) -> Result<(), String> {
    if wanted.details_until == 0 || (linux.details.is_empty() && quire.details.is_empty()) {
        return Ok(());
    }
    let list = |side: &Observation, other: &Observation| {
        let mut list = Vec::new();
        for detail in side.details.iter().filter(|detail| detail.start < wanted.details_until) {
            let Detail { start: from, end, flags, .. } = *detail;
            // What borders on the oracle's own may have been made one with it on one side only.
            if start.touches(from.saturating_sub(1), end.saturating_add(1)) {
                let region = Region { start: from, end, flags, offset: 0, file: false, memfd: 0 };
                start.clip(region, |part| {
                    list.push(Detail { start: part.start, end: part.end, flags, ..Detail::default() });
                });
            } else {
                let same = |region: &&Region| region.start == from && region.end == end;
                let region = other.regions.iter().find(same);
                // How much of the file is mapped is compared above, as far as it can be.
                let resident = if region.is_some_and(|region| region.file) { 0 } else { detail.resident };
                // Linux counts what is swapped out of shared memory by all mappings.
                let swapped = if region.is_some_and(Region::is_cached) { 0 } else { detail.swapped };
                // Linux searches for a range in the 2 MiB before the end, and there are none.
                let low = end < LARGE;
                let eligible = !region.is_some_and(Region::is_cached) && !low && detail.eligible;
                list.push(Detail { resident, swapped, eligible, ..*detail });
            }
        }
        list
    };
    if linux.details.iter().any(|detail| detail.end < LARGE && detail.eligible) {
        past.count(KnownDifference::LowEligible);
    }
    same("smaps", &list(linux, quire), &list(quire, quire), |detail| {
        let Detail { start, end, flags, resident, anonymous, swapped, large, eligible } = *detail;
        format!(
            "{start:#x}-{end:#x} {} (Rss {resident}, Anonymous {anonymous}, AnonHugePages {large}, \
             Swap {swapped} kB, THPeligible {})",
            flags_text(flags),
            u8::from(eligible)
        )
    })
}

fn figures(linux: Figures, quire: Figures) -> Result<(), String> {
    let (linux, quire) = (Figures { tables: 0, ..linux }, Figures { tables: 0, ..quire });
    if linux == quire { Ok(()) } else { Err(format!("status: Linux {linux:?}, Quire {quire:?}")) }
}

/// Quire's page tables lie between what its pages need and what its mappings can have.
fn tables(wanted: Wanted, kib: u64, quire: &Observation) -> Result<(), String> {
    const SHIFTS: [u32; 3] = [21, 30, 39];
    let count = |ranges: &mut dyn Iterator<Item = (u64, u64)>| {
        let mut tables = 0;
        let mut behind = [0; SHIFTS.len()];
        for (start, end) in ranges {
            for (shift, behind) in SHIFTS.iter().zip(&mut behind) {
                let (first, last) = ((start >> shift).max(*behind), ((end - 1) >> shift) + 1);
                tables += last.saturating_sub(first);
                *behind = last.max(*behind);
            }
        }
        tables * 4
    };
    let least = count(&mut quire.pages.iter().map(|run| (run.start, run.end)));
    // Only the full list has the mappings of the oracle itself.
    let most = match wanted.details_until {
        u64::MAX => count(&mut quire.details.iter().map(|detail| (detail.start, detail.end))),
        _ => u64::MAX,
    };
    if (least..=most).contains(&kib) {
        Ok(())
    } else {
        Err(format!("VmPTE: Quire has {kib} kB, its pages need {least} kB, its mappings allow {most} kB"))
    }
}

/// Sums of pages by their addresses.
type Sums = Vec<(u64, u64)>;

/// The sums of one side: those of pages of the process's own, and those of cached pages.
fn sums_of(side: &Observation) -> [Sums; 2] {
    let mut regions = side.regions.iter().peekable();
    let mut sums = [Sums::new(), Sums::new()];
    for &(addr, sum) in &side.sums {
        while regions.next_if(|region| region.end <= addr).is_some() {}
        let Some(region) = regions.peek() else { continue };
        sums[usize::from(region.is_cached())].push((addr, sum));
    }
    sums
}

/// Those of places that the other side has, too.
fn both(these: &Sums, others: &Sums) -> Sums {
    these.iter().copied().filter(|(addr, _)| others.binary_search_by_key(addr, |sum| sum.0).is_ok()).collect()
}

fn sums(linux: &Observation, quire: &Observation) -> Result<(), String> {
    let file = |side: &Observation| {
        let pages = side.file_sums.iter().enumerate();
        pages.map(|(page, sum)| (page as u64 * PAGE_SIZE, *sum)).collect::<Sums>()
    };
    if linux.file_size != quire.file_size {
        return Err(format!(
            "the file has {:#x} bytes on Linux, {:#x} on Quire",
            linux.file_size, quire.file_size
        ));
    }
    let text = |(addr, sum): &(u64, u64)| format!("page {addr:#x} with sum {sum:#x}");
    same("the file", &file(linux), &file(quire), text)?;
    let [[own, cached], [quire_own, quire_cached]] = [sums_of(linux), sums_of(quire)];
    same("contents", &own, &quire_own, text)?;
    // A page that is only on one side because it is cached has nothing to be compared with but the file.
    same("contents", &both(&cached, &quire_cached), &both(&quire_cached, &cached), text)?;
    shows_file("Linux", linux)?;
    shows_file("Quire", quire)
}

/// Each page of the file that is mapped is as calls see it, but for what is past the end of the file.
fn shows_file(name: &str, side: &Observation) -> Result<(), String> {
    let whole = (side.file_size / PAGE_SIZE) as usize;
    let whole = &side.file_sums[..whole.min(side.file_sums.len())];
    let mut regions = side.regions.iter().peekable();
    let mut runs = side.pages.iter().peekable();
    for &(addr, sum) in &side.sums {
        while regions.next_if(|region| region.end <= addr).is_some() {}
        while runs.next_if(|run| run.end <= addr).is_some() {}
        let region = regions.peek().filter(|region| region.file && region.start <= addr);
        let mapped = runs.peek().is_some_and(|run| run.start <= addr && run.state == PageState::File);
        let Some(region) = region.filter(|_| mapped) else { continue };
        let page = (region.offset.wrapping_add(addr - region.start) / PAGE_SIZE) as usize;
        if whole.get(page).is_some_and(|there| *there != sum) {
            return Err(format!(
                "{name} shows page {page:#x} of the file at {addr:#x} with sum {sum:#x}, not as it is"
            ));
        }
    }
    Ok(())
}
