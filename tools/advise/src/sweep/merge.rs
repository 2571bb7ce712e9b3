//! Advice from the lines of a sweep: the same code as for replays that are made at once, with results in
//! their place.

use super::group::{Key, name};
use super::read::{Entry, Lines};
use super::request::Request;
use crate::error::AdviseError;
use crate::fitting::lives;
use crate::found::Found;
use crate::host::Host;
use crate::identity::Identity;
use crate::jobs::Progress;
use crate::limits::{Need, Tries};
use crate::point::{Amount, Asked, Meant, Point};
use crate::predict::{Asking, Prediction, for_settings, in_order};
use crate::setting::{NEVER, Setting, grid};
use crate::source::Source;
use crate::stored::{OTHER_CONTENTS, Stored};
use crate::swap::LimitSwap;
use quire_replay::KernelCosts;
use quire_trace::format::TraceHeader;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Lines that are to be merged.
#[derive(Debug, Default)]
pub struct Merge {
    lines: Lines,
}

/// Advice for one program.
#[derive(Debug)]
pub struct MergedProgram {
    /// What was predicted.
    pub prediction: Prediction,
    /// The first recording that settings are predicted from, where it was when its line was made.
    pub first: PathBuf,
    identity: Identity,
}

impl MergedProgram {
    /// Whether [`first`](Self::first) is still there.
    ///
    /// # Errors
    ///
    /// Why not: it cannot be read, or has other contents.
    pub fn is_at_hand(&self) -> Result<(), String> {
        let identity = Identity::of_file(&self.first).map_err(|error| error.to_string())?;
        if identity == self.identity { Ok(()) } else { Err(OTHER_CONTENTS.to_owned()) }
    }
}

/// Advice for all programs.
#[derive(Debug, Default)]
pub struct Merged {
    /// In the order of the paths of their recordings.
    pub programs: Vec<MergedProgram>,
    /// What is repeated, missing or no result, each in one line.
    pub remarks: Vec<String>,
    /// Something that was planned is missing, or damaged.
    pub is_lacking: bool,
}

impl Merge {
    /// Reads the lines of a file. One that cannot be read is told and passed over.
    pub fn read(&mut self, path: &Path) {
        self.lines.read(path);
    }

    /// Advice from what was read, for `host`. Replays that no line was planned for, such as those which show
    /// in which mapping memory is wasted, are made here, so many at once, if the recording is at hand.
    #[must_use]
    pub fn finish(mut self, at_once: usize, host: &Host, progress: Progress<'_>) -> Merged {
        self.name_missing();
        self.name_versions();
        self.drop_repeated();
        let mut groups: BTreeMap<Key, Vec<Entry>> = BTreeMap::new();
        for entry in std::mem::take(&mut self.lines.entries) {
            groups.entry(Key::of(&entry.header)).or_default().push(entry);
        }
        let mut groups: Vec<Vec<Entry>> = groups.into_values().collect();
        groups.sort_by_cached_key(|entries| entries.iter().map(|entry| entry.path.clone()).min());
        let mut programs = Vec::new();
        let all = groups.len();
        for (done, entries) in groups.into_iter().enumerate() {
            progress(done, all);
            programs.extend(self.program(entries, at_once, host));
        }
        progress(all, all);
        Merged { programs, remarks: self.lines.remarks, is_lacking: self.lines.is_lacking }
    }

    /// The lines of each sweep that are not there.
    fn name_missing(&mut self) {
        let mut sweeps: BTreeMap<(String, u64), BTreeSet<u64>> = BTreeMap::new();
        for number in self.lines.entries.iter().filter_map(|entry| entry.number.as_ref()) {
            sweeps.entry((number.sweep.clone(), number.of)).or_default().insert(number.line);
        }
        for ((sweep, of), lines) in sweeps {
            let mut gaps: Vec<String> = Vec::new();
            let mut next = 1;
            for line in lines.into_iter().chain([of + 1]) {
                match line - next {
                    0 => {}
                    1 => gaps.push(next.to_string()),
                    _ => gaps.push(format!("{next}-{}", line - 1)),
                }
                next = line + 1;
            }
            if !gaps.is_empty() {
                self.lines.is_lacking = true;
                let (word, verb) =
                    if gaps.len() == 1 && !gaps[0].contains('-') { ("line", "is") } else { ("lines", "are") };
                let gaps = gaps.join(", ");
                self.lines.remarks.push(format!(
                    "{word} {gaps} of {of} of sweep {sweep} {verb} missing: run again what it printed there"
                ));
            }
        }
    }

