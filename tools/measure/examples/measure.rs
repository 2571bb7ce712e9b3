//! Measures a program under settings that hold as long as it runs, or the costs of this host, and prints all
//! that is known.
//!
//!     cargo run --release -p quire-measure --example measure -- [OPTIONS] CMD...
//!     cargo run --release -p quire-measure --example measure -- --pairs N CMD...
//!     cargo run --release -p quire-measure --example measure -- --calibrate
//!     cargo run --release -p quire-measure --example measure -- --set FILE=WORD... --hold
//!
//! With --pairs it runs the program so often without measuring and with, in turns, and prints what measuring
//! changes of its times.
//!
//!     --set FILE=WORD    of /sys/kernel/mm/transparent_hugepage, as in `hugepages-64kB/enabled=always`
//!     --thp-off          huge pages off for the program, by prctl
//!     --count            count the 2 MiB pages of the program's own faults
//!     --hold             run nothing: print a line when the settings are in place, and put them back at the end of the input
//!     --folios           look up the sizes of folios
//!     --limit SIZE       run it within a memory cgroup of SIZE bytes, KiB (K), MiB (M) or GiB (G)
//!     --swap KIND:SIZE   with swap behind it: zram, file or zswap, as large as SIZE
//!     --runs N           run it so often
//!     --timeout SECONDS  a run may take so long
//!     --json FILE        append a JSON line for each run to FILE, and print nothing

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use quire_measure::{
    AtPeak, Charge, HostSettings, HugeSettings, LimitTruth, MemoryLimit, Options, Swap, Truth, calibrate,
    measure,
};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    let mut settings = HugeSettings::new();
    let (mut limit, mut swap) = (None, None);
    let mut pairs = 0;
    let mut runs = 1;
    let mut json = None;
    let mut words = std::env::args().skip(1);
    let program = loop {
        match words.next().ok_or("which program?")?.as_str() {
            "--calibrate" => {
                println!("{}", serde_json::to_string_pretty(&calibrate()?)?);
                return Ok(());
            }
            "--pairs" => pairs = words.next().ok_or("how many?")?.parse()?,
            "--thp-off" => options.thp_disabled = true,
            "--count" => options.huge_faults = true,
            "--hold" => return hold(&settings),
            "--folios" => options.folios = true,
            "--runs" => runs = words.next().ok_or("how many?")?.parse()?,
            "--limit" => limit = Some(size(&words.next().ok_or("which limit?")?)?),
            "--swap" => {
                let text = words.next().unwrap_or_default();
                let (kind, bytes) = text.split_once(':').ok_or("--swap KIND:SIZE")?;
                swap = Some(Swap { kind: kind.parse()?, bytes: size(bytes)? });
            }
            "--json" => {
                let file = words.next().ok_or("which file?")?;
                json = Some(OpenOptions::new().append(true).create(true).open(file)?);
            }
            "--timeout" => {
                let seconds = words.next().ok_or("how long?")?.parse()?;
                options.timeout = Some(Duration::from_secs(seconds));
            }
            "--set" => {
                let setting = words.next().unwrap_or_default();
                let (file, word) = setting.split_once('=').ok_or("--set FILE=WORD")?;
                settings = settings.with(file, word);
            }
            program => break program.to_owned(),
        }
    };
    options.limit = match (limit, swap) {
        (None, Some(_)) => return Err("--swap is for a --limit".into()),
        (limit, swap) => limit.map(|bytes| MemoryLimit::new(bytes, swap)),
    };
    let guard = HostSettings::default().apply(&settings)?;
    let words: Vec<String> = words.collect();
    let command = || {
        let mut command = Command::new(&program);
        command.args(&words);
        command
    };
    if pairs > 0 {
        return compare(pairs, command, &options);
    }
    let truths = (0..runs).map(|_| measure(command(), &options)).collect::<Result<Vec<Truth>, _>>();
    guard.restore()?;
    for truth in &truths? {
        match &mut json {
            Some(file) => writeln!(file, "{}", line(truth))?,
            None => println!("{truth:#?}"),
        }
    }
    Ok(())
}

/// Keeps settings in place until the input ends, or this process is gone.
fn hold(settings: &HugeSettings) -> Result<(), Box<dyn Error>> {
    let guard = HostSettings::default().apply(settings)?;
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(guard.restore()?)
}

