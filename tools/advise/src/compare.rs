//! Each technique off and on for a recorded program.

use crate::error::AdviseError;
use crate::jobs::{Progress, in_parallel};
use crate::predict::command;
use crate::setting::{Setting, grid};
use quire_mm::{Techniques, thp::HugeConfig};
use quire_replay::{Audits, Replay, ReplayOptions, ReplayReport, SwapKind, SwapSpec, recorded_huge_config};
use std::path::{Path, PathBuf};

/// A figure of a replay, without the technique and with it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ComparedFigure {
    /// Its name.
    pub name: &'static str,
    /// `times`, `descriptors`, `entries`, `tables`, `bytes`, `pages`, `faults` or `instructions`.
    pub unit: &'static str,
    /// Without the technique.
    pub before: f64,
    /// With it.
    pub after: f64,
}

impl ComparedFigure {
    /// The change from before to after, as a share of before; none if there was nothing before.
    #[must_use]
    pub fn change(&self) -> Option<f64> {
        (self.before > 0.0).then(|| self.after / self.before - 1.0)
    }
}

/// What one technique changes under one setting of huge pages.
#[derive(Clone, PartialEq, Debug)]
pub struct Effect {
    /// The technique's name: `pcp`, `gather`, `swap`, `tables` or `mremap`.
    pub technique: &'static str,
    /// Its value when it is off, and when it is on.
    pub values: (&'static str, &'static str),
    /// The setting's name, with the memory of the machine if it was short.
    pub setting: String,
    /// The figures that the technique is about, the most relevant one first. Empty if it was not
    /// tried.
    pub figures: Vec<ComparedFigure>,
    /// Why it changes nothing for the program, if so.
    pub nothing: Option<&'static str>,
}

/// What the techniques change for one recording.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The recording.
    pub file: PathBuf,
    /// The command that was recorded.
    pub command: String,
    /// With all techniques, under the recorded setting.
    pub report: ReplayReport,
    /// A technique after the other, under the recorded setting first.
    pub effects: Vec<Effect>,
}

/// Counts what the memory manager executes in one replay: the file, the setting's name, the switches of
/// techniques.
pub type Instructions<'i> = &'i (dyn Fn(&Path, &str, &[(&str, &str)]) -> Result<u64, String> + Sync);

/// A technique, off and on.
struct Technique {
    name: &'static str,
    off: &'static str,
    on: &'static str,
    figures: fn(&ReplayReport) -> Vec<(&'static str, &'static str, u64)>,
    /// Why it changes no figure of a replay that changes none.
    nothing: fn(&ReplayReport) -> &'static str,
}

const TECHNIQUES: [Technique; 5] = [
    Technique {
        name: "pcp",
        off: "order0",
        on: "all",
        figures: |report| {
            vec![
                ("zone lock takes", "times", report.allocator.zone_lock_takes),
                ("splits and merges", "times", report.allocator.splits + report.allocator.merges),
            ]
        },
        nothing: |_| "no block larger than a page was asked for",
    },
    Technique {
        name: "gather",
        off: "pages",
        on: "runs",
        figures: |report| {
            vec![
                ("rmap removals", "times", report.tables.rmap_removals),
                ("descriptors written", "descriptors", report.tables.descriptors_written),
                ("shootdowns", "times", report.tables.shootdowns),
                ("interrupts", "times", report.tables.interrupts),
            ]
        },
        nothing: |_| "no folio has more than a page",
    },
    Technique {
        name: "swap",
        off: "bypass",
        on: "all",
        figures: |report| {
            vec![
                ("swap cache", "bytes", report.pressure.swap.cache_bytes),
                ("pages out", "pages", report.pressure.pages_out),
                ("major faults", "faults", report.pressure.major_faults),
            ]
        },
        nothing: |report| match report.pressure.pages_out {
            0 => "nothing was paged out",
            _ => "each folio that was paged out had one page",
        },
    },
    Technique {
        name: "tables",
        off: "keep",
        on: "free",
        figures: |report| {
            let peak = |report: &ReplayReport| {
                report.processes.iter().map(|process| process.quire.peak_page_tables).max()
            };
            vec![
                ("peak page tables", "bytes", peak(report).unwrap_or(0)),
                ("empty tables freed", "tables", report.tables.empty_tables_freed),
                ("shootdowns", "times", report.tables.shootdowns),
            ]
        },
        nothing: |_| "no table was left empty under a mapping",
    },
    Technique {
        name: "mremap",
        off: "ptes",
        on: "puds",
        figures: |report| {
            vec![
                ("entries moved", "entries", report.tables.entries_moved),
                ("shootdowns", "times", report.tables.shootdowns),
            ]
        },
        nothing: |report| match report.tables.entries_moved {
            0 => "no mapping was moved",
            _ => "what was moved fills no table, or came to another place within one",
        },
    },
];

