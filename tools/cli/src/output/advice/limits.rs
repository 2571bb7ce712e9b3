//! What `quire advise` prints about memory limits.

use super::amounts::amount_name;
use super::range::{put_known, put_measured};
use crate::output::columns::{aligned, headed};
use crate::output::quantity::{count, size};
use crate::output::{say, say_wrapped};
use comfy_table::Table;
use quire_advise::{Amount, Enough, LimitRow, LimitSetting, LimitValidation, Limits, Means, Priced, Range};
use serde_json::{Map, Value, json};

/// A share of the time as a percentage: with a digit after the point where it is small.
fn percent(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", share * 100.0) } else { format!("{:.0} %", share * 100.0) }
}

/// A range by half of its width, if it has any.
fn spread(range: Range, of: fn(f64) -> String) -> String {
    if range.spread() == 0.0 { String::new() } else { format!(" +-{}", of(range.spread())) }
}

/// Prints the limits and the curve.
pub(super) fn print(limits: &Limits, seconds: Range) {
    if limits.rows.is_empty() {
        print_amounts(limits, seconds);
        return;
    }
    let of = match (limits.known, limits.recordings) {
        (false, _) => String::new(),
        (true, 1) => " from a recording under pressure,".to_owned(),
        (true, recordings) => format!(" from {recordings} recordings under pressure,"),
    };
    say(format_args!(
        "\nMemory limits,{of} in percent of {} (the peak of anonymous and\nshared memory of all processes) and {} \
         beside it, which stays\n(page tables and what else the kernel keeps, locked files); other files come on top:",
        size(limits.need.anonymous as f64),
        size(limits.need.stays as f64)
    ));
    if let Some(line) = left_out(limits) {
        say_wrapped(&line);
    }
    if limits.shown {
        say("The program reads its memory limit: each row is from recordings in which it read about \
             that one.");
    }
    if !limits.known {
        print_fits(limits);
        print_amounts(limits, seconds);
        return;
    }
    say(table(&limits.rows, seconds));
    if let Some((first, _)) = limits.curve.first() {
        say(format_args!("\nLess and less memory with {}, from one recording:", first.swap.name()));
        say(table(&limits.curve, seconds));
    }
    print_amounts(limits, seconds);
    say("");
}

/// Prints limits in bytes and RAM of machines, if such were asked for.
fn print_amounts(limits: &Limits, seconds: Range) {
    if limits.amounts.is_empty() {
        return;
    }
    say("\nLimits in bytes, and machines with so much RAM:");
    let mut table = headed(HEADINGS);
    for (amount, swap, row) in &limits.amounts {
        add_row(&mut table, amount_name(*amount, *swap, may_be_killed(row)), amount.bytes(), row, seconds);
    }
    say(aligned(table, 1..));
}

/// The kinds of swap that no limit was tried with.
fn left_out(limits: &Limits) -> Option<String> {
    let kinds = limits.lacking.iter().map(|(swap, why)| format!("{} ({why})", swap.name()));
    let kinds: Vec<String> = kinds.collect();
    let told = || format!("Left out, since this host cannot set it up: {}.", kinds.join("; "));
    (!kinds.is_empty()).then(told)
}

/// A line a limit: with which swap the program fits.
fn print_fits(limits: &Limits) {
    let first = limits.rows.first().map(|(setting, _)| setting.swap);
    for (setting, _) in limits.rows.iter().filter(|(setting, _)| Some(setting.swap) == first) {
        let mine = limits.rows.iter().filter(|(other, _)| other.percent == setting.percent);
        let (fitting, not): (Vec<_>, Vec<_>) = mine.partition(|(_, row)| row.fits());
        let names = |rows: &[&(LimitSetting, LimitRow)]| {
            rows.iter().map(|(setting, _)| setting.swap.name()).collect::<Vec<_>>().join(", ")
        };
        let told = match (&fitting[..], &not[..]) {
            (_, []) => format!("fits, with {}", names(&fitting)),
            ([], _) => "does not fit".to_owned(),
            _ => format!("fits with {}, does not fit with {}", names(&fitting), names(&not)),
        };
        say(format_args!("  limit={}% ({}): {told}", setting.percent, size(setting.bytes as f64)));
    }
}

