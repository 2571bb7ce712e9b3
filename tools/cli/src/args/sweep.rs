//! What `quire sweep` takes.

use super::size;
use clap::Args;
use quire_advise::{Amount, Asked, Less, LimitSwap, Meant, Need, Number, PlannedLine, Request};
use quire_replay::KernelCosts;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SweepArguments {
    /// Recordings, of any programs
    #[arg(required = true, value_name = "RECORDING")]
    pub(crate) files: Vec<PathBuf>,
    /// What is replayed of each, in TOML; by default what `quire advise` tries
    #[arg(long, value_name = "FILE", conflicts_with = "one")]
    pub(crate) grid: Option<PathBuf>,
    /// The folder for results: each line writes a file of its own into it, whole or not at all. Without it
    /// lines print their results. With --one the file
    #[arg(short, long, value_name = "PLACE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Number of replays at once, for what limits are shares of; by default one per CPU
    #[arg(long, value_name = "N", conflicts_with = "one")]
    pub(crate) jobs: Option<usize>,
    /// Make the replay of one line, of one recording
    #[arg(long, requires = "setting", help_heading = "One line, as it is printed")]
    pub(crate) one: bool,
    #[command(flatten)]
    pub(crate) line: LineArguments,
}

/// What is replayed by one line.
#[derive(Debug, Args)]
#[command(next_help_heading = "One line, as it is printed")]
pub(crate) struct LineArguments {
    /// Which line of how many of which sweep it is: `quire advise --from` names those that are missing
    #[arg(long, value_name = "N/LINES:SWEEP", requires = "one")]
    number: Option<Number>,
    /// The first digits of the SHA-256 that the recording had when the line was printed: another one is
    /// refused
    #[arg(long, value_name = "DIGITS", value_parser = contents, requires = "one")]
    contents: Option<String>,
    /// The setting, e.g. thp=always or mthp=64K,gather=pages
    #[arg(long, value_name = "NAME", requires = "one")]
    setting: Option<String>,
    /// What the kernel keeps for a thread, a process and a mapping, in bytes: as `quire calibrate` measured
    /// it where the lines were printed
    #[arg(long, value_name = "BYTES,BYTES,BYTES", value_parser = kernel, requires = "one")]
    kernel: Option<KernelCosts>,
    /// The phase of khugepaged
    #[arg(long, value_name = "N", requires_all = ["one", "phased"])]
    phase: Option<usize>,
    /// A limit of a memory cgroup
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = size,
        groups = ["amount", "phased"],
        requires_all = ["one", "swap", "meant", "need"]
    )]
    limit: Option<u64>,
    /// RAM of the machine
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = size,
        groups = ["amount", "phased"],
        requires_all = ["one", "swap", "meant", "need"]
    )]
    memory: Option<u64>,
    /// What that was in the grid: a share of the peak, or a size
    #[arg(long, value_name = "PERCENT%|limit:SIZE|memory:SIZE", value_parser = meant, requires = "amount")]
    meant: Option<Meant>,
    /// What the program needs: its peak of anonymous memory, and what stays in memory beside that
    #[arg(long, value_name = "BYTES,BYTES", value_parser = need, requires = "amount")]
    need: Option<Need>,
    /// The peak to which a recording under pressure is scaled
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "amount")]
    peak: Option<u64>,
    /// Where pages go: zram, zswap, or ram where only fitting is asked for
    #[arg(long, value_name = "KIND:SIZE", value_parser = swap, requires = "amount")]
    swap: Option<(Option<LimitSwap>, u64)>,
    /// The kinds of swap that the result is for
    #[arg(
        long,
        value_name = "KIND,...",
        value_parser = limit_swap,
        value_delimiter = ',',
        requires = "amount"
    )]
    serves: Vec<LimitSwap>,
    /// Follow what of the peak is used again
    #[arg(long, requires = "one", conflicts_with = "phased")]
    peak_use: bool,
    /// Stop before the event of this number, and tell what mappings hold
    #[arg(long, value_name = "EVENT", requires = "one", group = "phased")]
    mappings: Option<u64>,
}