/// Names of the techniques.
#[must_use]
pub fn technique_names() -> [&'static str; TECHNIQUES.len()] {
    TECHNIQUES.map(|technique| technique.name)
}

/// The setting besides the recorded one, under which folios are larger than a page.
const LARGE: &str = "mthp=64K";

/// Techniques that are about folios larger than a page.
fn is_of_large_folios(technique: &Technique) -> bool {
    matches!(technique.name, "pcp" | "gather" | "swap")
}

/// Replays the recording in `file` with each technique of these names off and on, so many replays at once.
///
/// # Errors
///
/// [`AdviseError`].
pub fn compare(
    file: &Path,
    names: &[&str],
    at_once: usize,
    instructions: Option<Instructions<'_>>,
    progress: Progress<'_>,
) -> Result<Comparison, AdviseError> {
    let replay = Replay::open(file, ReplayOptions::default())?;
    let header = replay.header()?;
    let huge = recorded_huge_config(&header).unwrap_or_default();
    let settings = grid(&header);
    let present = settings.first().ok_or(AdviseError::Nothing)?;
    let large = settings.iter().find(|setting| setting.name == LARGE).unwrap_or(present);
    let base = run(&replay, ReplayOptions { life: true, ..options(huge, &[]) })?;
    let short = if names.contains(&"swap") { shortage(&replay, huge, &base)? } else { None };

    let mut pairs = Vec::new();
    for technique in TECHNIQUES.iter().filter(|technique| names.contains(&technique.name)) {
        pairs.push((technique, present));
        if is_of_large_folios(technique) {
            pairs.push((technique, large));
        }
    }
    let work = |&(technique, setting): &(&Technique, &Setting)| {
        effect(&replay, file, technique, setting, short.as_ref(), instructions)
    };
    let effects = in_parallel(&pairs, at_once, progress, work)?;
    Ok(Comparison { file: file.to_path_buf(), command: command(&header), report: base, effects })
}

/// A machine with little memory, on which the program has to page out.
struct Shortage {
    memory: u64,
    swap: SwapSpec,
}

fn options(huge: HugeConfig, switches: &[(&str, &str)]) -> ReplayOptions {
    let mut techniques = Techniques::default();
    for (name, value) in switches {
        let set = techniques.set(name, value);
        debug_assert!(set.is_ok(), "{name}={value}: {set:?}");
    }
    ReplayOptions { huge, techniques, audits: Audits::Never, ..ReplayOptions::default() }
}

fn run(replay: &Replay, options: ReplayOptions) -> Result<ReplayReport, AdviseError> {
    Ok(replay.with(options).run(&mut |_, _| {})?)
}