/// A setting's name, and what is to be said of its prediction.
fn name(setting: &LimitSetting, row: &LimitRow) -> String {
    let notes =
        [(!setting.is_validated()).then_some("not validated"), may_be_killed(row).then_some("may be killed")];
    let notes: Vec<&str> = notes.into_iter().flatten().collect();
    if notes.is_empty() { setting.name() } else { format!("{} ({})", setting.name(), notes.join(", ")) }
}

fn may_be_killed(row: &LimitRow) -> bool {
    row.figures.is_some_and(|figures| figures.may_be_killed)
}

/// The headings of a table of limits.
const HEADINGS: [&str; 9] = [
    "limit",
    "memory",
    "major faults",
    "swapped in",
    "swapped out",
    "compressed",
    "stalled\nonce",
    "again",
    "of its time",
];

fn add_row(table: &mut Table, name: String, bytes: u64, row: &LimitRow, seconds: Range) {
    let memory = size(bytes as f64);
    let Some(figures) = &row.figures else {
        let found = if row.fits() { "fits" } else { "does not fit" };
        table.add_row([name, memory, found.to_owned()]);
        return;
    };
    let seconds_of = |ns: f64| format!("{:.2} s", ns / 1e9);
    table.add_row([
        name,
        memory,
        format!("{}{}", count(figures.major_faults.median), spread(figures.major_faults, count)),
        size(figures.swap_read.median),
        size(figures.swap_written.median),
        figures.compressed.map_or_else(String::new, |compressed| size(compressed.median)),
        seconds_of(figures.once_ns.median),
        seconds_of(figures.stall_ns.median - figures.once_ns.median),
        row.stalled_share(seconds).map_or_else(String::new, |share| percent(share.median)),
    ]);
}

fn table(rows: &[(LimitSetting, LimitRow)], seconds: Range) -> Table {
    let mut table = headed(HEADINGS);
    for (setting, row) in rows {
        add_row(&mut table, name(setting, row), setting.bytes, row, seconds);
    }
    aligned(table, 1..)
}

fn price(priced: &Priced) -> String {
    let note = match (priced.may_be_killed, priced.setting.is_validated()) {
        (true, _) => ": Linux may kill it there",
        (false, true) => "",
        (false, false) => ", not validated",
    };
    let once = if priced.once_seconds < 0.005 {
        String::new()
    } else {
        format!(", and {:.2} s once", priced.once_seconds)
    };
    format!(
        "{} (for {} % of its memory{note}) for about {} of its time ({} to {}) and {} major \
         faults{once}",
        size(priced.setting.bytes as f64),
        priced.setting.percent,
        percent(priced.share.median),
        percent(priced.share.min),
        percent(priced.share.max),
        count(priced.major_faults)
    )
}

