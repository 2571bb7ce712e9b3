//! The command lines of a sweep.
//!
//! Limits are shares of what a program needs, which is known when its recordings were replayed under the
//! present setting. That is done here, so that no line depends on another one.

use super::group::{Key, name};
use super::request::{CONTENTS_DIGITS, Number, Request, SWEEP_DIGITS};
use crate::error::AdviseError;
use crate::fitting::lives;
use crate::identity::{Identity, digest};
use crate::jobs::{Progress, in_parallel};
use crate::limits::Tries;
use crate::outcome::Outcome;
use crate::point::{Asked, Point};
use crate::predict::{for_settings, in_order, kernel_costs, need_of, present, trial};
use crate::setting::{NEVER, Setting, grid, tried};
use crate::source::Source;
use quire_measure::Costs;
use quire_replay::KernelCosts;
use quire_trace::format::TraceHeader;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What is replayed of each recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grid {
    /// The names of settings; none: those that `quire advise` tries.
    pub settings: Option<Vec<String>>,
    /// Techniques in other states, each a list of `NAME=VALUE`: each setting is replayed with each of these,
    /// too.
    pub techniques: Vec<Vec<String>>,
    /// The limits.
    pub tries: Tries,
}

impl Grid {
    /// The settings for a recording: the present one and that without huge pages are always among them, since
    /// the others are compared with these. One that the host of the recording does not have is left out.
    fn settings(&self, header: &TraceHeader, shared: (u64, u64)) -> Vec<Setting> {
        let is_wanted = |setting: &Setting| {
            let named = self.settings.as_ref();
            setting.is_present
                || setting.name == NEVER
                || named.is_none_or(|names| names.iter().any(|name| name == &setting.name))
        };
        // Those that are named are wanted, whatever there is of shared memory.
        let all = if self.settings.is_some() { grid(header) } else { tried(header, shared) };
        let mut settings: Vec<Setting> = all.into_iter().filter(is_wanted).collect();
        let plain = settings.clone();
        for words in &self.techniques {
            let with = plain.iter().filter(|setting| setting.is_of_linux()).filter_map(|setting| {
                words.iter().try_fold(setting.clone(), |setting, word| setting.with_technique(word))
            });
            settings.extend(with.filter(|setting| plain.iter().all(|known| known.name != setting.name)));
        }
        settings
    }

    /// Why there is no setting of this name on any host, if there is none.
    #[must_use]
    pub fn unknown_setting(name: &str) -> Option<String> {
        let all = grid(&TraceHeader::default());
        // What is present differs from host to host.
        let names: Vec<&str> =
            all.iter().filter(|setting| setting.is_of_linux()).map(|setting| setting.name.as_str()).collect();
        // The present one is replayed with empty tables freed, too.
        let plain = name.strip_suffix(",tables=free").unwrap_or(name);
        let is_known = names.contains(&plain) || plain == "present";
        (!is_known).then(|| {
            let names = names.join(" ");
            format!(
                "there is no setting {name}; known: present {names}, and what is present with ,tables=free"
            )
        })
    }

    fn has_limits(&self) -> bool {
        !self.tries.percents.is_empty() || !self.tries.amounts.is_empty()
    }
}

/// One command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedLine {
    /// The recording, as it was named.
    pub file: PathBuf,
    /// The first digits of the SHA-256 of its contents.
    pub contents: String,
    /// What is asked of it.
    pub request: Request,
    /// Which of the lines it is.
    pub number: Number,
}

/// The command lines, and what has none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// In the order of the recordings.
    pub lines: Vec<PlannedLine>,
    /// The recordings that are left out, or get no limits, each with the reason.
    pub left_out: Vec<String>,
}

/// A recording that was looked through, with its identity; or why it is left out.
type Opened = Result<(Source, Identity), String>;

fn open(files: &[PathBuf], at_once: usize) -> Vec<Opened> {
    let opened: Result<Vec<Opened>, Infallible> = in_parallel(files, at_once, &|_, _| {}, |file| {
        let identity = || Identity::of_file(file).map_err(|error| format!("{}: {error}", file.display()));
        // What is no file is refused before anything waits for its end.
        let source = identity().and_then(|identity| {
            let source = Source::open(file).map_err(|error| error.to_string())?;
            Ok((source.anywhere(), identity))
        });
        Ok(source.and_then(|(source, identity)| {
            let suits = source.header.supports_thp_predictions();
            suits.map_err(|why| format!("{}: {why}", file.display()))?;
            Ok((source, identity))
        }))
    });
    opened.unwrap_or_else(|never| match never {})
}