    fn name_versions(&mut self) {
        let versions: BTreeSet<&str> = self.lines.entries.iter().map(|entry| entry.quire.as_str()).collect();
        if versions.len() > 1 {
            let versions: Vec<&str> = versions.into_iter().collect();
            self.lines
                .remarks
                .push(format!("the lines are of several versions of quire: {}", versions.join(", ")));
        }
    }

    /// Of lines that ask for the same of one recording one stays, whatever their order: one that found more.
    fn drop_repeated(&mut self) {
        let mut entries = std::mem::take(&mut self.lines.entries);
        entries.sort_by(|one, other| {
            let key = |entry: &Entry| (entry.is_misfit, entry.digest.clone(), entry.at.clone());
            key(one).cmp(&key(other))
        });
        let mut kept: BTreeMap<(Identity, String), usize> = BTreeMap::new();
        for entry in entries {
            let key = (entry.identity.clone(), format!("{:?}", entry.request));
            let Some(&place) = kept.get(&key) else {
                kept.insert(key, self.lines.entries.len());
                self.lines.entries.push(entry);
                continue;
            };
            let first = &mut self.lines.entries[place];
            let (at, other) = (entry.at.told(), first.at.told());
            let remark = if entry.digest == first.digest {
                format!("{at}: repeated, with the result of {other}; counted once")
            } else if entry.is_misfit && !first.is_misfit {
                format!("{at}: repeated; it did not fit there, and did for {other}, which counts")
            } else {
                self.lines.is_lacking = true;
                format!("{at}: repeated, with another result than {other}, which counts")
            };
            self.lines.remarks.push(remark);
            // A recording that lies elsewhere on another machine has one path.
            if entry.path < first.path {
                first.path = entry.path;
            }
        }
    }

    /// Advice for the program of these lines.
    fn program(&mut self, mut entries: Vec<Entry>, at_once: usize, host: &Host) -> Option<MergedProgram> {
        let told = name(&entries.first()?.header);
        let kernel = kernel_of(&entries);
        let before = entries.len();
        entries.retain(|entry| entry.request.kernel == kernel);
        if entries.len() < before {
            let other = before - entries.len();
            let line = format!(
                "{told}: {other} lines take another amount of memory for what the kernel keeps; passed over"
            );
            self.lines.remark(true, line);
        }
        let need = self.need(&told, &mut entries);
        let tries = tries_of(&entries);
        let sources = match self.sources(&entries, &tries) {
            Ok(sources) => sources,
            Err(error) => {
                self.lines.remark(true, format!("{told}: no advice: {error}"));
                return None;
            }
        };
        let settings = self.settings(&told, &sources, kernel, &entries)?;
        let first = for_settings(&sources).first().and_then(|&place| sources.get(place))?;
        let (first, identity) = (first.path.clone(), first.stored()?.identity().clone());
        let asking = Asking { sources: &sources, settings, tries: &tries, kernel, need };
        let found = asking.predict(at_once, host, &|_, _| {});
        for source in &sources {
            for (point, why) in source.stored().map(Stored::missed).unwrap_or_default() {
                let asked = Request::of(&point, Vec::new()).told();
                self.lines
                    .remark(true, format!("{told}: not known: {asked} of {}: {why}", source.path.display()));
            }
        }
        match found {
            Ok(prediction) => Some(MergedProgram { prediction, first, identity }),
            Err(error) => {
                self.lines.remark(true, format!("{told}: no advice: {error}"));
                None
            }
        }
    }

    /// What the program needs, of which limits are shares: as its lines say. Of lines that say different
    /// things those for limits are dropped.
    fn need(&mut self, told: &str, entries: &mut Vec<Entry>) -> Option<Need> {
        let needs: BTreeSet<Need> = entries.iter().filter_map(|entry| entry.request.need).collect();
        if needs.len() > 1 {
            entries.retain(|entry| entry.request.need.is_none());
            let line = format!(
                "{told}: no limits: the lines are of sweeps of different recordings of this program, and \
                 limits are shares of what all of them need: sweep them together"
            );
            self.lines.remark(true, line);
            return None;
        }
        needs.into_iter().next()
    }