/// What is enough, in sentences; lines that begin with a blank are commands.
pub(super) fn verdict(limits: &Limits) -> Vec<String> {
    if limits.rows.is_empty() {
        return Vec::new();
    }
    if !limits.known {
        let misfit = limits.rows.iter().find(|(_, row)| !row.fits());
        let fits = match misfit {
            None => "It fits within each of these limits".to_owned(),
            Some((setting, _)) => format!("It does not fit within {}", setting.name()),
        };
        return vec![format!(
            "Memory: {fits}. The cost is known only from recordings made under pressure: these do not show which \
             pages are used again, and when."
        )];
    }
    let Some(enough) = &limits.enough else {
        let why = limits.unknown.as_ref().map(|why| format!("No limit is told: {why}."));
        return std::iter::once(no_limit(limits).to_owned()).chain(shared(limits)).chain(why).collect();
    };
    let is_saving = enough.saved > 0;
    let mut lines = vec![if is_saving {
        format!(
            "Memory: enough is {}, with {}. That saves {} of the host's RAM at the peak{}.",
            price(&enough.least),
            enough.least.setting.swap.name(),
            size(enough.saved as f64),
            if enough.least.setting.swap.compressor().is_some() {
                ", what is compressed counted"
            } else {
                ""
            }
        )
    } else {
        format!(
            "Memory: enough is {}. That saves nothing of the host's RAM, so that no commands follow.",
            price(&enough.least)
        )
    }];
    if !enough.smaller.is_empty() {
        let smaller: Vec<String> = enough.smaller.iter().map(price).collect();
        lines.push(format!("Less costs more: {}.", smaller.join("; ")));
    }
    lines.extend(shared(limits));
    if let Some(why) = limits.unknown.as_ref().filter(|_| is_saving) {
        lines.push(format!("No MemoryHigh or MemoryMax is told: {why}."));
    }
    if !is_saving || limits.unknown.is_some() {
        return lines;
    }
    let pool = if enough.pool > 0 {
        format!(
            " Of both, {} are for the pool of zswap, which version 2 of cgroups charges to the program.",
            size(enough.pool as f64)
        )
    } else {
        String::new()
    };
    lines.push(format!(
        "Set {} with headroom for files and what the kernel keeps for it, and kill it above {} only.{pool} First \
         the swap, by one of its lines, then the limit: what is over it and has no swap is killed. Swap is the \
         host's: other programs fill it, too. Undo the limit first, in the same shell. A reboot undoes all but a \
         swap file. Its group must be allowed to swap (memory.swap.max, or memory.memsw.limit_in_bytes and \
         memory.swappiness):",
        size(enough.high as f64),
        size(enough.max as f64)
    ));
    for means in Means::all(enough) {
        lines.extend(commands(&means));
    }
    lines
}

/// What every limit has room for.
fn shared(limits: &Limits) -> Option<String> {
    (limits.shared_after_fork > 0).then(|| {
        format!(
            "{} of its memory is mapped more than once. It cannot be paged out while a program is \
             recorded, so that its later uses are not known: each limit has room for all of it.",
            size(limits.shared_after_fork as f64)
        )
    })
}

/// Why no limit is advised where some are known.
fn no_limit(limits: &Limits) -> &'static str {
    let is_known = |(_, row): &(LimitSetting, LimitRow)| row.figures.is_some();
    let fits = |(_, row): &(LimitSetting, LimitRow)| row.fits();
    match (limits.rows.iter().any(is_known), limits.rows.iter().all(fits)) {
        (true, _) => {
            "Memory: no smaller limit is cheap: within each of them its threads are stalled for 2 % of the time or \
             more, or Linux may kill it, or it does not fit."
        }
        (false, true) => {
            "Memory: it fits within each of these limits. What they cost is not known: more than that was \
             resident while it was recorded under pressure."
        }
        (false, false) => {
            "Memory: it does not fit within all of these limits, and what the others cost is not known: more than \
             that was resident while it was recorded under pressure."
        }
    }
}

fn commands(means: &Means) -> [String; 2] {
    let name = format!("{}:", means.name.replace('_', " "));
    [
        format!("  {name:<16}{}", means.apply.join("; ")),
        format!("  {:<16}{}", "  undo:", means.undo.join("; ")),
    ]
}