/// The recordings of one program.
struct Group {
    sources: Vec<Source>,
    settings: Vec<Setting>,
    /// Of those for settings each replay under the present setting, once it was made.
    outcomes: Vec<(usize, Point, Outcome)>,
    /// This host has too little free memory for these.
    is_short: bool,
}

/// Why there are no limits where this host is too small to tell of what they are shares.
const SHORT: &str = "this host has too little free memory for a replay: print the lines on another one";

impl Group {
    /// That it gets no limits, and why.
    fn told(&self, why: &str) -> String {
        let told = self.sources.first().map_or_else(String::new, |first| name(&first.header));
        format!("{told}: no limits, since {why}")
    }

    /// The lines for settings.
    fn for_settings(&self, kernel: Option<KernelCosts>) -> Vec<(usize, Request)> {
        let mut requests = Vec::new();
        for recording in for_settings(&self.sources) {
            for setting in &self.settings {
                let first = lives(setting, kernel).next();
                requests.extend(first.map(|point| (recording, Request::of(&point, Vec::new()))));
            }
        }
        requests
    }

    /// The lines for limits, and what is told of the peak.
    fn for_limits(
        &self,
        tries: &Tries,
        kernel: Option<KernelCosts>,
        at_once: usize,
    ) -> Result<Vec<(usize, Request)>, AdviseError> {
        let mut requests = Vec::new();
        let outcomes: Vec<&Outcome> = self.outcomes.iter().map(|(_, _, outcome)| outcome).collect();
        let most = self.outcomes.iter().max_by_key(|(_, _, outcome)| outcome.life.at_charge_peak.charge());
        requests.extend(most.map(|(recording, point, outcome)| {
            let asked = Asked::Mappings(outcome.life.at_charge_peak.event);
            (*recording, Request::of(&Point { asked, ..point.clone() }, Vec::new()))
        }));
        let Some(first) = self.sources.first() else { return Ok(requests) };
        let mut trial = trial(&self.sources, &present(&first.header), tries, at_once, kernel, Vec::new());
        trial.look_at_peak()?;
        // Of all recordings by their places among those for limits.
        let place = |recording: usize| {
            let path = trial.recordings.get(recording).map(|recorded| &recorded.source.path);
            self.sources.iter().position(|source| Some(&source.path) == path).unwrap_or_default()
        };
        // One of them tells, and another one where its line is missing.
        let telling = trial.all_telling().into_iter();
        requests.extend(
            telling.map(|recording| (place(recording), Request::of(&trial.peak_point(), Vec::new()))),
        );
        let need = need_of(&outcomes);
        requests.extend(trial.planned(need).into_iter().map(|(recording, planned)| {
            let request = Request::of(&planned.point, planned.serves);
            (place(recording), Request { need: Some(need), ..request })
        }));
        // Each recording has a line, so that all of them are known.
        let settings = for_settings(&self.sources);
        for recording in (0..self.sources.len()).filter(|place| !settings.contains(place)) {
            if requests.iter().all(|(known, _)| *known != recording) {
                requests.push((recording, Request::of(&trial.peak_point(), Vec::new())));
            }
        }
        Ok(requests)
    }
}