impl LineArguments {
    /// What it asks for. None if it names no setting.
    pub(crate) fn request(&self) -> Option<Request> {
        let amount = self.limit.map(Amount::Limit).or(self.memory.map(Amount::Ram));
        let asked = match (amount.zip(self.meant).zip(self.swap), self.mappings) {
            (Some(((amount, meant), (swap, swap_bytes))), _) => {
                Asked::Less(Less { amount, meant, beside: None, peak: self.peak, swap, swap_bytes })
            }
            (None, Some(event)) => Asked::Mappings(event),
            (None, None) if self.peak_use => Asked::PeakUse,
            (None, None) => Asked::Life,
        };
        let (phase, kernel, serves) = (self.phase, self.kernel, self.serves.clone());
        Some(Request { setting: self.setting.clone()?, phase, kernel, asked, serves, need: self.need })
    }

    /// What its recording has to be.
    pub(crate) fn contents(&self) -> Option<&str> {
        self.contents.as_deref()
    }

    /// Which line it is.
    pub(crate) fn number(&self) -> Option<Number> {
        self.number.clone()
    }
}

/// The words of a line on the command line, without its recording.
pub(crate) fn words(line: &PlannedLine) -> Vec<OsString> {
    let PlannedLine { request, number, contents, .. } = line;
    let mut words = Vec::new();
    let mut put = |option: &str, value: String| words.extend([format!("--{option}"), value]);
    put("number", number.to_string());
    put("contents", contents.clone());
    put("setting", request.setting.clone());
    if let Some(KernelCosts { thread, process, mapping }) = request.kernel {
        put("kernel", format!("{thread},{process},{mapping}"));
    }
    if let Some(phase) = request.phase {
        put("phase", phase.to_string());
    }
    match &request.asked {
        Asked::Life => {}
        Asked::PeakUse => words.push("--peak-use".to_owned()),
        Asked::Mappings(event) => put("mappings", event.to_string()),
        Asked::Less(less) => {
            match less.amount {
                Amount::Limit(bytes) => put("limit", bytes.to_string()),
                Amount::Ram(bytes) => put("memory", bytes.to_string()),
            }
            put(
                "meant",
                match less.meant {
                    Meant::Percent(percent) => format!("{percent}%"),
                    Meant::Amount(Amount::Limit(bytes)) => format!("limit:{bytes}"),
                    Meant::Amount(Amount::Ram(bytes)) => format!("memory:{bytes}"),
                },
            );
            if let Some(need) = request.need {
                put("need", format!("{},{}", need.anonymous, need.stays));
            }
            if let Some(peak) = less.peak {
                put("peak", peak.to_string());
            }
            put("swap", format!("{}:{}", kind(less.swap), less.swap_bytes));
            let serves: Vec<&str> = request.serves.iter().map(|swap| swap.name()).collect();
            if !serves.is_empty() {
                put("serves", serves.join(","));
            }
        }
    }
    words.into_iter().map(OsString::from).collect()
}

/// The kinds of swap that replays have.
const KINDS: [(&str, Option<LimitSwap>); 3] =
    [("zram", Some(LimitSwap::Zram)), ("zswap", Some(LimitSwap::Zswap)), ("ram", None)];

fn kind(swap: Option<LimitSwap>) -> &'static str {
    KINDS.iter().find(|(_, known)| *known == swap).map_or("ram", |(name, _)| name)
}

fn swap(text: &str) -> Result<(Option<LimitSwap>, u64), String> {
    let (name, bytes) = text.split_once(':').ok_or("expected KIND:SIZE, e.g. zram:256M")?;
    let kind = KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    Ok((kind.ok_or("expected zram, zswap or ram")?, size(bytes)?))
}

/// A kind of swap behind a limit, by its name.
pub(crate) fn limit_swap(text: &str) -> Result<LimitSwap, String> {
    LimitSwap::ALL
        .into_iter()
        .find(|swap| swap.name() == text)
        .ok_or_else(|| format!("expected one of {}", LimitSwap::ALL.map(LimitSwap::name).join(", ")))
}