    /// The recordings of the lines, in order, with the results.
    fn sources(&mut self, entries: &[Entry], tries: &Tries) -> Result<Vec<Source>, AdviseError> {
        struct Replayed {
            path: PathBuf,
            header: TraceHeader,
            events: u64,
            results: Vec<(Point, Found)>,
        }
        let mut recordings: BTreeMap<&Identity, Replayed> = BTreeMap::new();
        for entry in entries {
            match entry.at.read() {
                Ok(line) if line.identity == entry.identity && line.digest == entry.digest => {
                    let recording = recordings.entry(&entry.identity).or_insert_with(|| Replayed {
                        path: entry.path.clone(),
                        header: line.header,
                        events: line.events,
                        results: Vec::new(),
                    });
                    if entry.path < recording.path {
                        recording.path.clone_from(&entry.path);
                    }
                    recording.results.extend(line.found);
                }
                Ok(_) => self.lines.remark(true, format!("{}: changed while it was read", entry.at.told())),
                Err(why) => self.lines.remark(true, why),
            }
        }
        let percents: BTreeSet<u32> = tries.percents.iter().copied().collect();
        let source = |(identity, recording): (&Identity, Replayed)| {
            let Replayed { path, header, events, results } = recording;
            let stored = Stored::new(identity.clone(), results, percents.clone());
            Source::with_results(path, header, events, stored)
        };
        in_order(recordings.into_iter().map(source).collect())
    }

    /// The settings of which each recording has its results, in the order of the grid. None if the present
    /// one, or that without huge pages, is not among them.
    fn settings(
        &mut self,
        told: &str,
        sources: &[Source],
        kernel: Option<KernelCosts>,
        entries: &[Entry],
    ) -> Option<Vec<Setting>> {
        let header = &sources.first()?.header;
        let needed: Vec<&Source> =
            for_settings(sources).iter().filter_map(|&place| sources.get(place)).collect();
        let has = |source: &Source, setting: &Setting| {
            source.stored().is_some_and(|stored| lives(setting, kernel).all(|point| stored.has(&point)))
        };
        let named = entries.iter().filter(|entry| entry.request.asked == Asked::Life);
        let named: BTreeSet<&str> = named.map(|entry| entry.request.setting.as_str()).collect();
        let plain = grid(header);
        let mut all: Vec<Setting> = plain.clone();
        // Behind the setting of which it is one with techniques: that of the longest name.
        let is_of = |name: &str, of: &str| name.strip_prefix(of).is_some_and(|rest| rest.starts_with(','));
        let place = |name: &str| {
            let mine = plain.iter().enumerate().filter(|(_, setting)| is_of(name, &setting.name));
            mine.max_by_key(|(_, setting)| setting.name.len()).map(|(place, _)| place)
        };
        let mut others: Vec<&str> =
            named.iter().copied().filter(|name| plain.iter().all(|setting| setting.name != *name)).collect();
        others.sort_by_key(|name| (place(name), *name));
        all.extend(others.into_iter().filter_map(|name| Setting::named(header, name)));
        let mut settings = Vec::new();
        for setting in all {
            let is_needed = setting.is_present || setting.name == NEVER;
            let lacking = needed.iter().find(|source| !has(source, &setting));
            match lacking {
                None => settings.push(setting),
                Some(_) if !is_needed && !named.contains(setting.name.as_str()) => {}
                Some(source) => {
                    let (name, path) = (&setting.name, source.path.display());
                    if is_needed {
                        let line = format!(
                            "{told}: no advice: {path} has no result under {name}, with which the others are compared"
                        );
                        self.lines.remark(true, line);
                        return None;
                    }
                    self.lines
                        .remark(true, format!("{told}: {name} is left out: {path} has no result under it"));
                }
            }
        }
        Some(settings)
    }
}

/// What the kernel was taken to keep, in most lines for settings.
fn kernel_of(entries: &[Entry]) -> Option<KernelCosts> {
    let mut counts: Vec<(Option<KernelCosts>, usize)> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.request.asked == Asked::Life) {
        match counts.iter_mut().find(|(kernel, _)| *kernel == entry.request.kernel) {
            Some((_, count)) => *count += 1,
            None => counts.push((entry.request.kernel, 1)),
        }
    }
    // However the lines are ordered.
    let key = |kernel: &Option<KernelCosts>| kernel.map(|it| (it.thread, it.process, it.mapping));
    counts.into_iter().max_by_key(|(kernel, count)| (*count, key(kernel))).and_then(|(kernel, _)| kernel)
}

/// The limits that the lines are for.
fn tries_of(entries: &[Entry]) -> Tries {
    let (mut percents, mut amounts) = (BTreeSet::new(), BTreeSet::<Amount>::new());
    let mut swaps: BTreeSet<LimitSwap> = BTreeSet::new();
    for Entry { request, .. } in entries {
        let Asked::Less(less) = &request.asked else { continue };
        if request.serves.is_empty() {
            continue;
        }
        swaps.extend(&request.serves);
        match less.meant {
            Meant::Percent(percent) => _ = percents.insert(percent),
            Meant::Amount(amount) => _ = amounts.insert(amount),
        }
    }
    Tries {
        percents: percents.into_iter().rev().collect(),
        amounts: amounts.into_iter().collect(),
        swaps: swaps.into_iter().collect(),
    }
}