/// The command lines for the recordings in `files`, of any programs. So many replays at once; `costs` are
/// this host's, if it was calibrated.
///
/// # Errors
///
/// [`AdviseError`], where a recording cannot be replayed after all.
pub fn plan(
    files: &[PathBuf],
    grid: &Grid,
    at_once: usize,
    costs: Option<&Costs>,
    progress: Progress<'_>,
) -> Result<Plan, AdviseError> {
    let kernel = kernel_costs(costs);
    let mut plan = Plan::default();
    let mut groups: Vec<(Key, Vec<Source>)> = Vec::new();
    let mut known: BTreeMap<Identity, PathBuf> = BTreeMap::new();
    for opened in open(files, at_once) {
        match opened {
            Err(why) => plan.left_out.push(why),
            Ok((source, identity)) => {
                if let Some(other) = known.get(&identity) {
                    let (path, other) = (source.path.display(), other.display());
                    plan.left_out.push(format!("{path}: the same recording as {other}"));
                    continue;
                }
                known.insert(identity, source.path.clone());
                let key = Key::of(&source.header);
                match groups.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, sources)) => sources.push(source),
                    None => groups.push((key, vec![source])),
                }
            }
        }
    }
    let mut all: Vec<Group> = Vec::new();
    for (_, sources) in groups {
        let sources = in_order(sources)?;
        let shared = sources.iter().map(Source::shared).max().unwrap_or_default();
        let settings = sources.first().map_or_else(Vec::new, |first| grid.settings(&first.header, shared));
        all.push(Group { sources, settings, outcomes: Vec::new(), is_short: false });
    }
    if grid.has_limits() {
        replay_present(&mut all, kernel, at_once, progress)?;
    }
    let contents: BTreeMap<PathBuf, String> = known
        .into_iter()
        .map(|(identity, path)| (path, identity.digits()[..CONTENTS_DIGITS].to_owned()))
        .collect();
    let mut lines: Vec<(PathBuf, String, Request)> = Vec::new();
    for group in &all {
        let mut requests = group.for_settings(kernel);
        if grid.has_limits() {
            if group.is_short {
                plan.left_out.push(group.told(SHORT));
            } else if group.outcomes.is_empty() {
                plan.left_out.push(group.told("it does not fit into this host's memory"));
            } else {
                match group.for_limits(&grid.tries, kernel, at_once) {
                    Err(AdviseError::HostIsShort(_)) => plan.left_out.push(group.told(SHORT)),
                    other => requests.extend(other?),
                }
            }
        }
        requests.sort_by_key(|(recording, _)| *recording);
        let of = |(recording, request): (usize, Request)| {
            let path = &group.sources.get(recording)?.path;
            Some((path.clone(), contents.get(path)?.clone(), request))
        };
        lines.extend(requests.into_iter().filter_map(of));
    }
    plan.lines = numbered(lines);
    Ok(plan)
}

/// Replays each recording that settings are predicted from under the present setting. A program of which one
/// does not fit gets no outcomes.
fn replay_present(
    groups: &mut [Group],
    kernel: Option<KernelCosts>,
    at_once: usize,
    progress: Progress<'_>,
) -> Result<(), AdviseError> {
    let mut jobs: Vec<(usize, usize, Point)> = Vec::new();
    for (place, group) in groups.iter().enumerate() {
        let Some(present) = group.settings.first() else { continue };
        for recording in for_settings(&group.sources) {
            jobs.extend(lives(present, kernel).map(|point| (place, recording, point)));
        }
    }
    let outcomes = in_parallel(&jobs, at_once, progress, |(group, recording, point)| {
        match groups[*group].sources[*recording].fits(point) {
            Err(AdviseError::HostIsShort(_)) => Ok(None),
            other => other.map(Some),
        }
    })?;
    let fits = |group: usize| {
        let mut mine = jobs.iter().zip(&outcomes).filter(|((place, ..), _)| *place == group);
        mine.all(|(_, outcome)| matches!(outcome, Some(Ok(_))))
    };
    let fitting: Vec<bool> = (0..groups.len()).map(fits).collect();
    for ((group, recording, point), outcome) in jobs.into_iter().zip(outcomes) {
        match outcome {
            Some(Ok(outcome)) if fitting[group] => groups[group].outcomes.push((recording, point, *outcome)),
            None => groups[group].is_short = true,
            Some(_) => {}
        }
    }
    Ok(())
}

/// Lines with their numbers, of a sweep that is told by what they say.
fn numbered(lines: Vec<(PathBuf, String, Request)>) -> Vec<PlannedLine> {
    let mut all = Vec::new();
    for (file, contents, request) in &lines {
        all.extend(file.as_os_str().as_bytes());
        all.extend(format!("\0{contents}{request:?}\n").bytes());
    }
    let (of, sweep) = (lines.len() as u64, digest(&all)[..SWEEP_DIGITS].to_owned());
    let numbers = (1..).map(|line| Number { line, of, sweep: sweep.clone() });
    lines
        .into_iter()
        .zip(numbers)
        .map(|((file, contents, request), number)| PlannedLine { file, contents, request, number })
        .collect()
}