fn contents(text: &str) -> Result<String, String> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_one = (1..=64).contains(&text.len()) && text.bytes().all(is_digit);
    is_one.then(|| text.to_owned()).ok_or_else(|| "expected digits as sha256sum prints them".to_owned())
}

/// Numbers with commas.
fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

fn need(text: &str) -> Result<Need, String> {
    match numbers(text).as_deref() {
        Some(&[anonymous, stays]) => Ok(Need { anonymous, stays }),
        _ => Err("expected two numbers of bytes, with a comma".to_owned()),
    }
}

fn kernel(text: &str) -> Result<KernelCosts, String> {
    match numbers(text).as_deref() {
        Some(&[thread, process, mapping]) => Ok(KernelCosts { thread, process, mapping }),
        _ => Err("expected three numbers of bytes, with commas".to_owned()),
    }
}

/// A share of the peak, as `75%`.
pub(crate) fn percent(text: &str) -> Option<u32> {
    text.strip_suffix('%')?.parse().ok().filter(|percent| (1..=100).contains(percent))
}

fn meant(text: &str) -> Result<Meant, String> {
    if let Some(percent) = percent(text) {
        return Ok(Meant::Percent(percent));
    }
    match text.split_once(':') {
        Some(("limit", bytes)) => Ok(Meant::Amount(Amount::Limit(size(bytes)?))),
        Some(("memory", bytes)) => Ok(Meant::Amount(Amount::Ram(size(bytes)?))),
        _ => Err("expected e.g. 75%, limit:256M or memory:4G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser;

    /// What is printed is what is read.
    #[test]
    fn the_words_of_a_line_are_its_request_again() {
        let number: Number = "3/9:01234567".parse().expect("a number");
        let less = |amount, meant, swap, peak| {
            Asked::Less(Less { amount, meant, beside: None, peak, swap, swap_bytes: 64 << 20 })
        };
        let limit = Amount::Limit(4 << 20);
        for (asked, phase) in [
            (Asked::Life, None),
            (Asked::PeakUse, None),
            (Asked::Mappings(77), Some(1)),
            (less(limit, Meant::Percent(75), Some(LimitSwap::Zram), Some(7)), Some(0)),
            (less(limit, Meant::Amount(limit), Some(LimitSwap::Zswap), None), Some(1)),
            (less(Amount::Ram(9), Meant::Amount(Amount::Ram(9)), None, Some(1)), Some(0)),
        ] {
            let serves = match asked {
                Asked::Less(_) => vec![LimitSwap::Zram, LimitSwap::ZramZstd],
                _ => Vec::new(),
            };
            let kernel = phase.map(|_| KernelCosts { thread: 1, process: 2, mapping: 3 });
            let need = matches!(asked, Asked::Less(_)).then_some(Need { anonymous: 5, stays: 0 });
            let setting = "mthp=64K,gather=pages".to_owned();
            let request = Request { setting, phase, kernel, asked, serves, need };
            let (file, contents) = ("a.qtr".into(), "0123abcd".to_owned());
            let line = PlannedLine { file, contents, request, number: number.clone() };
            let first = ["quire", "sweep", "--one"].map(OsString::from).into_iter();
            let all = first.chain(words(&line)).chain([OsString::from("a.qtr")]);
            let parsed = Arguments::try_parse_from(all).expect("a command line").command;
            let Some(Command::Sweep(sweep)) = parsed else { panic!("{parsed:?}") };
            assert_eq!(sweep.line.request(), Some(line.request));
            assert_eq!(sweep.line.contents(), Some("0123abcd"));
            assert_eq!(sweep.line.number(), Some(number.clone()));
        }
    }

    #[test]
    fn wrong_words_are_refused() {
        assert!(kernel("1,2").is_err() && kernel("1,2,x").is_err() && kernel("1,2,3").is_ok());
        for wrong in ["", "0%", "101%", "75", "x:1M", "limit:0"] {
            assert!(meant(wrong).is_err(), "{wrong}");
        }
        assert!(swap("disk:1M").is_err() && swap("zram").is_err() && limit_swap("zram").is_err());
    }
}
