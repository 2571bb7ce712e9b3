//! What the machine of a replay is like.

use clap::Args;
use quire_mm::Techniques;
use quire_replay::SwapSpec;

#[derive(Debug, Default, Args)]
pub(crate) struct MachineArguments {
    /// RAM of the machine, e.g. 64M; by default enough for the recording. Implies --contents
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Memory")]
    pub(crate) memory: Option<u64>,
    /// What the programs may have together, e.g. 48M: memory.max of a memory cgroup. RAM that a zram device
    /// takes is not part of it. Implies --contents
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Memory")]
    pub(crate) limit: Option<u64>,
    /// What a cgroup was measured to be charged beside anonymous and shared memory: kernel memory and pages
    /// of files. By default that is the replay's page tables, and what threads, processes and mappings take
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "limit", help_heading = "Memory")]
    pub(crate) beside: Option<u64>,
    /// The program's peak of anonymous memory without pressure. A recording under pressure may have another
    /// peak: --limit and --memory are scaled by the ratio of the peaks. No effect on other recordings
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Memory")]
    pub(crate) peak: Option<u64>,
    /// Where pages go when memory is short: KIND:SIZE, where KIND is zram, zswap, disk, ram, file or
    /// file:PATH, e.g. zram:256M
    #[arg(long, value_name = "KIND:SIZE", value_parser = swap, help_heading = "Memory")]
    pub(crate) swap: Option<SwapSpec>,
    /// Go on with --memory or --limit although the recording does not say what was used again: too few major
    /// faults are found
    #[arg(long, help_heading = "Memory")]
    pub(crate) assume_no_reuse: bool,
    /// Fill pages so that they compress as the recorded program's did (as far as they were sampled)
    #[arg(long, help_heading = "Memory")]
    pub(crate) contents: bool,
    /// Choose a strategy for a technique; may be given several times (pcp=order0|posted|all,
    /// gather=pages|runs, tables=keep|free, mremap=ptes|puds, swap=bypass|all)
    #[arg(long = "technique", value_name = "NAME=VALUE", value_parser = technique, help_heading = "Policy")]
    pub(crate) techniques: Vec<(String, String)>,
    /// Replay under this setting of huge pages, by its name in `quire advise`, e.g. thp=always or mthp=64K
    #[arg(long, value_name = "NAME", help_heading = "Policy")]
    pub(crate) setting: Option<String>,
    /// Compare every TLB hit with the page tables
    #[arg(long, help_heading = "Checks")]
    pub(crate) paranoid: bool,
}

/// The techniques as chosen. The values were checked when they were parsed.
pub(crate) fn chosen_techniques(choices: &[(String, String)]) -> Techniques {
    let mut chosen = Techniques::default();
    for (name, value) in choices {
        let set = chosen.set(name, value);
        debug_assert!(set.is_ok(), "the parser let a wrong technique through");
    }
    chosen
}

pub(crate) fn technique(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, e.g. pcp=order0")?;
    Techniques::default().set(name, value).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses a kind of swap and its size. The size is what follows the last colon: a path may have some, too.
fn swap(text: &str) -> Result<SwapSpec, String> {
    let (kind, bytes) = text.rsplit_once(':').ok_or("expected KIND:SIZE, e.g. zram:256M")?;
    Ok(SwapSpec { kind: kind.parse()?, bytes: size(bytes)? })
}

/// Parses a size with an optional suffix K, M, G or T (powers of 1024).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err("expected a size such as 512K, 64M or 2G".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a size such as 512K, 64M or 2G")?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "the size is out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_replay::SwapKind;

    #[test]
    fn sizes_have_suffixes_and_limits() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("2gib"), Ok(2 << 30));
        assert_eq!(size("4096"), Ok(4096));
        for wrong in ["", "M", "-1", "0", "12X", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn swap_is_a_kind_and_a_size() {
        let spec = |kind, bytes| Ok(SwapSpec { kind, bytes });
        assert_eq!(swap("zram:256M"), spec(SwapKind::Zram, 256 << 20));
        assert_eq!(swap("zswap:256M"), spec(SwapKind::Zswap, 256 << 20));
        assert_eq!(swap("disk:1G"), spec(SwapKind::Disk, 1 << 30));
        assert_eq!(swap("file:1G"), spec(SwapKind::File(None), 1 << 30));
        assert_eq!(swap("file:/a:b/c:1G"), spec(SwapKind::File(Some("/a:b/c".into())), 1 << 30));
        for wrong in ["", "zram", "zram:", "zram:much", "tape:1G", "file:/a", ":1G"] {
            assert!(swap(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn techniques_are_checked_when_they_are_parsed() {
        assert!(technique("pcp=order0").is_ok());
        assert!(technique("pcp").is_err() && technique("pcp=7").is_err() && technique("x=y").is_err());
    }
}
