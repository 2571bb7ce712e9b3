//! The file that says what `quire sweep` replays of each recording.

use crate::args::{percent, size, technique};
use crate::failure::Failure;
use quire_advise::{Amount, Grid, LimitSwap, Tries, technique_names};
use serde::Deserialize;
use std::io::Read;
use std::path::Path;

/// The file. What it does not name is as `quire advise` has it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    settings: Option<Vec<String>>,
    limits: Option<Vec<String>>,
    swaps: Option<Vec<String>>,
    memory: Option<Vec<String>>,
    techniques: Option<Vec<String>>,
}

/// No such file is larger, in bytes.
const LARGEST: u64 = 1 << 20;

/// Reads it.
pub(super) fn read(path: &Path) -> Result<Grid, Failure> {
    let wrong = |why: &dyn std::fmt::Display| Failure::input(format!("{}: {why}", path.display()));
    let mut text = String::new();
    let file = quire_advise::open_regular(path).map_err(|error| wrong(&error))?;
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > LARGEST {
        return Err(wrong(&"far too long for a grid"));
    }
    let file: File = toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        wrong(&format_args!("line {line}: {}", error.message().lines().collect::<Vec<_>>().join("; ")))
    })?;
    grid(file).map_err(|why| wrong(&why))
}

fn grid(file: File) -> Result<Grid, String> {
    let default = Tries::default();
    if let Some(why) = file.settings.iter().flatten().find_map(|name| Grid::unknown_setting(name)) {
        return Err(format!("settings: {why}"));
    }
    let (mut percents, mut amounts) = (Vec::new(), Vec::new());
    match &file.limits {
        None => percents = default.percents,
        Some(limits) => {
            for limit in limits {
                match percent(limit) {
                    Some(percent) => percents.push(percent),
                    None => amounts.push(Amount::Limit(size(limit).map_err(|_| {
                        format!("limits: {limit}: expected a share as 75%, or a size as 256M")
                    })?)),
                }
            }
        }
    }
    for amount in &amounts {
        is_possible("limits", *amount)?;
    }
    percents.sort_unstable_by(|one, other| other.cmp(one));
    percents.dedup();
    for memory in file.memory.iter().flatten() {
        let amount = Amount::Ram(size(memory).map_err(|why| format!("memory: {memory}: {why}"))?);
        is_possible("memory", amount)?;
        amounts.push(amount);
    }
    amounts.sort_unstable();
    amounts.dedup();
    let named = |name: &String| {
        let found = LimitSwap::ALL.into_iter().find(|swap| swap.name() == name);
        found.ok_or_else(|| {
            format!("swaps: {name}: expected one of {}", LimitSwap::ALL.map(LimitSwap::name).join(", "))
        })
    };
    let mut swaps = match &file.swaps {
        None => default.swaps,
        Some(names) => names.iter().map(named).collect::<Result<Vec<_>, _>>()?,
    };
    swaps.sort_unstable();
    swaps.dedup();
    if swaps.is_empty() && !(percents.is_empty() && amounts.is_empty()) {
        return Err("swaps: name one, since there are limits".to_owned());
    }
    let mut techniques: Vec<Vec<String>> = Vec::new();
    for text in file.techniques.iter().flatten() {
        let words = techniques_of(text).map_err(|why| format!("techniques: {text}: {why}"))?;
        // However it is written, it is one row.
        if !techniques.contains(&words) {
            techniques.push(words);
        }
    }
    Ok(Grid { settings: file.settings, techniques, tries: Tries { percents, amounts, swaps } })
}

/// Whether there can be a row of so much memory.
fn is_possible(list: &str, amount: Amount) -> Result<(), String> {
    let (bytes, possible) = (amount.bytes(), amount.possible());
    let told = |bytes: u64| match bytes {
        bytes if bytes >= 1 << 40 => format!("{}T", bytes >> 40),
        bytes if bytes >= 1 << 20 => format!("{}M", bytes >> 20),
        bytes => bytes.to_string(),
    };
    let (least, most) = (told(*possible.start()), told(*possible.end()));
    let wrong = || format!("{list}: {bytes} bytes: no replay has that; from {least} to {most} is possible");
    possible.contains(&bytes).then_some(()).ok_or_else(wrong)
}

/// The words of an entry, in the order of the techniques.
fn techniques_of(text: &str) -> Result<Vec<String>, String> {
    let words = text.split(',').map(technique).collect::<Result<Vec<_>, _>>()?;
    let mut ordered = Vec::new();
    for name in technique_names() {
        let mut mine = words.iter().filter(|(word, _)| word == name);
        ordered.extend(mine.next().map(|(name, value)| format!("{name}={value}")));
        if mine.next().is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Grid, String> {
        grid(toml::from_str(text).map_err(|error| error.to_string())?)
    }

    #[test]
    fn an_empty_file_is_what_advise_tries() {
        assert_eq!(of("").unwrap(), Grid::default());
    }

    #[test]
    fn each_list_says_what_is_replayed() {
        let found = of(
            "settings = ['thp=always']\nlimits = ['50%', '256M', '75%', '50%']\nswaps = ['disk', 'zram-lz4']\n\
             memory = ['4G']\ntechniques = ['gather=pages,pcp=order0', 'pcp=order0,gather=pages']",
        );
        let found = found.unwrap();
        assert_eq!(found.settings, Some(vec!["thp=always".to_owned()]));
        assert_eq!(found.tries.percents, [75, 50]);
        assert_eq!(found.tries.amounts, [Amount::Limit(256 << 20), Amount::Ram(4 << 30)]);
        assert_eq!(found.tries.swaps, [LimitSwap::Zram, LimitSwap::Disk]);
        assert_eq!(found.techniques, [["pcp=order0", "gather=pages"]], "each once");
        assert_eq!(of("limits = []").unwrap().tries.percents, [0; 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("settings = ['thp=sometimes']", "thp=sometimes"),
            ("limits = ['120%']", "120%"),
            ("limits = [75]", "string"),
            ("memory = ['x']", "memory: x"),
            ("memory = ['4K']", "memory: 4096 bytes: no replay has that; from 1M to 15T"),
            ("memory = ['100000T']", "no replay has that"),
            ("limits = ['300000G']", "no replay has that; from 1 to 256T"),
            ("swaps = ['tape']", "zswap-lz4"),
            ("swaps = []", "name one"),
            ("techniques = ['gather=7']", "gather=7"),
            ("techniques = ['gather=pages,gather=runs']", "gather is there twice"),
            ("setting = []", "setting"),
        ] {
            let why = of(text).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