fn effect(
    replay: &Replay,
    file: &Path,
    technique: &Technique,
    setting: &Setting,
    short: Option<&Shortage>,
    instructions: Option<Instructions<'_>>,
) -> Result<Effect, AdviseError> {
    let mut effect = Effect {
        technique: technique.name,
        values: (technique.off, technique.on),
        setting: setting.name.clone(),
        figures: Vec::new(),
        nothing: None,
    };
    let with = |value| {
        let mut options = options(setting.huge, &[(technique.name, value)]);
        options.shmem = Some(setting.shmem);
        if technique.name == "swap" {
            let short = short?;
            (options.memory, options.swap) = (Some(short.memory), Some(short.swap.clone()));
        }
        Some(options)
    };
    let Some((off, on)) = with(technique.off).zip(with(technique.on)) else {
        effect.nothing = Some("the program is too small to be short of memory, or does not fit into less");
        return Ok(effect);
    };
    if let Some(memory) = on.memory {
        effect.setting = format!("{}, {} MiB of RAM", setting.name, memory >> 20);
    }
    let (before, after) = (run(replay, off)?, run(replay, on)?);
    let pairs = (technique.figures)(&before).into_iter().zip((technique.figures)(&after));
    effect.figures = pairs
        .map(|((name, unit, before), (.., after))| ComparedFigure {
            name,
            unit,
            before: before as f64,
            after: after as f64,
        })
        .collect();
    if effect.figures.iter().all(|figure| figure.before == figure.after) {
        effect.nothing = Some((technique.nothing)(&after));
    }
    // A machine under memory pressure is not counted: its work is mostly the device's.
    if let Some(count) = instructions.filter(|_| technique.name != "swap") {
        let count =
            |value| count(file, &setting.name, &[(technique.name, value)]).map_err(AdviseError::Instructions);
        let (before, after) = (count(technique.off)? as f64, count(technique.on)? as f64);
        effect.figures.push(ComparedFigure {
            name: "manager instructions",
            unit: "instructions",
            before,
            after,
        });
    }
    Ok(effect)
}

/// RAM in which the program has to page out and still fits. It is tried with less and less of its anonymous
/// memory; without any, there is nothing to page out.
fn shortage(replay: &Replay, huge: HugeConfig, base: &ReplayReport) -> Result<Option<Shortage>, AdviseError> {
    let life = base.life.clone().unwrap_or_default();
    let anonymous = life.at_peak.anonymous;
    if anonymous == 0 {
        return Ok(None);
    }
    let fixed = life.peak_resident.saturating_sub(anonymous) + life.peak_page_tables + OWN_BYTES;
    for share in [4, 3, 2] {
        let memory = (fixed + anonymous / 6 * share).next_multiple_of(1 << 20);
        if memory >= base.ram {
            continue;
        }
        let swap = SwapSpec { kind: SwapKind::Ram, bytes: (2 * anonymous).next_multiple_of(1 << 20) };
        let short = Shortage { memory, swap };
        let options = ReplayOptions {
            memory: Some(short.memory),
            swap: Some(short.swap.clone()),
            ..options(huge, &[("swap", "bypass")])
        };
        let report = run(replay, options)?;
        if report.does_not_fit.is_some() {
            return Ok(None);
        }
        if report.pressure.pages_out * 4096 > anonymous / 16 {
            return Ok(Some(short));
        }
    }
    Ok(None)
}

/// The memory that a machine needs itself: descriptors, slabs, lists, watermarks.
const OWN_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switches_of_all_techniques_exist() {
        for technique in &TECHNIQUES {
            for value in [technique.off, technique.on] {
                assert_eq!(Techniques::default().set(technique.name, value), Ok(()));
            }
            let mut off = Techniques::default();
            assert_eq!(off.set(technique.name, technique.on), Ok(()));
            assert_eq!(off, Techniques::default(), "{} is on by default", technique.name);
        }
        assert_eq!(technique_names().len(), Techniques::NAMES.len());
    }

    #[test]
    fn a_change_is_a_share_of_what_was_before() {
        let figure = |before, after| ComparedFigure { name: "", unit: "", before, after };
        assert_eq!(figure(200.0, 50.0).change(), Some(-0.75));
        assert_eq!(figure(0.0, 3.0).change(), None);
    }
}