fn object(setting: &LimitSetting, row: &LimitRow, is_curve: bool, seconds: Range) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("setting".to_owned(), json!(setting.name()));
    object.insert("limit".to_owned(), json!(setting.bytes));
    object.insert("curve".to_owned(), json!(is_curve));
    object.insert("validated".to_owned(), json!(setting.is_validated()));
    object.insert("fits".to_owned(), json!(row.fits()));
    object.insert("does_not_fit".to_owned(), json!(row.does_not_fit));
    let figures = row.figures.as_ref();
    for (name, range) in [
        ("major_faults", figures.map(|figures| figures.major_faults)),
        ("swap_read", figures.map(|figures| figures.swap_read)),
        ("swap_written", figures.map(|figures| figures.swap_written)),
        ("swapped", figures.map(|figures| figures.swapped)),
        ("compressed", figures.and_then(|figures| figures.compressed)),
        ("stall_ns", figures.map(|figures| figures.stall_ns)),
        ("stall_once_ns", figures.map(|figures| figures.once_ns)),
        ("stalled_share", row.stalled_share(seconds)),
    ] {
        put_known(&mut object, name, range);
    }
    object.insert("stays".to_owned(), json!(setting.need.stays));
    object.insert("may_be_killed".to_owned(), json!(figures.map(|figures| figures.may_be_killed)));
    object
}

/// An object a limit.
pub(super) fn objects(limits: &Limits, seconds: Range, validation: Option<&LimitValidation>) -> Vec<Value> {
    let mut objects = Vec::new();
    for (rows, is_curve) in [(&limits.rows, false), (&limits.curve, true)] {
        for (setting, row) in rows {
            let mut object = object(setting, row, is_curve, seconds);
            object.insert("limit_shown".to_owned(), json!(limits.shown));
            if let Some(found) = validation.filter(|found| found.setting == *setting) {
                put_measured(&mut object, &found.figures, found.seconds);
                object.insert("beside".to_owned(), json!(found.beside));
                object.insert("killed_runs".to_owned(), json!(found.killed));
                object.insert("late_runs".to_owned(), json!(found.late));
            }
            objects.push(Value::Object(object));
        }
    }
    for (amount, swap, row) in &limits.amounts {
        let (bytes, need) = (amount.bytes(), limits.need);
        let setting = LimitSetting { percent: 0, bytes, need, swap: *swap };
        let mut object = object(&setting, row, false, seconds);
        object.insert("setting".to_owned(), json!(amount_name(*amount, *swap, false)));
        object.insert("limit_shown".to_owned(), json!(limits.shown));
        object.insert("machine".to_owned(), json!(matches!(amount, Amount::Ram(_))));
        objects.push(Value::Object(object));
    }
    objects
}

/// Prints how the runs within a limit ended.
pub(super) fn print_ends(validation: &LimitValidation, runs: u16) {
    let LimitValidation { setting, fits, killed, late, .. } = validation;
    let name = setting.name();
    let predicted = if *fits { "it was predicted to fit" } else { "it was predicted not to fit" };
    if *killed > 0 {
        say(format_args!("{name}: Linux killed {killed} of {runs} runs for memory; {predicted}."));
    }
    if *late > 0 {
        say(format_args!("{name}: {late} of {runs} runs took too long and were ended; {predicted}."));
    }
    if let Some(beside) = validation.beside {
        say(format_args!(
            "{name}: the cgroup was charged {} beside anonymous and shared memory (kernel, files); what is \
             predicted here takes that as measured.",
            size(beside as f64)
        ));
    }
    if killed + late == 0 {
        say(format_args!("{name}: no run was killed for memory; {predicted}."));
    }
}

/// The kinds of swap that no limit was tried with, and why not.
pub(super) fn swaps_left_out(limits: &Limits) -> Vec<Value> {
    limits.lacking.iter().map(|(swap, why)| json!({ "swap": swap.name(), "why": why })).collect()
}