/// What a script compares, in bytes and seconds.
fn line(truth: &Truth) -> serde_json::Value {
    let largest = truth.processes.iter().max_by_key(|process| process.peak_anonymous);
    let mut line = serde_json::json!({
        "exit": truth.status.code(),
        "wall": truth.wall.as_secs_f64(),
        "cpu": (truth.user + truth.system).as_secs_f64(),
        "system": truth.system.as_secs_f64(),
        "minor_faults": truth.minor_faults,
        "major_faults": truth.major_faults,
        "largest": largest.map(|process| &process.program),
        "peak_anonymous": truth.peak_anonymous,
        "peak_anonymous_once": truth.peak_anonymous_once,
        "mean_anonymous_once": truth.mean_anonymous_once,
        "end_anonymous_once": truth.end_anonymous_once,
        "page_tables": truth.peak_page_tables_all,
        "huge_share": truth.at_peak.as_ref().map(AtPeak::huge_share),
        "large_share": truth.at_peak.as_ref().and_then(AtPeak::large_share),
        "huge_faults": truth.host.huge_faults,
        "own_huge_faults": truth.huge_faults,
        "collapses": truth.host.collapses,
        "unseen": truth.unseen,
        "processes": truth.processes.len(),
    });
    if let Some(limited) = &truth.limited {
        line["signal"] = truth.status.signal().into();
        line["limit"] = limit_line(limited);
    }
    line
}

fn limit_line(truth: &LimitTruth) -> serde_json::Value {
    serde_json::json!({
        "bytes": truth.bytes,
        "peak_charge": truth.peak_charge,
        "hits": truth.hits,
        "oom_kills": truth.oom_kills,
        "major_faults": truth.major_faults,
        "at_peak": truth.at_peak.as_ref().map(charge),
        "peak_in_use": truth.peak_in_use,
        "peak_anonymous": truth.peak_anonymous,
        "mean_anonymous": truth.mean_anonymous,
        "end_anonymous": truth.end_anonymous,
        "peak_swapped": truth.peak_swapped,
        "limited": truth.limited.as_ref().map(charge),
        "limited_samples": truth.limited_samples,
        "swap": truth.swap.as_ref().map(|swap| serde_json::json!({
            "device": swap.device,
            "compressor": swap.compressor,
            "read": swap.pages.read,
            "written": swap.pages.written,
            "zswap_read": swap.pages.zswap_read,
            "zswap_written": swap.pages.zswap_written,
            "zswap_written_back": swap.pages.zswap_written_back,
            "zeros_read": swap.pages.zeros_read,
            "zeros_written": swap.pages.zeros_written,
            "fullest": swap.fullest.map(|pool| serde_json::json!({
                "original": pool.original,
                "compressed": pool.compressed,
                "used": pool.used,
                "same_pages": pool.same_pages,
                "huge_pages": pool.huge_pages,
            })),
        })),
    })
}

fn charge(charge: &Charge) -> serde_json::Value {
    serde_json::json!({
        "all": charge.all,
        "anonymous": charge.anonymous,
        "swap_cache": charge.swap_cache,
        "file": charge.file,
        "shared": charge.shared,
        "kernel": charge.kernel,
        "swapped": charge.swapped,
    })
}

/// Bytes, or KiB, MiB, GiB by their letter.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("{text:?} is no size")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too much"))
}

/// Medians of the ratios of neighbours: processor time, and time from start to end.
fn compare(pairs: usize, command: impl Fn() -> Command, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..pairs {
        let (before, started) = (children()?, Instant::now());
        command().stdout(Stdio::null()).status()?;
        let (wall, used) = (started.elapsed(), children()? - before);
        let mut command = command();
        command.stdout(Stdio::null());
        let truth = measure(command, options)?;
        ratios[0].push((truth.user + truth.system).as_secs_f64() / used.as_secs_f64());
        ratios[1].push(truth.wall.as_secs_f64() / wall.as_secs_f64());
    }
    for (name, ratios) in ["processor time", "wall time"].iter().zip(&mut ratios) {
        ratios.sort_unstable_by(f64::total_cmp);
        let (low, high) = (ratios[pairs / 4], ratios[pairs - 1 - pairs / 4]);
        println!(
            "{name}, with measuring to without: {:.3} (quarters {low:.3} to {high:.3})",
            ratios[pairs / 2]
        );
    }
    Ok(())
}

/// Processor time of the children that this process waited for.
fn children() -> Result<Duration, Box<dyn Error>> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs());
    Ok(time(usage.user_time()) + time(usage.system_time()))
}