/// The verdict's object of what is enough.
pub(super) fn enough(limits: &Limits) -> Value {
    let Some(Enough { least, smaller, high, max, pool, swap_bytes, saved }) = &limits.enough else {
        return Value::Null;
    };
    let priced = |priced: &Priced| {
        json!({
            "setting": priced.setting.name(),
            "limit": priced.setting.bytes,
            "major_faults": priced.major_faults,
            "stalled_share": priced.share.median,
            "stalled_share_range": [priced.share.min, priced.share.max],
            "stall_once_ns": priced.once_seconds * 1e9,
            "may_be_killed": priced.may_be_killed,
        })
    };
    let known = limits.unknown.is_none();
    let means = limits.enough.iter().filter(|enough| known && enough.saved > 0).flat_map(Means::all);
    let means = means.map(|means| json!({ "means": means.name, "apply": means.apply, "undo": means.undo }));
    json!({
        "least": priced(least),
        "smaller": smaller.iter().map(priced).collect::<Vec<_>>(),
        "memory_high": known.then_some(high),
        "memory_max": known.then_some(max),
        "zswap_pool": known.then_some(pool),
        "unknown": limits.unknown,
        "swap_size": swap_bytes,
        "ram_saved": saved,
        "means": means.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_advise::{LimitFigures, LimitSwap, Need};

    fn of(rows: &[LimitRow]) -> Limits {
        let setting =
            LimitSetting { percent: 50, bytes: 1 << 20, need: Need::default(), swap: LimitSwap::Zram };
        Limits {
            known: true,
            rows: rows.iter().map(|row| (setting, row.clone())).collect(),
            ..Limits::default()
        }
    }

    /// A colon announces commands: nothing stands between.
    #[test]
    fn the_commands_follow_what_announces_them() {
        let (zswap, zram) = (LimitSwap::Zswap, LimitSwap::Zram);
        for (swap, pool) in [(zswap, 20 << 20), (zram, 0)] {
            let setting = LimitSetting { percent: 50, bytes: 1 << 20, need: Need::default(), swap };
            let least = Priced {
                setting,
                major_faults: 0.0,
                share: Range::default(),
                once_seconds: 0.0,
                may_be_killed: false,
            };
            let (high, max) = (30 << 20, 40 << 20);
            let swap_bytes = 64 << 20;
            let enough = Enough { least, smaller: Vec::new(), high, max, pool, swap_bytes, saved: 10 << 20 };
            let lines = |saved| {
                let enough = Some(Enough { saved, ..enough.clone() });
                verdict(&Limits { enough, ..of(&[LimitRow::default()]) })
            };
            let nothing = lines(0);
            assert!(nothing.concat().contains("saves nothing") && nothing.len() == 1, "{nothing:?}");
            let lines = lines(enough.saved);
            let colon = lines.iter().position(|line| line.ends_with(':')).expect("commands");
            assert!(lines[colon + 1..].iter().all(|line| line.starts_with(' ')), "{lines:?}");
            assert_eq!(lines[colon].contains("20.0 MiB are for the pool"), pool > 0, "{lines:?}");
        }
    }

    #[test]
    fn memory_that_is_shared_after_a_fork_is_told() {
        let limits = Limits { shared_after_fork: 96 << 20, ..of(&[LimitRow::default()]) };
        assert!(verdict(&limits).concat().contains("96.0 MiB of its memory is mapped more than once"));
        assert!(!verdict(&of(&[LimitRow::default()])).concat().contains("more than once"));
    }

    #[test]
    fn what_the_host_lacks_is_told_in_one_line() {
        assert_eq!(left_out(&Limits::default()), None);
        let lacking =
            vec![(LimitSwap::ZramZstd, "no zstd".to_owned()), (LimitSwap::Zswap, "no zswap".to_owned())];
        let line = left_out(&Limits { lacking, ..Limits::default() }).unwrap();
        assert!(line.ends_with(": zram-zstd (no zstd); zswap-lz4 (no zswap)."), "{line}");
    }

    #[test]
    fn a_cost_that_is_not_known_is_not_called_high() {
        let fits = LimitRow { does_not_fit: None, figures: None };
        let misfit = LimitRow { does_not_fit: Some("no memory".to_owned()), figures: None };
        let known = LimitRow { does_not_fit: None, figures: Some(LimitFigures::default()) };
        let told = |rows: &[LimitRow]| verdict(&of(rows)).concat();
        assert!(told(std::slice::from_ref(&fits)).contains("fits within each"));
        assert!(told(&[misfit, fits]).contains("does not fit within all"));
        assert!(told(&[known]).contains("2 % of the time"));
    }
}
